"""The record: finished trials that travel with the repository, a file of JSON lines for each notebook.

results/record/NN_slug.jsonl holds, sorted by what they say: a line for each run that recorded (machine, arithmetic,
versions, clean commit, date), one for each state of a trial's code (its definitions), certificates that two states give
the same digits, and a line for each trial. It diffs and merges by line.
"""

import json
from functools import cached_property
from pathlib import Path

from lab.engine import runs, store

LABELS = ("machine", "arithmetic", "device", "threads", "torch", "python", "commit", "date")
DIGITS = ("n", "columns", "curve", "batch")  # what two runs of one trial must agree on
KINDS = ("run", "code", "certificate", "trial")  # of lines, by their first word


class Contradiction(ValueError):
    """Two lines of the record give one trial different digits."""


def digits(body):
    """The numbers of a finished trial as text, to be compared with those of another run of it."""
    return store.encoded([body.get(name) for name in DIGITS])


class File:
    """The lines of one file: runs {id: labels}, codes {hash: parts}, certificates, trials [body]."""

    def __init__(self, path):
        self.path, self.runs, self.codes, self.certificates, self.trials = Path(path), {}, {}, [], []
        known = {}
        text = self.path.read_text("utf-8") if self.path.exists() else ""
        for number, line in enumerate(text.splitlines(), 1):
            try:
                entry = json.loads(line)
                kind = KINDS[KINDS.index(next(iter(entry)))]
            except (ValueError, StopIteration, TypeError):
                raise ValueError(f"{self.path}, line {number}: no line of a record") from None
            if kind == "trial":
                name = store.canonical([entry[part] for part in ("trial", "parameters", "code", "kinds", "data")])
                if name not in known:
                    self.trials.append(entry)
                elif digits(known[name]) != digits(entry):
                    raise Contradiction(
                        f"{self.path}, line {number}: other digits for {entry['trial']} {entry['parameters']}"
                    )
                known.setdefault(name, entry)
            elif kind == "certificate":
                self.certificates += [entry] if entry not in self.certificates else []
            else:
                getattr(self, f"{kind}s")[entry[kind]] = {k: v for k, v in entry.items() if k != kind}

    def write(self):
        """Write the file in one step, without runs and codes that no trial or certificate names."""
        states = {each for c in self.certificates for each in (c["old"]["code"], c["new"]["code"])}
        runs_used = {body["run"] for body in self.trials} | {c["run"] for c in self.certificates}
        codes_used = {body["code"] for body in self.trials} | states
        lines = [{"run": name} | self.runs[name] for name in sorted(runs_used)]
        lines += [{"code": name} | self.codes[name] for name in sorted(codes_used) if name in self.codes]
        lines += sorted(self.certificates, key=store.canonical)
        lines += sorted(self.trials, key=lambda body: (body["trial"], store.canonical(body["parameters"])))
        runs.write_text(self.path, "".join(f"{store.encoded(line)}\n" for line in lines))

    def add_run(self, labels):
        """The id of a run with these labels, known from here on."""
        name = store.key(labels)[:8]
        self.runs[name] = labels
        return name


class Record:
    """All trials in the files of some folders, first folder first; read once, never written."""

    def __init__(self, folders):
        self.folders = [Path(folder) for folder in folders]

    @cached_property
    def files(self):
        found = [File(path) for folder in self.folders for path in sorted(folder.glob("*.jsonl"))]
        for file in found:
            for body in file.trials:
                body |= {"labels": file.runs[body["run"]], "parts": file.codes.get(body["code"], {}).get("parts", {})}
        return found

    @cached_property
    def _known(self):
        """{(trial, parameters): [(body, certificates of its file)]}, renamed and new parameters filled in."""
        known = {}
        for file in self.files:
            for body in file.trials:
                mine = [c for c in file.certificates if c["certificate"] == body["trial"]]
                points = [body["parameters"], *(adapted(body["parameters"], c) for c in mine)]
                for point in {store.canonical(point) for point in points}:
                    known.setdefault((body["trial"], point), []).append((body, mine))
        return known

    def find(self, trial, parameters, state):
        """The recorded body of a trial under the code, kinds and data of a `State`, or None."""
        for body, certificates in self._known.get((trial, store.canonical(parameters)), ()):
            if state.agrees(body, certificates):
                return body
        return None

    def earlier(self, trial, parameters):
        """A body of the trial whose code or data is not today's: what it took, and what it was made of."""
        return next((body for body, _ in self._known.get((trial, store.canonical(parameters)), ())), None)

    def like(self, trial, parameters, renamed):
        """A body of the trial whose parameters, renamed {old: new}, are among those given; whatever made it."""
        for body in self.of(trial):
            if adapted(body["parameters"], {"renamed": renamed}).items() <= parameters.items():
                return body
        return None

    def of(self, trial, notebook=""):
        """All bodies of a trial, or those that a notebook (its stem) recorded: another may have one of that name."""
        files = [file for file in self.files if notebook in ("", file.path.stem)]
        return [body for file in files for body in file.trials if body["trial"] == trial]


def adapted(parameters, certificate):
    """The parameters as they are called since a certificate: renamed, and new ones at their defaults."""
    renamed = certificate.get("renamed", {})
    return certificate.get("defaults", {}) | {renamed.get(name, name): value for name, value in parameters.items()}


class State:
    """Code, kinds and data as they are now; a body agrees where it was made of the same."""

    def __init__(self, code, kind_hash, data_hash):
        self.code, self.kind_hash, self.data_hash = code, kind_hash, data_hash

    def agrees(self, body, certificates=()):
        """Whether the body was made by this code, or by code that a certificate says gives the same digits."""
        if any(self.data_hash(name) != value for name, value in body["data"].items()):
            return False
        changed = {name: value for name, value in body["kinds"].items() if self.kind_hash(name) != value}
        if body["code"] == self.code and not changed:
            return True
        return any(
            (c["old"]["code"], c["new"]["code"]) == (body["code"], self.code)
            and all(c["old"]["kinds"].get(name) == value for name, value in changed.items())
            and all(c["new"]["kinds"].get(name) == self.kind_hash(name) for name in changed)
            for c in certificates
        )

    def differences(self, body, parts):
        """Names of the definitions, kinds and data that are not what the body was made of."""
        own = {name for name in parts.keys() | body["parts"].keys() if parts.get(name) != body["parts"].get(name)}
        kinds = {name for name, value in body["kinds"].items() if self.kind_hash(name) != value}
        data = {name for name, value in body["data"].items() if self.data_hash(name) != value}
        return sorted(own) + sorted(kinds) + sorted(data)
