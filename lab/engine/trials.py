"""Trials: the unit of work. A sweep runs one function over a grid of parameters, and never runs a finished trial again.

Every finished trial is a file of its own, written at once, so that a kill at any moment loses only what was in flight.
What this machine has not run is drawn from the record (`lab.engine.record`), and only what neither knows runs now.
"""

import json
import os
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

from lab import trace
from lab.engine import fingerprint, models, travel, workers
from lab.engine import store as trial_store
from lab.engine.device import available
from lab.engine.points import points_of
from lab.engine.record import Record, State
from lab.engine.running import LABELS, run_traced, run_trial, whereabouts, whereabouts_of


class TrialsFailed(RuntimeError):
    """Some trials of a sweep failed; the others are stored. `failures` lists (parameters, cause, traceback) of each."""

    def __init__(self, name, failures, total):
        self.failures = failures
        lines = [f"  {trial_store.canonical(parameters)}: {cause}" for parameters, cause, _ in failures]
        head = f"{len(failures)} of {total} trials of {name} failed; the others are finished and stored"
        super().__init__("\n".join([head, *lines, "", failures[0][2]]).rstrip())


class NotRecorded(RuntimeError):
    """Trials are missing that were to be drawn from the record alone."""


class OutOfTime(RuntimeError):
    """The time that a run was given is over; what finished is stored."""


@dataclass(frozen=True)
class Sources:
    """Where finished trials come from, and what they may still cost.

    store: this machine's folder. record: a Record. data: {name: function of what follows the name, giving its hash},
    for sources that trials report by `trace.reads`. root: the folder that paths of files are told from.
    """

    store: Path
    record: Record = field(default_factory=lambda: Record([]))
    data: dict = field(default_factory=dict)
    root: Path = Path.cwd()
    recorded_only: bool = False
    deadline: float = float("inf")  # time.time()
    traced: bool = False  # trials run in this process, and none may run a definition that its code does not hold

    def data_hash(self, name):
        """The hash that a source or file has now; None where it is gone."""
        word, _, rest = name.partition(" ")
        if word in self.data:
            return self.data[word](rest)
        path = self.root / name
        return trace.file_hash(path) if path.is_file() else None


@dataclass(frozen=True)
class Used:
    """A finished trial in a table: the function, its parameters and body, and where it came from."""

    trial: object
    key: str
    body: dict
    origin: str  # "store", "record" or "run"
    threads: int = 1


def sweep(
    trial, grid, *, sources, jobs=1, cluster=None, threads=1, device="auto", timing=False, progress=None, used=None
):
    """A DataFrame with one row per row of each trial, in grid order: parameters, the row, then device, torch build,
    threads and seconds. Its attrs hold core_seconds, what all trials took, finished now or long ago.

    `trial` is a function of JSON-able parameters that returns a dict of numbers and words, a list of them or a
    DataFrame; its numbers are converted as its annotations say. `grid` maps a parameter to its list of values (the
    first varies slowest) or is a list of parameter dicts. `sources` says where finished trials are found and kept. More
    than one job runs in worker processes of this machine, and an address such as tcp://host:8786 as `cluster` on the
    Dask workers there. `timing` marks trials that read clocks or measure memory: they run here and now, one after
    another, and are never kept. `progress(done, total, workers, left)` is called at the start and after every trial,
    `left` the seconds still to go where they are known. `used` is a list that gets a `Used` for every trial.

    Raises TypeError for parameters that the trial does not take, ImpureTrial for a trial that reads data from outside
    itself, ValueError for a device that is not there, ConnectionError for a cluster that does not answer, RuntimeError
    for one whose workers differ, OSError for a store that cannot be written, NotRecorded and OutOfTime as `sources`
    ask, and TrialsFailed after all other trials have finished.
    """
    points = points_of(trial, grid)
    report = progress or (lambda done, total, workers, left: None)
    kept = None if cluster else Path(sources.store) / models.FOLDER  # another machine does not see this one's
    if timing:
        return _timed(trial, points, report=report, device=available(device), threads=threads, kept=kept)
    code = fingerprint.code_of(trial)
    state = State(code.digest, lru_cache(fingerprint.kind_hash), lru_cache(sources.data_hash))
    folder, name = Path(sources.store) / trial.__name__, trial.__name__
    with ExitStack() as stack:
        client = stack.enter_context(workers.connected(cluster)) if cluster else None
        place = whereabouts_of(client, device, threads) if client else whereabouts(device, threads)
        keys = [trial_store.key([name, point, code.digest, place["arithmetic"], threads]) for point in points]
        work = dict(zip(keys, points, strict=True))
        finished, origin = {}, {}
        for key, point in work.items():
            if found := _known(sources, name, point, key, state):
                finished[key], origin[key] = found
        left = {key: point for key, point in work.items() if key not in finished}
        cost = Cost(sources.record, name, left, state, code.parts, finished.values())
        if left and sources.recorded_only:
            first = trial_store.canonical(next(iter(left.values())))
            missing = f"{len(left)} of {len(work)} trials of {name} are not in the record{cost.because}"
            raise NotRecorded(f"{missing}, such as {first}")
        if left:
            trial_store.make(folder)
        if not cluster and not sources.traced and min(jobs, len(left)) > 1:
            client = stack.enter_context(workers.local(jobs, travel.code_files(trial)))
        report(len(finished), len(work), workers.count(client), cost.seconds(left, client, said=True))
        run = partial(run_traced, code) if sources.traced else run_trial
        call = partial(run, device=place["device"], threads=threads, kept=kept)
        outcomes = _run_here(partial(call, trial), left, sources.deadline) if client is None else workers.run(
            client, call, trial, left, sources.deadline)  # fmt: skip
        failures = []
        for key, outcome in stack.enter_context(closing(outcomes)):
            if "failed" in outcome:
                failures.append((work[key], outcome["failed"], outcome.get("traceback", "")))
            else:
                body = _body(trial, work[key], outcome, code, state, place, sources)
                finished[key], origin[key] = trial_store.write(folder, key, body), "run"
            left.pop(key)
            report(len(work) - len(left), len(work), workers.count(client), cost.seconds(left, client))
    if failures:
        raise TrialsFailed(name, failures, len(work))
    if left:
        raise OutOfTime(f"{len(left)} of {len(work)} trials of {name} are left; what finished is stored")
    if used is not None:
        used += [Used(trial, key, finished[key], origin[key], threads) for key in work]
    table = _table(points, [finished[key] for key in keys])
    table.attrs["core_seconds"] = sum(finished[key]["seconds"] for key in work)
    return table


