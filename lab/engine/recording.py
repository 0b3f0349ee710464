"""Writing the record: rows of finished runs, and changes that are accepted because they move no digit."""

import os
from datetime import UTC, datetime
from pathlib import Path

from lab.engine import arithmetic, provenance, runs, standing, store, verify
from lab.engine.record import File, State, digits

KEPT = ("trial", "parameters", "n", "columns", "curve", "batch", "seconds", "code", "kinds", "data")


class CannotRecord(ValueError):
    """Rows that may not enter the record; the message says why and what to do."""


def record_run(folder, trials, path):
    """Write the trials of the finished run in `folder`, kept in the store `trials`, to the record file at `path`.

    Rows of the same trials stay, those made by other code or kinds go; a row whose commit is not in this repository
    gets the labels of the run that agrees with it in every digit. Returns counts: new, same, replaced, dropped.
    CannotRecord where the run is none of this machine's or was made beside a commit, where a trial read a file outside
    the project, or where a valid row would get other digits.
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
        if valid and not same:
            raise CannotRecord(f"{name}: other digits than recorded; delete the row to replace it")
        count["same" if same else "replaced" if earlier else "new"] += 1
        labels = {"machine": run["machine"], "arithmetic": body["arithmetic"], "device": body["device"],
                  "threads": body["threads"], "torch": body["torch"], "python": run["versions"]["python"],
                  "commit": run["commit"], "date": datetime.now(UTC).date().isoformat()}  # fmt: skip
        known[name] = {part: body[part] for part in KEPT} | {"run": file.add_run(labels)}
        file.codes[body["code"]] = {"parts": body["parts"]}
    kinds = run.get("kinds", {})

    def stands(body):
        """Whether a row counts by the code and the kinds of the run, or since a change was accepted."""
        if (state := states.get(body["trial"])) is None:
            return False
        now = State(state["code"], lambda name: kinds.get(name, body["kinds"].get(name)), body["data"].get)
        changes = [each for each in file.accepted if each["accepted"] == body["trial"]]
        return now.agrees(body) or now.accepts(body, changes) is not None

    file.trials = [body for body in known.values() if stands(body)]
    count["dropped"] = len(known) - len(file.trials)
    file.accepted = [each for each in file.accepted if each["new"]["code"] in {s["code"] for s in states.values()}]
    file.write()
    return count


def _name(body):
    return store.canonical([body["trial"], body["parameters"]])


# Accepting a change that moves no digit


def accept(notebook, path, why, *, data_hash, device="cpu", report=lambda said: None):
    """Let the stale rows of a notebook's record at `path` count where the code as it is gives their digits.

    Of each trial the cheapest stale row for every setting of its word-valued parameters runs here, once: on the
    arithmetic that recorded it all digits are compared, on another one the beginning of its training. Where all agree,
    a line in the file says which change was accepted, after how many checks, and why. Works beside a commit too.
    Returns ({trial: rows that count from now on}, [what does not agree, in words]): those rows stay stale.
    """
    file, counted, faults = File(path), {}, []
    with standing.standings(notebook, file, data_hash) as (module, found):
        for each in found:
            for code, bodies in each.stale_by_code().items():
                fault, checked = _check(each, module, sample_of(bodies), device, report)
                if fault:
                    faults.append(fault)
                    continue
                old, new = each.sides(bodies)
                about = {"old": old, "new": new, "changed": each.changed(bodies), **checked, "why": why}
                file.accepted = [a for a in file.accepted if (a["accepted"], a["old"]["code"]) != (each.trial, code)]
                file.accepted.append({"accepted": each.trial} | about | {"run": file.add_run(_who(device, bodies))})
                counted[each.trial] = counted.get(each.trial, 0) + len(bodies)
    file.write()
    return counted, faults


def sample_of(bodies):
    """The cheapest of the bodies for every setting of the parameters that are no numbers."""
    cheapest = {}
    for body in sorted(bodies, key=lambda body: body["seconds"]):
        words = {name: value for name, value in body["parameters"].items() if not _is_number(value)}
        cheapest.setdefault(store.canonical(words), body)
    return list(cheapest.values())


def _is_number(value):
    listed = value if isinstance(value, list) else [value]
    return all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in listed)


def _check(each, module, sample, device, report):
    """("" or what does not agree, {"checked", "compared"}) of the sampled rows of one trial, run here."""
    compared = set()
    for count, body in enumerate(sample, 1):
        report(f"{each.trial}: check {count} of {len(sample)}, {body['seconds']:.0f} s when recorded")
        try:
            trial = verify.function(module, body)
        except Exception as error:
            said = f"cannot be run apart from its notebook: {type(error).__name__}: {error}"
            return f"{each.trial} {store.canonical(body['parameters'])}: {said}", {}
        result = verify.of_trial(trial, body, device=device)
        if result.differs:
            return str(result), {}
        compared.add(result.found)
    return "", {"checked": len(sample), "compared": ", ".join(sorted(compared))}


def _who(device, bodies):
    """Labels of a check that runs now: where, on which commit, and whether the code differs from it."""
    here = provenance.machine()
    about = {"machine": here["machine"], "arithmetic": arithmetic.digest(device, bodies[0]["labels"]["threads"])}
    about |= {"device": device, "threads": bodies[0]["labels"]["threads"], "torch": here["versions"]["torch"]}
    about |= {"python": here["versions"]["python"], "date": datetime.now(UTC).date().isoformat()}
    return about | provenance.commit()
