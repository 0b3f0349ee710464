"""Timings: a trial in fresh processes, one after another, in sittings of this machine.

A process has its own luck, such as where its memory lies, and its rounds share it: what is sampled
is the process. A machine has its moods: a sitting is what was timed within an hour, and the newest
two count. Sittings are kept in this machine's store, in files apart, and never in a record.
"""

import traceback
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path

from lab.device import available
from lab.trials import code, models, place, workers
from lab.trials.points import points_of
from lab.trials.rows import canonical, table
from lab.trials.run import run_trial
from lab.trials.state import State
from lab.trials.store import File
from lab.trials.sweep import OutOfTime, TrialsFailed, run_body, with_labels

FOLDER = "timings"  # in the store
HOUR = timedelta(hours=1)
COUNT = 2  # of the newest sittings
SAME = ("machine", "device", "threads", "torch")  # labels of timings that stand side by side


def sweep(trial, grid, processes, *, sources, device="auto", threads=1, progress=None, used=None):
    """The rows of a trial that reads clocks, from `processes` fresh processes of each sitting.

    A table as of `sweep.sweep`, with the columns `repeat`, the number of the process, and
    `sitting`, when it began. A process runs all points of the grid. Within an hour of the newest
    sitting that one is completed or used again; later, the sweep adds one, unless `sources` asks
    for what is recorded only. `used` is a list that gets the bodies.

    Raises TrialsFailed at the first process that fails or is killed, and OutOfTime after the
    deadline; what finished is stored.
    """
    timings = Timings(trial, points_of(trial, grid), processes, sources, device, threads)
    sitting, total = timings.now(), processes * len(timings.points)
    report = progress or (lambda done, total, workers: None)
    packed = workers.pack(trial, timings.code.modules)
    models_in = Path(sources.store) / models.FOLDER
    call = partial(
        run_trial, device=available(device), threads=threads, timing=True, models_in=models_in
    )
    left = timings.left(sitting)
    report(done := total - sum(map(len, left.values())), total, 1)
    for number, (repeat, points) in enumerate(left.items()):
        if number and datetime.now(UTC).timestamp() > sources.deadline:
            raise OutOfTime(f"{len(left) - number} processes of {trial.__name__} are left")
        for point, outcome in in_a_fresh_process(call, packed, points):
            if "failed" in outcome:
                failure = point, outcome["failed"], outcome.get("traceback", "")
                raise TrialsFailed(trial.__name__, [failure], total)
            timings.keep(point, sitting, repeat, outcome)
            report(done := done + 1, total, 1)
    found = timings.newest()
    if used is not None:
        used += [body for _, body in found]
    return table([point for point, _ in found], [with_labels(body) for _, body in found])


def rehearsed(trial, grid, processes, *, device="auto", threads=1):
    """Such a table of trials that ran in this very process, which says nothing of times."""
    points, bodies, sitting = [], [], _minute()
    for repeat in range(processes):
        for point in points_of(trial, grid):
            options = {"device": available(device), "threads": threads}
            bodies.append(run_body(trial, point, 1, **options))
            points.append(point | {"repeat": repeat, "sitting": sitting})
    return table(points, bodies)


class Timings:
    """The timings of one trial on this machine, by its code of now."""

    def __init__(self, trial, points, processes, sources, device, threads):
        self.name, self.points, self.processes = trial.__name__, points, range(processes)
        self.sources, self.code = sources, code.code_of(trial)
        self._state = State(self.code, lru_cache(code.kind_hash), lru_cache(sources.data_hash))
        self._labels = place.labels(place.here(device, threads), threads)
        self._file = File(Path(sources.store) / FOLDER / f"{sources.notebook}.jsonl")
        self._known = {}  # (sitting, process, point) -> body
        for body in self._file.trials:
            same = all(body["labels"][name] == self._labels[name] for name in SAME)
            if body["trial"] == self.name and same and self._state.agrees(body):
                self._add(body)

    def _add(self, body):
        point = dict(body["parameters"])
        when = point.pop("sitting"), point.pop("repeat")
        self._known[*when, canonical(point)] = body

    def now(self):
        """The sitting to be completed: the newest within the hour, or one that begins."""
        newest = max((sitting for sitting, _, _ in self._known), default=None)
        if newest and self.sources.recorded_only:
            return newest
        if newest and datetime.now(UTC) - datetime.fromisoformat(newest) < HOUR:
            return newest
        return _minute()

    def left(self, sitting):
        """{process: its points} that a sitting lacks."""
        found = {}
        for repeat in self.processes:
            for point in self.points:
                if (sitting, repeat, canonical(point)) not in self._known:
                    found.setdefault(repeat, []).append(point)
        return found

    def keep(self, point, sitting, repeat, outcome):
        """Write what a process found to the store."""
        told = {name: outcome[name] for name in ("n", "columns", "curve", "batch", "seconds")}
        body = {"trial": self.name, "parameters": point | {"sitting": sitting, "repeat": repeat}}
        kinds = {name: self._state.kind_hash(name) for name in sorted(outcome["kinds"])}
        data = outcome["data"] | self.sources.inputs(point)
        body |= told | {"code": self.code.digest, "kinds": kinds, "data": data}
        labels = self._labels | {"comparisons": self.sources.comparisons}
        self._add(self._file.append(body, labels, self.code.parts))

    def newest(self):
        """[(point with its process and sitting, body)] of the newest sittings that are complete."""
        sittings = sorted({sitting for sitting, _, _ in self._known})
        complete = [sitting for sitting in sittings if not self.left(sitting)][-COUNT:]
        found = []
        for point in self.points:
            for number, sitting in enumerate(complete):
                for repeat in self.processes:
                    body = self._known[sitting, repeat, canonical(point)]
                    own = {"repeat": number * len(self.processes) + repeat, "sitting": sitting}
                    found.append((point | own, body))
        return found


def in_a_fresh_process(call, packed, points):
    """Yield (point, call(trial, point)) from a process that begins now and ends with the last one.

    A process that is killed gives {"failed": cause} for the point that it was at.
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
    except Exception as error:  # it cannot be loaded here
        cause = f"{type(error).__name__}: {error}"
        connection.send({"failed": cause, "traceback": traceback.format_exc()})


def _minute():
    """Now, as sittings are called: in UTC, to the minute."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}"
