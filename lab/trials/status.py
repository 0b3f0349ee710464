"""The status of recorded rows and published runs: which match the code, kinds and data of today.

To find it, no cell and no trial runs.
"""

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

from lab.trials import cells, code
from lab.trials.state import State

OTHER_CLAIMS = "other claims"  # this change alone does not make a run older


@dataclass
class Status:
    """The recorded rows of one trial by their status.

    Fresh rows were made by today's code, kinds and data. Accepted rows were made by others, from
    which one of the accepted `changes` leads to today's. All other rows are stale.
    """

    trial: str
    state: State
    changes: list
    fresh: list = field(default_factory=list)
    accepted: list = field(default_factory=list)
    stale: list = field(default_factory=list)

    @property
    def counting(self):
        """The valid rows: fresh and accepted ones."""
        return self.fresh + self.accepted

    def stale_by_code(self):
        """{code hash: the stale bodies that this code made}."""
        found = {}
        for body in self.stale:
            found.setdefault(body["code"], []).append(body)
        return found

    def changed(self, bodies=None):
        """The sorted names of code parts, kinds and data that changed since these bodies ran.

        Without `bodies`, all stale rows are taken.
        """
        found = {body["code"]: body for body in (self.stale if bodies is None else bodies)}
        return sorted({name for body in found.values() for name in self.state.differences(body)})


@contextmanager
def of_record(notebook, bodies, accepted, data_hash, more=()):
    """Yield (module of the notebook's trials, [Status] of each trial).

    The trials are those of `bodies` and those named in `more`. `accepted` is the list of changes of
    a record's `File`.
    """
    names = sorted({body["trial"] for body in bodies} | set(more))
    with cells.as_module(notebook, names) as module:
        kind_hash = lru_cache(code.kind_hash)
        found = []
        for name in names:
            changes = [change for change in accepted if change["accepted"] == name]
            found.append(Status(name, State(_code(module, name), kind_hash, data_hash), changes))
        by_name = {each.trial: each for each in found}
        for body in bodies:
            each = by_name[body["trial"]]
            if each.state.agrees(body):
                each.fresh.append(body)
            elif each.state.accepts(body, each.changes):
                each.accepted.append(body)
            else:
                each.stale.append(body)
        yield module, found


def _code(module, name):
    """The `Code` of a trial.

    The `Code` is empty, and so all rows are stale, where the trial is gone or its code cannot be
    found.
    """
    try:
        return code.code_of(getattr(module, name))
    except (AttributeError, code.ImpureTrial):
        return code.Code()


def changes_of_run(run, found, data_hash, *, ledger, cells):
    """The changes since a published run, in words: text, cells, claims and code.

    `run` is its run.json, `found` the `Status` of its trials, and `ledger` and `cells` are the
    hashes of its claims and cells now.
    """
    counts, kinds = {each.trial: {each.state.code.digest} for each in found}, set()
    for each in found:
        for change in each.changes:
            if change["new"]["code"] == each.state.code.digest:
                counts[each.trial].add(change["old"]["code"])
                kinds |= change["old"]["kinds"].items()
    trials = run.get("record", {}).get("trials", {})
    changed = [name for name, made in trials.items() if made["code"] not in counts.get(name, ())]
    changed += [
        name for name, was in run.get("kinds", {}).items() - kinds if code.kind_hash(name) != was
    ]
    corpus = f"corpus {run['parameters'].get('corpus', '')}".strip()
    text = data_hash(corpus) if run.get("corpus") else None
    now = {"corpus": text, "cells": cells, "ledger": ledger}
    words = {"corpus": "another text", "cells": "other cells", "ledger": OTHER_CLAIMS}
    said = [words[name] for name, value in now.items() if run.get(name) not in (None, "", value)]
    return said + ([f"older code: {shortened(sorted(changed))}"] if changed else [])


def shortened(names, most=4):
    """The first `most` names, and the number of further ones."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
