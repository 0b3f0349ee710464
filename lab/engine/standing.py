"""How the record and the committed runs stand to code, kinds and data as they are now. No cell and no trial runs."""

import importlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

from lab.engine import cells, fingerprint
from lab.engine.record import State


@dataclass
class Standing:
    """The recorded rows of one trial: those made by what is there now, those that count since a change was accepted,
    and those that are stale. `parts` are the definitions that the trial leads to now, `changes` what was accepted.
    """

    trial: str
    state: State
    parts: dict
    fresh: list = field(default_factory=list)
    accepted: list = field(default_factory=list)
    stale: list = field(default_factory=list)
    changes: list = field(default_factory=list)

    def stale_by_code(self):
        """{code: stale bodies that it made}."""
        found = {}
        for body in self.stale:
            found.setdefault(body["code"], []).append(body)
        return found

    def changed(self, bodies=None):
        """Names of the definitions, kinds and data that are not what made these bodies, or all stale ones."""
        found = {body["code"]: body for body in (self.stale if bodies is None else bodies)}
        return sorted({name for body in found.values() for name in self.state.differences(body, self.parts)})

    def sides(self, bodies):
        """What made the bodies, and what is there now: {"code", "kinds", "data"} of both."""
        old, new = {"code": bodies[0]["code"]}, {"code": self.state.code}
        for part, now in (("kinds", self.state.kind_hash), ("data", self.state.data_hash)):
            old[part] = {name: value for body in bodies for name, value in body[part].items()}
            new[part] = {name: now(name) for name in old[part]}
        return old, new


@contextmanager
def standings(notebook, file, data_hash, more=()):
    """(a module of the notebook's trials, [Standing] of those in a record's `File` and of those named in `more`)."""
    names, own = sorted({body["trial"] for body in file.trials} | set(more)), cells.own_kinds(notebook)
    with cells.as_module(notebook, [*names, *own]) as module:
        codes = {name: _code(module, name) for name in names}
        for part in sorted({label.rpartition(".")[0] for code in codes.values() for label in code.parts}):
            if part.startswith("lab."):
                importlib.import_module(part)  # which registers its kinds
        if own:
            importlib.import_module(module)
        kind_hash = lru_cache(fingerprint.kind_hash)
        found = [Standing(name, State(code.digest, kind_hash, data_hash), code.parts) for name, code in codes.items()]
        for each in found:
            each.changes = [change for change in file.accepted if change["accepted"] == each.trial]
            for body in (body for body in file.trials if body["trial"] == each.trial):
                labels, parts = file.runs[body["run"]], file.codes.get(body["code"], {}).get("parts", {})
                whole = body | {"labels": labels, "parts": parts, "arithmetic": labels["arithmetic"]}
                if each.state.agrees(body):
                    each.fresh.append(whole)
                elif each.state.accepts(body, each.changes):
                    each.accepted.append(whole)
                else:
                    each.stale.append(whole)
        yield module, found


def _code(module, name):
    """The code of a trial; none where it is gone, or can no longer be followed: then all its rows are stale."""
    try:
        return fingerprint.code_named(module, name)
    except fingerprint.ImpureTrial:
        return fingerprint.Code()


@dataclass(frozen=True)
class Run:
    """A committed run beside what is there now: `changed` names what its trials rest on that is not as it was then.

    corpus, ledger, cells: whether its text, its claims and its code cells are today's; None where it does not say.
    """

    commit: str
    changed: tuple
    corpus: bool | None
    ledger: bool | None
    cells: bool | None

    @property
    def older(self):
        """Whether older code made it, or another text."""
        return bool(self.changed) or False in (self.corpus, self.cells)


def of_run(run, found, data_hash, *, ledger, cells):
    """The `Run` that a run.json tells of, by the standings of its trials and the hashes of its claims and cells now."""
    counts, kinds = {each.trial: {each.state.code} for each in found}, set()
    for each in found:
        for change in each.changes:
            if change["new"]["code"] == each.state.code:
                counts[each.trial].add(change["old"]["code"])
                kinds |= change["old"]["kinds"].items()
    trials = run.get("record", {}).get("trials")
    changed = [name for name, made in (trials or {}).items() if made["code"] not in counts.get(name, ())]
    if trials is None:
        changed = ["a run from before trials were recorded"]
    kind_hash = found[0].state.kind_hash if found else fingerprint.kind_hash
    made_of = run.get("kinds", {}).items() - kinds
    changed += [name for name, was in made_of if kind_hash(name) != was]
    corpus = data_hash(_corpus_name(run)) if run.get("corpus") else None
    now = {"corpus": corpus, "ledger": ledger, "cells": cells}
    same = {name: run[name] == value if run.get(name) else None for name, value in now.items()}
    return Run(run.get("commit", ""), tuple(sorted(changed)), **same)


def _corpus_name(run):
    """The corpus of a run as trials report it."""
    return f"corpus {run['parameters'].get('corpus', '')}".strip()