def known(trial, grid, *, sources, device="auto", threads=1):
    """How many trials of a sweep over the grid are finished already, by the store and the record."""
    code, place = fingerprint.code_of(trial), whereabouts(device, threads)
    state = State(code.digest, lru_cache(fingerprint.kind_hash), lru_cache(sources.data_hash))
    points = points_of(trial, grid)
    keys = [trial_store.key([trial.__name__, p, code.digest, place["arithmetic"], threads]) for p in points]
    found = (_known(sources, trial.__name__, p, key, state) for p, key in zip(points, keys, strict=True))
    return sum(each is not None for each in found)


def _known(sources, name, point, key, state):
    """(body, where it came from) of a trial that is finished, or None."""
    if (body := trial_store.read(Path(sources.store) / name, key)) and state.agrees(body):
        return body, "store"
    body = sources.record.find(name, point, state)
    return (body | body["labels"], "record") if body else None


def now(trial, point, *, device="auto", threads=1):
    """The rows that a sweep of this full point gives, run here and never kept; None where whoever watches ended it."""
    body = _run_once(trial, point, 1, device=available(device), threads=threads)
    return None if body is None else _table([point], [body])


def _timed(trial, points, *, report, **options):
    bodies = []
    for point in points:
        report(len(bodies), len(points), 1, None)
        bodies.append(_run_once(trial, point, len(points), **options))
    report(len(bodies), len(points), 1, None)
    table = _table(points, bodies)
    table.attrs["core_seconds"] = sum(body["seconds"] for body in bodies)
    return table


def _run_once(trial, point, total, **options):
    outcome = run_trial(trial, point, timing=True, **options)
    if "failed" in outcome:
        raise TrialsFailed(trial.__name__, [(point, outcome["failed"], outcome["traceback"])], total)
    if "n" not in outcome:
        return None
    return json.loads(trial_store.encoded({name: outcome[name] for name in ("n", "columns", *LABELS)}))


def _body(trial, point, outcome, code, state, place, sources):
    """What is stored of a trial that ran: its outcome with what it was made of."""
    kinds = {name: state.kind_hash(name) for name in sorted(outcome.pop("kinds"))}
    data = {}
    for name, value in sorted(outcome.pop("data").items()):
        inside = os.path.isabs(name) and Path(name).is_relative_to(sources.root)
        data[Path(name).relative_to(sources.root).as_posix() if inside else name] = value
    made_of = {
        "code": code.digest,
        "parts": code.parts,
        "kinds": kinds,
        "data": data,
        "arithmetic": place["arithmetic"],
    }
    return {"trial": trial.__name__, "parameters": point} | outcome | made_of


class Cost:
    """What the trials that are left will take, as far as earlier runs of them tell, and why they have to run."""

    def __init__(self, record, name, left, state, parts, finished):
        known = {key: body for key, point in left.items() if (body := record.earlier(name, point))}
        others = [body["seconds"] for body in (*known.values(), *finished, *(record.of(name) if left else ()))]
        usual = sum(others) / len(others) if others else None
        self._each = {key: known[key]["seconds"] if key in known else usual for key in left}
        edited = sorted({each for body in known.values() for each in state.differences(body, parts)})
        self.because = f", {len(known)} because of a change in {', '.join(edited)}" if edited else ""

    def seconds(self, left, client, said=False):
        """Seconds until what is left is done, None where nothing tells; `said` explains more than a minute."""
        each = [self._each[key] for key in left]
        total = None if None in each else sum(each) / max(1, min(workers.count(client), len(left)))
        if said and self.because and total and total > 60:
            print(f"{len(left)} trials run here{self.because}: about {total / 60:.0f} minutes")
        return total


def _run_here(call, left, deadline):
    """One trial runs in any case, so that a short budget given again and again gets on."""
    for key, point in list(left.items()):
        yield key, call(point)
        if time.time() > deadline:
            return


def _table(points, bodies):
    import pandas

    listed = [trial_store.rows(body) for body in bodies]
    rows = [
        point | row | {name: body[name] for name in LABELS}
        for point, body, rows in zip(points, bodies, listed, strict=True)
        for row in rows
    ]
    columns = dict.fromkeys(name for point in points for name in point)
    columns |= dict.fromkeys(name for body in bodies for name in body["columns"])
    table = pandas.DataFrame(rows, columns=[*columns, *LABELS])
    for name in table.select_dtypes(object):  # numbers, of which some or all are missing
        if all(value is None or isinstance(value, float) for value in table[name]):
            table[name] = table[name].astype(float)
    return table
