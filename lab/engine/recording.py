"""Writing the record: rows of finished runs, and certificates that carry rows over a change which moves no digit."""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from lab.engine import provenance, runs, store
from lab.engine.record import File, adapted, digits

KEPT = ("trial", "parameters", "n", "columns", "curve", "batch", "seconds", "code", "kinds", "data")


class CannotRecord(ValueError):
    """Rows that may not enter the record; the message says why and what to do."""


def record_run(folder, trials, path, *, because=""):
    """Write the trials of the finished run in `folder`, kept in the store `trials`, to the record file at `path`.

    Rows of the same trials stay, those made by other code go; a row whose commit is not in this repository gets the
    labels of the run that agrees with it in every digit. Returns {"new", "same", "replaced", "dropped"} counts.
    CannotRecord where the run is none of this machine's or was made beside a commit, where a trial read a file outside
    the project, or where a valid row would get other digits and `because` does not say why.
    """
    run, file = runs.read_run(folder), File(path)
    if run is None or "record" not in run:
        raise CannotRecord(f"{runs.shown(folder)} holds no finished run: `lab run` comes first")
    if run["changes"] is not False:
        raise CannotRecord(f"{runs.shown(folder)} was not made by a commit alone: commit, run, record")
    known, count = {_name(body): body for body in file.trials}, dict.fromkeys(("new", "same", "replaced", "dropped"), 0)
    states = run["record"]["trials"]
    today = {}
    for name, state in states.items():
        for key in state["keys"]:
            body = store.read(Path(trials) / name, key)
            if body is None:
                raise CannotRecord(f"the store lacks a trial of {name}: run again")
            if outside := [each for each in body["data"] if os.path.isabs(each.removeprefix("corpus ").strip() or "")]:
                raise CannotRecord(f"{name} read {', '.join(outside)}: what is recorded lies in the project")
            today[_name(body)] = body
    for name, body in today.items():
        earlier = known.pop(name, None)
        valid = earlier and all(earlier[part] == body[part] for part in ("code", "kinds", "data"))
        same = valid and digits(earlier) == digits(body)
        if same and provenance.is_here(file.runs[earlier["run"]]["commit"]):
            known[name] = earlier
            count["same"] += 1
            continue
        if valid and not same and not because:
            raise CannotRecord(f"{name}: other digits than recorded; --because says why they replace them")
        count["same" if same else "replaced" if earlier else "new"] += 1
        labels = {"machine": run["machine"], "arithmetic": body["arithmetic"], "device": body["device"],
                  "threads": body["threads"], "torch": body["torch"], "python": run["versions"]["python"],
                  "commit": run["commit"], "date": datetime.now(UTC).date().isoformat()}  # fmt: skip
        labels |= {"because": because} if valid and not same else {}
        known[name] = {part: body[part] for part in KEPT} | {"run": file.add_run(labels)}
        file.codes[body["code"]] = {"parts": body["parts"]}
    certified = {(c["certificate"], c["old"]["code"], c["new"]["code"]) for c in file.certificates}
    file.trials = [
        body
        for body in known.values()
        if (state := states.get(body["trial"]))
        and (body["code"] == state["code"] or (body["trial"], body["code"], state["code"]) in certified)
    ]
    count["dropped"] = len(known) - len(file.trials)
    file.certificates = [c for c in file.certificates if c["new"]["code"] in {s["code"] for s in states.values()}]
    file.write()
    return count


def _name(body):
    return store.canonical([body["trial"], body["parameters"]])


# Carrying rows over a change


def sample_of(bodies):
    """Some of the bodies of a trial, so that every value of every parameter stands in one of them at least."""
    chosen, seen = [], set()
    for body in sorted(bodies, key=lambda body: body["seconds"]):
        values = {(name, store.canonical(value)) for name, value in body["parameters"].items()}
        if values - seen:
            chosen.append(body)
            seen |= values
    return chosen


