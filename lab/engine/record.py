"""The record: finished trials that travel with the repository, a file of JSON lines for each notebook.

results/record/NN_slug.jsonl holds, sorted by what they say: a line for each run that recorded (machine, arithmetic,
versions, clean commit, date), one for each state of a trial's code (its definitions), one for each change that was
accepted because it moves no digit, and a line for each trial. It diffs and merges by line.
"""

import json
from functools import cached_property
from pathlib import Path

from lab.engine import runs, store

LABELS = ("machine", "arithmetic", "device", "threads", "torch", "python", "commit", "date")
DIGITS = ("n", "columns", "curve", "batch")  # what two runs of one trial must agree on
KINDS = ("run", "code", "accepted", "trial")  # of lines, by their first word


class Contradiction(ValueError):
    """Two lines of the record give one trial different digits."""


def digits(body):
    """The numbers of a finished trial as text, to be compared with those of another run of it."""
    return store.encoded([body.get(name) for name in DIGITS])


class File:
    """The lines of one file: runs {id: labels}, codes {hash: parts}, accepted [change], trials [body]."""

    def __init__(self, path):
        self.path, self.runs, self.codes, self.accepted, self.trials = Path(path), {}, {}, [], []
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
            elif kind == "accepted":
                self.accepted += [entry] if entry not in self.accepted else []
            else:
                getattr(self, f"{kind}s")[entry[kind]] = {k: v for k, v in entry.items() if k != kind}

    def write(self):
        """Write the file in one step, without the runs, codes and changes that none of its trials needs."""
        codes_used = {body["code"] for body in self.trials}
        made = {(body["trial"], body["code"]) for body in self.trials}
        self.accepted = [each for each in self.accepted if (each["accepted"], each["old"]["code"]) in made]
        runs_used = {each["run"] for each in (*self.trials, *self.accepted)}
        lines = [{"run": name} | self.runs[name] for name in sorted(runs_used)]
        lines += [{"code": name} | self.codes[name] for name in sorted(codes_used) if name in self.codes]
        lines += sorted(self.accepted, key=store.canonical)
        lines += sorted(self.trials, key=lambda body: (body["trial"], store.canonical(body["parameters"])))
        runs.write_text(self.path, "".join(f"{store.encoded(line)}\n" for line in lines))

    def add_run(self, labels):
        """The id of a run with these labels, known from here on."""
        name = store.key(labels)[:8]
        self.runs[name] = labels
        return name


def seconds(path):
    """What the trials in a file took when they ran, on one core each; 0 where there is no file."""
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    return sum(json.loads(line).get("seconds", 0) for line in lines)


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
        """{(trial, parameters): [(body, changes that its file accepts of this trial)]}."""
        known = {}
        for file in self.files:
            for body in file.trials:
                accepted = [each for each in file.accepted if each["accepted"] == body["trial"]]
                key = body["trial"], store.canonical(body["parameters"])
                known.setdefault(key, []).append((body, accepted))
        return known

    def find(self, trial, parameters, state):
        """The recorded body of a trial under the code, kinds and data of a `State`, or None.

        One that counts since a change was accepted has this code, and says so in its labels.
        """
        known = self._known.get((trial, store.canonical(parameters)), ())
        for body, _ in known:
            if state.agrees(body):
                return body
        for body, accepted in known:
            if change := state.accepts(body, accepted):
                return body | {"code": state.code, "labels": body["labels"] | {"accepted": change["why"]}}
        return None

    def earlier(self, trial, parameters):
        """A body of the trial whose code or data is not today's: what it took, and what it was made of."""
        return next((body for body, _ in self._known.get((trial, store.canonical(parameters)), ())), None)

    def of(self, trial, notebook=""):
        """All bodies of a trial, or those that a notebook (its stem) recorded: another may have one of that name."""
        files = [file for file in self.files if notebook in ("", file.path.stem)]
        return [body for file in files for body in file.trials if body["trial"] == trial]


class State:
    """Code, kinds and data as they are now; a body agrees where it was made of the same."""

    def __init__(self, code, kind_hash, data_hash):
        self.code, self.kind_hash, self.data_hash = code, kind_hash, data_hash

    def agrees(self, body):
        """Whether the body was made by this code, with these kinds and data."""
        return body["code"] == self.code and not any(self._changed(body).values())

    def accepts(self, body, accepted):
        """The change among those accepted that leads from what made the body to what is there now, or None."""
        changed = self._changed(body)
        for each in accepted:
            old, new = each["old"], each["new"]
            if (old["code"], new["code"]) == (body["code"], self.code) and all(
                old[part].get(name) == body[part][name] and new[part].get(name) == now
                for part in changed
                for name, now in changed[part].items()
            ):
                return each
        return None

    def _changed(self, body):
        """{"kinds" and "data": {name: its hash now}} of those that are not what the body was made of."""
        now = {"kinds": self.kind_hash, "data": self.data_hash}
        return {part: {name: hash_now for name, was in body[part].items() if (hash_now := now[part](name)) != was}
                for part in now}  # fmt: skip

    def differences(self, body, parts):
        """Names of the definitions, kinds and data that are not what the body was made of, wherever they stand."""
        was, now = _by_name(body["parts"]), _by_name(parts)
        own = {(was | now)[each] for each in was.keys() ^ now.keys()}
        return sorted(own) + sorted(name for part in self._changed(body).values() for name in part)


def _by_name(parts):
    """{(name, hash): where it stands} of definitions; of a notebook's own the name says it."""
    names = {label: label.rpartition(".")[2] for label in parts}
    return {(names[label], tree): label if label.startswith("lab.") else names[label] for label, tree in parts.items()}
