"""Finished trials as JSON lines, a file for each notebook: this machine's in results/.trials, the
published ones in results/record, both in one format.

    {"run": id, machine, arithmetic, device, threads, torch, python, commit, date}      who ran trials
    {"code": hash, "parts": {name: hash}}                                               a state of a trial's code
    {"accepted": trial, "old": state, "new": state, "why": …, "run": id}                a change that moves no digit
    {"trial": name, "parameters": …, "n", "columns", "curve", "batch", "seconds",
     "code": hash, "kinds": {name: hash}, "data": {name: hash}, "run": id}              a finished trial

In `columns` a list has an entry for each row, anything else holds for all of them. A line is
appended as its trial ends. One that was cut by a kill is named and left out, and its trial runs
again. The lines of a record are sorted, so that it diffs and merges by line.
"""

import json
import warnings
from pathlib import Path

from filelock import FileLock

from lab.trials.rows import canonical, encoded, key
from lab.trials.runs import replacing

LINES = ("run", "code", "accepted", "trial")  # by the first word of a line
DIGITS = ("n", "columns", "curve", "batch")  # what two runs of one trial must agree on
MADE_OF = ("code", "kinds", "data")
BODY = ("trial", "parameters", "n", "columns", "curve", "batch", "seconds", "code", "kinds", "data")


class Contradiction(ValueError):
    """Two lines give one trial different digits, on the same arithmetic with as many threads."""


def digits(body):
    """The numbers of a finished trial as text, to be compared with those of another run of it."""
    return encoded([body.get(name) for name in DIGITS])


def name_of(body):
    """The trial and its parameters, as one text."""
    return canonical([body["trial"], body["parameters"]])


class File:
    """The lines of one file: runs {id: labels}, codes {hash: parts}, accepted [change], trials
    [body].

    Each body has its labels and the parts of its code, which stand in lines of their own. Of two
    lines of one trial, the same in code, kinds, data, arithmetic and threads, the later counts;
    with `strict` they must agree in digits.
    """

    def __init__(self, path, strict=False):
        self.path = Path(path)
        self.runs, self.codes, self.accepted, self._bodies = {}, {}, [], {}
        text = self.path.read_text("utf-8", errors="replace") if self.path.exists() else ""
        read, damaged = [], []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                entry = json.loads(line)
                read.append((LINES.index(next(iter(entry))), number, entry))
            except (ValueError, StopIteration, TypeError):
                damaged.append(number)
        for kind, number, entry in sorted(
            read, key=lambda line: line[:2]
        ):  # runs and codes before their trials
            try:
                self._add(LINES[kind], entry, strict)
            except Contradiction as error:
                raise Contradiction(f"{self.path}, line {number}: {error}") from None
            except (KeyError, TypeError):
                damaged.append(number)
        if damaged:
            told = (
                f"line {', '.join(map(str, sorted(damaged)[:5]))}{' and more' * (len(damaged) > 5)}"
            )
            warnings.warn(
                f"{self.path}, {told} is damaged; what it held is run again", stacklevel=2
            )

    def _add(self, kind, entry, strict=False):
        if kind in ("run", "code"):
            known = self.runs if kind == "run" else self.codes
            known[entry[kind]] = {name: value for name, value in entry.items() if name != kind}
        elif kind == "accepted":
            if entry not in self.accepted:
                self.accepted.append(entry)
        else:
            labels, parts = self.runs[entry["run"]], self.codes[entry["code"]]["parts"]
            made = [entry[each] for each in MADE_OF]
            identity = canonical([name_of(entry), made, labels["arithmetic"], labels["threads"]])
            known = self._bodies.get(identity)
            if strict and known and digits(known) != digits(entry):
                raise Contradiction(f"other digits for {entry['trial']} {entry['parameters']}")
            self._bodies[identity] = entry | {"labels": labels, "parts": parts}
            return self._bodies[identity]
        return None

    @property
    def trials(self):
        return list(self._bodies.values())

    def append(self, body, labels, parts):
        """Write a finished trial to the end of the file, and return it as it will be read.

        OSError names the path.
        """
        run = key(labels)[:8]
        entry = body | {"run": run}
        lines = []
        if run not in self.runs:
            lines.append({"run": run} | labels)
        if body["code"] not in self.codes:
            lines.append({"code": body["code"], "parts": parts})
        lines.append(entry)
        text = "".join(f"{encoded(line)}\n" for line in lines)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self.path}.lock"), self.path.open("ab+") as file:
                if file.seek(0, 2) and not _ends_a_line(
                    file
                ):  # what was killed here left half a line
                    text = f"\n{text}"
                file.write(text.encode())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        for entry in lines:
            read = json.loads(encoded(entry))
            added = self._add(next(iter(read)), read)
        return added

    def add_accepted(self, change, labels):
        """Let a change count, in place of an earlier one from the same code; `rewrite` writes it."""
        run = key(labels)[:8]
        self.runs[run] = labels
        place = change["accepted"], change["old"]["code"]
        self.accepted = [
            each for each in self.accepted if (each["accepted"], each["old"]["code"]) != place
        ]
        self.accepted.append(change | {"run": run})

    def rewrite(self, trials):
        """Write the file anew with these trials, sorted, in one step: without runs, codes and
        changes that none needs.

        A trial that is not in the file yet brings its labels and parts.
        """
        runs, codes = dict(self.runs), dict(self.codes)
        lines = []
        for body in trials:
            run = key(body["labels"])[:8]
            runs[run] = body["labels"]
            codes[body["code"]] = {"parts": body["parts"]}
            lines.append({name: body[name] for name in BODY} | {"run": run})
        lines.sort(key=lambda line: (line["trial"], canonical(line["parameters"])))
        made = {(line["trial"], line["code"]) for line in lines}
        accepted = [
            each for each in self.accepted if (each["accepted"], each["old"]["code"]) in made
        ]
        accepted.sort(key=canonical)
        runs_used = {line["run"] for line in (*lines, *accepted)}
        codes_used = {line["code"] for line in lines}
        head = [{"run": name} | runs[name] for name in sorted(runs_used)]
        head += [{"code": name} | codes[name] for name in sorted(codes_used)]
        with replacing(self.path) as temporary:
            temporary.write_text(
                "".join(f"{encoded(line)}\n" for line in (*head, *accepted, *lines)), "utf-8"
            )


def _ends_a_line(file):
    file.seek(-1, 2)
    return file.read(1) == b"\n"


def seconds(path):
    """What the trials in a file took when they ran, on one core each; 0 where there is no file."""
    return sum(body["seconds"] for body in File(path).trials)