def carry(notebook, path, *, renamed=None):
    """Certify that the stale rows of a notebook's record keep their digits; returns {trial: rows carried}.

    A sample of each stale state runs at the commit that recorded it and as the code is now, both here, and all digits
    must agree. `renamed` maps old names of parameters to new ones; parameters that are new have their defaults.
    CannotRecord where a digit moves, naming the trial, or where code now is not that of a commit.
    """
    file, now, renamed = File(path), provenance.commit(), renamed or {}
    if now["changes"] is not False:
        raise CannotRecord("what is carried is carried to a commit: commit first")
    stale = {}
    for body in file.trials:
        labels = file.runs[body["run"]]
        stale.setdefault((labels["commit"], body["trial"], body["code"]), []).append(body)
    carried, made = {}, []
    for commit in sorted({commit for commit, *_ in stale} - {now["commit"]}):
        groups = {(trial, code): bodies for (made_at, trial, code), bodies in stale.items() if made_at == commit}
        sample = {}
        for (trial, _), bodies in groups.items():
            sample.setdefault(trial, []).extend(body["parameters"] for body in sample_of(bodies))
        after = {trial: [adapted(point, {"renamed": renamed}) for point in points] for trial, points in sample.items()}
        with checkout(commit) as earlier:
            old = run_sample(earlier, notebook, sample)
        new = run_sample(runs.project_root(), notebook, after, renamed)
        for (trial, code), bodies in groups.items():
            certificates = _certificates(trial, code, old, new, renamed, now["commit"])
            carried[trial] = carried.get(trial, 0) + len(bodies) * len(certificates)
            made += certificates
    states = {(c["certificate"], c["old"]["code"]) for c in made}
    file.certificates = [c for c in file.certificates if (c["certificate"], c["old"]["code"]) not in states]
    for each in made:
        parts = each.pop("parts")
        each["run"] = file.add_run(each.pop("labels"))
        file.certificates.append(each)
        file.codes[each["new"]["code"]] = {"parts": parts}
    file.write()
    return carried


def _certificates(trial, code, old, new, renamed, commit):
    found = []
    for before in (body for body in old.get(trial, ()) if body["code"] == code):
        point = adapted(before["parameters"], {"renamed": renamed})
        matches = [b for b in new.get(trial, ()) if point.items() <= b["parameters"].items()]
        if len(matches) != 1:
            raise CannotRecord(f"{trial} {store.canonical(point)} did not run as the code is now")
        (after,) = matches
        if digits(before) != digits(after):
            raise CannotRecord(f"{trial} {store.canonical(point)} has other digits now: run it anew and record that")
        found.append((before, after))
    if not found:
        raise CannotRecord(f"{trial} did not run at {commit}")
    before, after = ({"code": side[0]["code"], "kinds": {n: h for body in side for n, h in body["kinds"].items()}}
                     for side in zip(*found, strict=True))  # fmt: skip
    if before == after:
        return []  # the rows are valid as they are
    body = found[0][1]
    earlier = adapted(found[0][0]["parameters"], {"renamed": renamed})
    defaults = {n: v for n, v in body["parameters"].items() if n not in earlier}
    labels = {"machine": provenance.machine()["machine"], "arithmetic": body["arithmetic"], "commit": commit,
              "date": datetime.now(UTC).date().isoformat()}  # fmt: skip
    certificate = {"certificate": trial, "old": before, "new": after, "sample": len(found)}
    options = {"renamed": renamed, "defaults": defaults}
    return [certificate | {n: v for n, v in options.items() if v} | {"labels": labels, "parts": body["parts"]}]


@contextmanager
def checkout(commit):
    """A working tree of the project at a commit, which vanishes afterwards."""
    git = ["git", "-C", str(runs.project_root()), "worktree"]
    with tempfile.TemporaryDirectory(prefix="lab-carry-") as folder:
        place = Path(folder) / "project"
        done = subprocess.run([*git, "add", "--detach", str(place), commit], capture_output=True, text=True)
        if done.returncode:
            raise CannotRecord(f"commit {commit} is not here: {done.stderr.strip()}")
        try:
            yield place
        finally:
            subprocess.run([*git, "remove", "--force", str(place)], capture_output=True)


def run_sample(root, notebook, sample, renamed=None):
    """{trial: bodies} of the sampled points, run by the project at `root`; all else its record gives, stale or not."""
    with tempfile.TemporaryDirectory(prefix="lab-sample-") as folder:
        points = Path(folder) / "sample.json"
        points.write_text(json.dumps({"points": sample, "renamed": renamed or {}}))
        command = [sys.executable, "-m", "lab.cli", "run", notebook.stem, "--results", folder, "--check", "0"]
        command += ["--sample", str(points), "--record", str(root / "results" / "record")]
        done = subprocess.run(
            command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True
        )
        bodies = {trial: [_read(path) for path in Path(folder).glob(f".trials/{trial}/*.json")] for trial in sample}
        if done.returncode and not all(len(bodies[trial]) >= len(points) for trial, points in sample.items()):
            raise CannotRecord(f"the sample did not run at {root}:\n{done.stderr[-2000:]}")
        return bodies


def _read(path):
    return store.read(path.parent, path.stem)
