"""Writing the record: rows of finished runs, and accepted changes of code that alter no digit."""

import os

from lab import files
from lab.trials import place, status, verify, workers
from lab.trials.rows import canonical, key
from lab.trials.store import File, digits, name_of


class CannotRecord(files.Refused):
    """Raised for rows that may not enter the record; the message says why and what to do."""


def record_run(notebook, folder, stored, path, data_hash):
    """Write the trials of the finished run in `folder` to the record file `path`.

    The rows are read from the store file `stored`. Returns the counts {"new", "same", "replaced",
    "dropped"}. Recorded rows that are valid for today's code stay, and all others are dropped. If
    the commit of a row is not in this repository and the new run has equal digits, the row gets the
    labels of the new run.

    Raises CannotRecord where there is no finished run, where files differed from the commit of the
    run, where a trial read a file outside the project, or where a valid row would get other digits.
    """
    run = files.read_run(folder)
    if run is None or "record" not in run:
        raise CannotRecord(f"{files.shown(folder)} holds no finished run: `lab run` comes first")
    if run["changes"] is not False:
        raise CannotRecord(
            f"{files.shown(folder)} was not made by a commit alone: "
            "commit your changes, run again and record that run"
        )
    file = File(path, strict=True)
    known = {name_of(body): body for body in file.trials}
    count = dict.fromkeys(("new", "same", "replaced", "dropped"), 0)
    for body in rows_of(run, File(stored)):
        if outside := [
            name for name in body["data"] if os.path.isabs(name.removeprefix("corpus ").strip())
        ]:
            raise CannotRecord(
                f"{body['trial']} read {', '.join(outside)}: "
                "a recorded trial may only read files of the project"
            )
        name = name_of(body)
        earlier = known.get(name)
        valid = earlier and all(earlier[part] == body[part] for part in ("code", "kinds", "data"))
        same = valid and digits(earlier) == digits(body)
        if valid and not same and earlier["labels"]["arithmetic"] == body["labels"]["arithmetic"]:
            raise CannotRecord(
                f"{name}: other digits than recorded; delete the recorded row to replace it"
            )
        if same and files.is_here(earlier["labels"]["commit"]):
            count["same"] += 1
            continue
        count["same" if same else "replaced" if earlier else "new"] += 1
        known[name] = body | {"labels": body["labels"] | {"commit": run["commit"]}}
    with status.of_record(notebook, known.values(), file.accepted, data_hash) as (_, found):
        counting = [body for each in found for body in each.counting]
    count["dropped"] = len(known) - len(counting)
    file.rewrite(counting)
    return count


def rows_of(run, stored):
    """The bodies of the trials of a run that this machine ran, from the store file `stored`.

    Raises CannotRecord where the store lacks one.
    """
    by_name = {
        (body["trial"], key(body["parameters"]), body["code"]): body for body in stored.trials
    }
    found = []
    for trial, used in run["record"]["trials"].items():
        for point in used["points"]:
            if (trial, point, used["code"]) not in by_name:
                raise CannotRecord(f"the store lacks a trial of {trial}: run again")
            found.append(by_name[trial, point, used["code"]])
    return found


# Accepting a change that alters no digit


def accept(notebook, path, why, *, data_hash, jobs=1, report=lambda said: None):
    """Make stale rows of a notebook's record at `path` valid if today's code gives their digits.

    Returns ({trial: number of rows made valid}, [differences in words]). Where a row of some code
    differs, all rows of that code stay stale.

    A sample of the rows of each trial runs here once: for every setting of the parameters that are
    no numbers, the row that took the least time. On the arithmetic that recorded a row all digits
    are compared, on another one only the start of its training. Where all rows of the sample agree,
    a line in the file says which change was accepted, after how many checks, and why. Files may
    differ from the commit.
    """
    file, counted, faults = File(path), {}, []
    with status.of_record(notebook, file.trials, file.accepted, data_hash) as (module, found):
        for each in found:
            for bodies in each.stale_by_code().values():
                sample = sample_of(bodies)
                seconds = sum(body["seconds"] for body in sample)
                report(f"{each.trial}: {len(sample)} checks, {seconds:.0f} s when recorded")
                results = checked(each, module, sample, jobs)
                differing = [str(result) for result in results if result.differs]
                if differing:
                    faults += differing[:1]
                    continue
                code = bodies[0]["code"]
                others = [body for body in each.accepted if body["code"] == code]
                # One line for each old code: it also keeps the rows accepted before.
                old, new = each.state.sides(bodies + others)
                line = {
                    "accepted": each.trial,
                    "old": old,
                    "new": new,
                    "changed": each.changed(bodies),
                }
                line["checked"] = len(results)
                line["compared"] = ", ".join(sorted({result.found for result in results}))
                file.add_accepted(line | {"why": why}, who(bodies))
                counted[each.trial] = counted.get(each.trial, 0) + len(bodies)
    file.rewrite(file.trials)
    return counted, faults


def sample_of(bodies):
    """For every setting of the parameters that are no numbers, the body with the least seconds."""
    cheapest = {}
    for body in sorted(bodies, key=lambda body: body["seconds"]):
        words = {name: value for name, value in body["parameters"].items() if not _is_number(value)}
        cheapest.setdefault(canonical(words), body)
    return list(cheapest.values())


def _is_number(value):
    listed = value if isinstance(value, list) else [value]
    return all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in listed)


def checked(each, module, sample, jobs):
    """[verify.Result] of the sampled rows of one trial, run here or by `jobs` local workers."""
    try:
        trial = verify.function(module, sample[0])
    except Exception as error:
        said = f"cannot be run apart from its notebook: {type(error).__name__}: {error}"
        return [verify.Result(each.trial, sample[0]["parameters"], said, differs=True)]
    if min(jobs, len(sample)) < 2:
        return [verify.of_trial(trial, body) for body in sample]
    bodies = {name_of(body): body for body in sample}
    with workers.local(jobs) as client:
        outcomes = workers.run(client, verify.run_again, trial, each.state.code, bodies)
        return [verify.result_of(bodies[name], outcome) for name, outcome in outcomes]


def who(bodies):
    """Labels of a check that runs now: place, commit, and whether the code differs from it."""
    threads = bodies[0]["labels"]["threads"]
    return place.labels(place.here("cpu", threads), threads) | files.commit()
