"""How the record and the published runs stand to code, kinds and data as they are now.

No cell and no trial runs.
"""

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

from lab.trials import cells, code
from lab.trials.state import State

OTHER_CLAIMS = "other claims"  # no run is older for that


@dataclass
class Status:
    """The recorded rows of one trial: those made by what is there now, those that count since a
    change was accepted, and those that are stale. `changes` are those that were accepted.
    """

    trial: str
    state: State
    changes: list
    fresh: list = field(default_factory=list)
    accepted: list = field(default_factory=list)
    stale: list = field(default_factory=list)

    @property
    def counting(self):
        return self.fresh + self.accepted

    def stale_by_code(self):
        """{code: stale bodies that it made}."""
        found = {}
        for body in self.stale:
            found.setdefault(body["code"], []).append(body)
        return found

    def changed(self, bodies=None):
        """Names of the parts of code, kinds and data that are not what made these bodies, or all
        stale ones.
        """
        found = {body["code"]: body for body in (self.stale if bodies is None else bodies)}
        return sorted({name for body in found.values() for name in self.state.differences(body)})


@contextmanager
def of_record(notebook, bodies, accepted, data_hash, more=()):
    """(a module of the notebook's trials, [Status] of those that gave the bodies and of those named
    in `more`).

    `accepted` are changes, as a record's `File` has them.
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
    """The code of a trial; none where it is gone, or can no longer be followed: then all its rows
    are stale.
    """
    try:
        return code.code_of(getattr(module, name))
    except (AttributeError, code.ImpureTrial):
        return code.Code()


def changes_of_run(run, found, data_hash, *, ledger, cells):
    """What a published run was made of and is another now, in words, by its run.json, the `Status`
    of its trials, and the hashes of its claims and cells now.
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
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
