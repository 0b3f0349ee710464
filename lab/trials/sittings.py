"""Timings: trials that read clocks, run in fresh processes, one after another.

All rounds of a process share effects of that process, such as its memory layout, so the sample is
the process. The speed of a machine also drifts. A sitting holds the timings made within an hour,
and the rows of a table come from the newest two sittings. Sittings are kept in separate files of
this machine's store and never in a record.
"""

import traceback
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing import get_context

from lab.device import available
from lab.trials import place, workers
from lab.trials.points import points_of
from lab.trials.rows import table
from lab.trials.run import run_trial
from lab.trials.sweep import Finished, TrialsFailed, keep, run_body, with_labels

FOLDER = "timings"  # a folder of the store
HOUR = timedelta(hours=1)
COUNT = 2  # the number of newest sittings in a table


def sweep(trial, grid, processes, *, sources, device="auto", threads=1, progress=None, used=None):
    """The rows of a trial that reads clocks, from `processes` fresh processes of each sitting.

    Returns a table like that of `sweep.sweep`, with two more columns: `repeat`, the number of the
    process, and `sitting`, the time at which the sitting began. Every process runs all points of
    the grid. Within an hour of the start of the newest sitting, that sitting is completed and used;
    later, the sweep adds a new one, unless `sources` allows only finished trials. `used` is a list
    that gets the bodies.

    Raises TrialsFailed at the first process that fails or is killed; finished trials are stored.
    """
    points, where = points_of(trial, grid), place.here(device, threads)
    apart = replace(sources, notebook=f"{FOLDER}/{sources.notebook}", record=[])
    known = Finished(trial, apart, where["arithmetic"], threads)
    sitting = now(sittings_of(known), sources.recorded_only)
    left = missing(known, points, processes, sitting)
    report, total = progress or (lambda done, total: None), processes * len(points)
    report(done := total - sum(map(len, left.values())), total)
    call = partial(run_trial, device=where["device"], threads=threads, timing=True)
    packed = workers.pack(trial, known.code.modules)
    for repeat, of_process in left.items():
        for point, outcome in in_a_fresh_process(call, packed, of_process):
            if "failed" in outcome:
                failure = point, outcome["failed"], outcome.get("traceback", "")
                raise TrialsFailed(trial.__name__, [failure], total)
            keep(known, at(point, sitting, repeat), outcome, where)
            report(done := done + 1, total)
    known = Finished(trial, apart, where["arithmetic"], threads)  # includes the new trials
    began = [each for each in sittings_of(known) if not missing(known, points, processes, each)]
    numbered, bodies = [], []
    for point in points:
        for number, sitting in enumerate(began[-COUNT:]):
            for repeat in range(processes):
                bodies.append(with_labels(known.find(at(point, sitting, repeat))[0]))
                numbered.append(at(point, sitting, number * processes + repeat))
    if used is not None:
        used += bodies
    return table(numbered, bodies)


def rehearsed(trial, grid, processes, *, device="auto", threads=1):
    """A table like that of `sweep`, from trials run in this process; its times mean nothing."""
    numbered, bodies, sitting = [], [], now([])
    for repeat in range(processes):
        for point in points_of(trial, grid):
            bodies.append(run_body(trial, point, 1, device=available(device), threads=threads))
            numbered.append(at(point, sitting, repeat))
    return table(numbered, bodies)


def at(point, sitting, repeat):
    """The point with the process and the sitting that it ran in."""
    return point | {"repeat": repeat, "sitting": sitting}


def sittings_of(known):
    """The start times of a trial's stored sittings that today's code made, oldest first."""
    mine = [body for body in known.store.trials if body["trial"] == known.name]
    return sorted({body["parameters"]["sitting"] for body in mine if known.state.agrees(body)})


def now(began, last=False):
    """The start time of the sitting to complete, a text such as 2026-01-31T12:00Z.

    It is the newest of `began` if that is less than an hour ago or `last` is set, else the present
    time.
    """
    time = datetime.now(UTC)
    if began and (last or time - datetime.fromisoformat(began[-1]) < HOUR):
        return began[-1]
    return f"{time:%Y-%m-%dT%H:%MZ}"


def missing(known, points, processes, sitting):
    """{number of a process: [points]} that a sitting lacks."""
    found = {}
    for repeat in range(processes):
        lacking = [point for point in points if not known.find(at(point, sitting, repeat))]
        if lacking:
            found[repeat] = lacking
    return found


def in_a_fresh_process(call, packed, points):
    """Yield (point, call(trial, point)) from one new process that runs all points.

    If the process is killed, the point that it was running gives {"failed": cause}.
    """
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, call, packed, points), daemon=True)
    with workers.script_left_alone():
        process.start()
    there.close()
    try:
        for point in points:
            yield point, here.recv()
    except EOFError:
        process.join()
        yield point, {"failed": f"its process ended with exit code {process.exitcode}"}
    finally:
        process.kill()
        process.join()
        here.close()


def _send(connection, call, packed, points):
    try:
        trial = workers.unpack(packed)
        for point in points:
            connection.send(call(trial, point))
    except Exception as error:  # the trial cannot be loaded in this process
        cause = f"{type(error).__name__}: {error}"
        connection.send({"failed": cause, "traceback": traceback.format_exc()})
