"""Files of finished trials: one file of JSON lines for each notebook.

The trials of this machine are in results/.trials, the published ones in results/record, in the same
format. A file has four kinds of lines: the labels of a run, the parts of a trial's code, a change
of code that was accepted because it alters no digit, and a finished trial.

    {"run": id, machine, arithmetic, device, threads, torch, python, commit, date}
    {"code": hash, "parts": {name: hash}}
    {"accepted": trial, "old": state, "new": state, "why": …, "run": id}
    {"trial": name, "parameters": …, "n", "columns", "curve", "batch", "seconds",
     "code": hash, "kinds": {name: hash}, "data": {name: hash}, "run": id}

In `columns` a list has an entry for each row, and any other value holds for all rows. A line is
appended when its trial ends. A line that was cut by a kill is reported and ignored, and its trial
runs again. The lines of a record are sorted, so that Git can diff and merge it line by line.
"""

import json
import warnings
from pathlib import Path

from filelock import FileLock

from lab.files import replacing
from lab.trials.rows import canonical, encoded, key

LINES = ("run", "code", "accepted", "trial")  # the kinds of lines: the first key of each
DIGITS = ("n", "columns", "curve", "batch")  # the parts that two runs of one trial must agree on
MADE_OF = ("code", "kinds", "data")
BODY = ("trial", "parameters", "n", "columns", "curve", "batch", "seconds", "code", "kinds", "data")


class Contradiction(ValueError):
    """Raised where two lines give one trial different digits, at equal arithmetic and threads."""


def digits(body):
    """The numbers of a finished trial as one text, to compare with another run of the trial."""
    return encoded([body.get(name) for name in DIGITS])


def name_of(body):
    """The trial and its parameters, as one text."""
    return canonical([body["trial"], body["parameters"]])


class File:
    """The lines of one file of trials.

    runs      {id: labels}
    codes     {hash: {"parts": {name: hash}}}
    accepted  [change]
    trials    [body]

    A body is the dict of a finished trial, with the labels of its run and the parts of its code
    from their own lines. Of two lines with the same trial, code, kinds, data, arithmetic and
    threads, the later one is used. Damaged lines are ignored with a warning. Raises Contradiction
    where `strict` is set and the digits of such lines differ.
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
        read.sort(key=lambda line: line[:2])  # runs and codes come before their trials
        for kind, number, entry in read:
            try:
                self._add(LINES[kind], entry, strict)
            except Contradiction as error:
                raise Contradiction(f"{self.path}, line {number}: {error}") from None
            except (KeyError, TypeError):
                damaged.append(number)
        if damaged:
            lines = f"line {', '.join(map(str, sorted(damaged)[:5]))}"
            if len(damaged) > 5:
                lines += " and more"
            warnings.warn(f"{self.path}, {lines} is damaged; its trials run again", stacklevel=2)

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
        """The bodies of all finished trials in the file."""
        return list(self._bodies.values())

    def append(self, body, labels, parts):
        """Write a finished trial to the end of the file, and return the body as a reader gets it.

        Raises OSError with the path where the file cannot be written.
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
                # A killed process may have left half a line.
                if file.seek(0, 2) and not _ends_a_line(file):
                    text = f"\n{text}"
                file.write(text.encode())
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        for entry in lines:
            read = json.loads(encoded(entry))
            added = self._add(next(iter(read)), read)
        return added

    def add_accepted(self, change, labels):
        """Add an accepted change in place of an earlier one from the same code, without writing.

        `rewrite` writes it to the file.
        """
        run = key(labels)[:8]
        self.runs[run] = labels
        place = change["accepted"], change["old"]["code"]
        self.accepted = [
            each for each in self.accepted if (each["accepted"], each["old"]["code"]) != place
        ]
        self.accepted.append(change | {"run": run})

    def rewrite(self, trials):
        """Replace the file in one step by one with these trials, sorted.

        Runs, codes and changes that no trial needs are dropped. The body of a trial that is not in
        the file yet holds its labels and parts.
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
    """The seconds that all trials in a file took together on one core each; 0 without a file."""
    return sum(body["seconds"] for body in File(path).trials)
