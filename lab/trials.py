"""Sweeps: call a function at every point of a grid and cache each result on disk.

A trial is a function of JSON values, usually with a `seed`, that returns a row, a list of rows or a
DataFrame. Results are cached in FOLDER/NOTEBOOK/TRIAL-CODE.jsonl. The local store and
results/record use the same format: the first line holds the code hashes, each other line a point:

    {"at": {parameters}, "n": 3, "rows": {column: value or list}, "also": {name: hash},
     "seconds": 1.5, "by": "..."}

`n` is the number of rows. `rows` has their columns; a column with equal values is stored as one
value. `also` holds hashes of the data that the trial read, and of the kinds that it looked up by
name and that CODE does not cover. `seconds` is the run time; `by` names the machine, the torch
version and the date. CODE is the hash of the trial's code (lab.key), so rows of older code are
reused only with `--anyway`.
"""

import functools
import inspect
import itertools
import json
import math
import os
import sys
import time
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass, field
from inspect import Parameter
from pathlib import Path
from threading import Lock

import cloudpickle
import numpy as np
import pandas as pd
from filelock import FileLock
from tqdm import tqdm

from lab import arithmetic, key, state, uses, workers
from lab.device import available, current, machine

BAR = "{desc}: {n}/{total} trials [{elapsed}<{remaining}]"
MIN_PARALLEL_SECONDS = 20  # shorter sweeps run in this process: workers take 10 s to start
RESERVED = ("seconds", "repeat", "threads")  # columns added by sweep


class TrialsFailed(RuntimeError):
    """Raised if trials of a sweep failed; the other results are cached."""


@dataclass
class Place:
    """Settings for running a notebook's trials: cache folders, workers, device.

    notebook   name of its subfolder in `store` and `record`
    store      folder of the local cache
    record     folder of recorded trials; None: ignore recorded trials
    jobs       number of parallel trials on this machine
    cluster    address of a Dask scheduler to use instead, or ""
    device     auto, cpu, cuda or mps
    anyway     whether to reuse rows of older code
    check      output folder of `lab run --check`; None: no check
    progress   terminal that shows progress bars; "": the notebook shows them
    used       {file name: {point as JSON: line}} of all rows that sweeps returned
    """

    notebook: str
    store: Path
    record: Path | None = None
    jobs: int = 1
    cluster: str = ""
    device: str = "auto"
    anyway: bool = False
    check: Path | None = None
    progress: str = ""
    used: dict = field(default_factory=dict)

    def lines(self, name):
        """The lines of the trial `name` that sweeps returned."""
        files = [lines for file, lines in self.used.items() if file.startswith(f"{name}-")]
        return [line for lines in files for line in lines.values()]

    def origins(self):
        """A sentence with the number of used trials per machine, torch version and date."""
        by = Counter(line["by"] for lines in self.used.values() for line in lines.values())
        return "Trials: " + ("; ".join(f"{n} by {name}" for name, n in by.items()) or "none") + "."


def sweep(trial, grid, place, *, threads=1, timing=False, processes=0):
    """Run the trial at every point of the grid. Returns a DataFrame of the rows in grid order.

    Columns: the parameters, the values of the rows, and the seconds of the trial. `grid` maps
    parameters to lists of values (the first parameter varies slowest) or is a list of parameter
    dicts. Only points that neither the store nor the record has are run; each result is cached as
    soon as its trial ends. `timing` marks trials that measure time or memory: they run one at a
    time.

    With `processes`, every point runs in each of that many fresh processes, numbered in the column
    `repeat`. Rows of different machines are not mixed: all rows come from the store or, if it is
    incomplete, all from the record. If both are incomplete, the complete repeats of the store are
    kept and the others run now. Only with `place.anyway`, rows of the store and the record, even
    outdated ones, may be combined if together they are complete.

    Raises TypeError for invalid parameters, ValueError for an empty grid, key.ImpureTrial if the
    trial's code cannot be hashed, RuntimeError if source files were edited after this process
    started or differ on a worker, ConnectionError if the cluster does not respond,
    ChildProcessError if a worker dies, and TrialsFailed, after all other trials have finished, if a
    trial failed or its result is invalid.
    """
    points = points_of(trial, grid)
    if threads != 1:
        points = [point | {"threads": threads} for point in points]
    if processes:
        points = [point | {"repeat": i} for i in range(processes) for point in points]
    cache = TrialCache(trial, place)
    if place.check:
        cache.check()
    known = cache.known_timings(points) if processes else cache.known
    missing = {name_of(point): point for point in points if name_of(point) not in known}
    failed = []
    if missing:
        cache.report_stale(missing)
        outcomes = outcomes_of(cache, list(missing.values()), timing, processes)
        out = open(place.progress, "a") if place.progress else sys.stdout  # stderr would be red
        pause = 30 if place.progress and not out.isatty() else 1  # seconds; 30 in a log
        bar = {"bar_format": BAR, "mininterval": pause, "leave": False, "file": out}
        for point, outcome in tqdm(outcomes, trial.__name__, len(missing), **bar):
            if isinstance(outcome, key.CodeMismatch):
                raise outcome
            if isinstance(outcome, Exception):
                failed.append(f"{name_of(point)}: {type(outcome).__name__}: {outcome}")
                cause = outcome
            else:
                known[name_of(point)] = cache.save(point, outcome)
    if failed:
        head = f"{len(failed)} of {len(points)} trials of {trial.__name__} failed"
        lines = [f"{head}; the other results are cached", *failed[:9]]
        where = "".join(traceback.format_exception(cause)).rstrip()
        raise TrialsFailed("\n  ".join(lines) + f"\n\n{where}") from None
    lines = {name_of(point): known[name_of(point)] for point in points}
    place.used.setdefault(cache.path.name, {}).update(lines)
    return table(trial, lines.values())


# Points and rows


def name_of(point):
    """The canonical JSON text of a point."""
    return json.dumps(point, sort_keys=True)


def points_of(trial, grid):
    """The parameter dicts of a grid, with the trial's defaults, after a round trip through JSON.

    Numbers are cast to the annotated type, so 1 and 1.0 are the same point. Raises TypeError if a
    parameter is missing, unknown, reserved or not a JSON value, and ValueError for an empty grid.
    """
    if not inspect.isfunction(trial) or trial.__name__ == "<lambda>":
        raise TypeError(f"a trial must be a function defined with def, not {trial!r}")
    if isinstance(grid, dict):
        lists = (list, tuple, range, np.ndarray)
        axes = [values if isinstance(values, lists) else [values] for values in grid.values()]
        grid = [dict(zip(grid, values, strict=True)) for values in itertools.product(*axes)]
    if not grid:
        raise ValueError(f"the grid of {trial.__name__} is empty")
    return [with_defaults(trial, dict(point)) for point in grid]


def with_defaults(trial, point):
    signature = inspect.signature(trial)
    for name in RESERVED:
        if name in signature.parameters:
            raise TypeError(f"{trial.__name__}: {name} is a column added by the sweep; rename it")
    try:
        signature.bind(**point)
        values = json.loads(json.dumps(defaults_of(trial) | point, default=plain))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{trial.__name__}{signature}: {error}") from None
    return as_annotated(trial, values)


def as_annotated(trial, values):
    """The parameters of a point, with numbers of the annotated types: 1 and 1.0 are one point."""
    values = dict(values)
    for name, kind in inspect.get_annotations(trial, eval_str=True).items():
        if kind in (int, float) and type(values.get(name)) in (int, float):
            if kind(values[name]) == values[name]:
                values[name] = kind(values[name])
    return values


def defaults_of(trial):
    """{name: default} of the parameters of a trial that have one."""
    parameters = inspect.signature(trial).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not Parameter.empty}


def plain(value):
    """Convert a numpy or torch scalar to a Python number. Raises TypeError for other objects."""
    if value is None or isinstance(value, str | int | float):
        return value
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return value.item()
    raise TypeError(f"{value!r} is not a JSON value")


def columns_of(result, point):
    """(number of rows, {column: list of values, or the value that all rows share}) of a result.

    Raises TypeError if the result is not made of rows of numbers, strings, booleans and None, or if
    a column has the name of a parameter or of a column that the sweep adds.
    """
    rows = result.to_dict("records") if isinstance(result, pd.DataFrame) else result
    rows = [rows] if isinstance(rows, dict) else rows
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TypeError(f"a trial must return a dict, list of dicts or DataFrame, not {result!r}")
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        if name in point or name in RESERVED:
            raise TypeError(f"{name} is a parameter or a column added by the sweep; rename it")
        values = [plain(row.get(name)) for row in rows]
        columns[name] = values[0] if len(set(map(repr, values))) == 1 else values
    return len(rows), columns


def rows_of(line):
    """Yield the rows of a line, each with the parameters and the seconds of the trial."""
    values = {
        name: value if isinstance(value, list) else [value] * line["n"]
        for name, value in line["rows"].items()
    }
    for i in range(line["n"]):
        row = {name: column[i] for name, column in values.items()}
        yield line["at"] | row | {"seconds": line["seconds"]}


def table(trial, lines):
    """A DataFrame of the rows of all lines; None in a column of floats becomes NaN."""
    lines = list(lines)
    names = dict.fromkeys(inspect.signature(trial).parameters)
    names |= dict.fromkeys(name for line in lines for name in line["at"])
    names |= dict.fromkeys(name for line in lines for name in line["rows"])
    rows = [row for line in lines for row in rows_of(line)]
    frame = pd.DataFrame(rows, columns=[*names, "seconds"])
    for name in frame.select_dtypes(object):
        if all(value is None or isinstance(value, float) for value in frame[name]):
            frame[name] = frame[name].astype(float)
    return frame


# Files


def read(path):
    """({name: hash} of the code, [line]) of a file. Skips corrupt lines with a warning."""
    code, lines, corrupt = {}, [], []
    texts = path.read_bytes().split(b"\n") if path.exists() else []
    for i, text in enumerate(texts, 1):
        try:
            entry = json.loads(text) if text else {}
            if "at" in entry:
                lines.append(entry)
            else:
                code |= entry
        except (ValueError, TypeError):
            corrupt.append(i)
    if corrupt:
        numbers = ", ".join(map(str, corrupt))
        warnings.warn(f"{path}: corrupt line {numbers}; these trials run again", stacklevel=2)
    return code, lines


def append(path, code, line):
    """Append a line to a file. Raises OSError with the path if the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.parent / ".lock"), path.open("ab+") as file:
            size = file.seek(0, 2)
            head = "" if size else json.dumps(code) + "\n"
            if size:
                file.seek(-1, 2)
                head = "" if file.read(1) == b"\n" else "\n"  # end the partial line of a killed run
            file.write((head + json.dumps(line) + "\n").encode())
    except OSError as error:
        reason = f"{error.strerror}; choose another folder with --results"
        raise OSError(error.errno, reason, str(path)) from None


def write(path, code, lines):
    """Atomically replace a file with these lines, sorted; the last line of each point is kept."""
    newest = {name_of(line["at"]): line for line in lines}
    texts = [json.dumps(code), *(json.dumps(newest[name]) for name in sorted(newest))]
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text("\n".join(texts) + "\n", "utf-8")
    os.replace(temporary, path)


class TrialCache:
    """The cached points of a trial: `known` is {name of a point: line} from store and record."""

    def __init__(self, trial, place):
        self.trial, self.place = trial, place
        self.code = key.code_of(trial)
        self.files = key.file_hashes(self.code)
        self.hashes = {}  # {name: current hash} of the names in `also`
        name = f"{trial.__name__}-{key.digest_of(self.code)}.jsonl"
        self.path = Path(place.store) / place.notebook / name
        self.stored = self.valid_points(self.path)
        self.recorded = self.valid_points(self.folder / name) if place.record else {}
        self.known = self.recorded | self.stored
        if place.anyway:
            stale = [line for _, _, lines in self.stale_files() for line in lines]
            self.known = {name_of(line["at"]): line for line in stale} | self.known

    @property
    def folder(self):
        """The folder of the notebook in the record."""
        return Path(self.place.record) / self.place.notebook

    def read(self, path):
        """As read(); lines older than a parameter of the trial get its default."""
        code, lines = read(path)
        defaults = as_annotated(self.trial, defaults_of(self.trial))
        return code, [line | {"at": defaults | line["at"]} for line in lines]

    def valid_points(self, path):
        """{name of a point: line} of a file, except lines whose kinds or data have changed."""
        points = {}
        for line in self.read(path)[1]:
            files = {name for name in line["also"] if name.startswith("file ")}
            if key.is_valid(line["also"], self.hashes) and files == set(key.paths_in(line["at"])):
                points[name_of(line["at"])] = line
        return points

    def stale_files(self):
        """[(path, {name: hash}, outdated lines)] of files with outdated lines, newest file last."""
        folders = [self.path.parent, *([self.folder] if self.place.record else [])]
        paths = [p for folder in folders for p in folder.glob(f"{self.trial.__name__}-*.jsonl")]
        stale = []
        for path in sorted(paths, key=lambda path: path.stat().st_mtime):
            code, lines = self.read(path)
            valid = self.valid_points(path) if path.name == self.path.name else {}
            lines = [line for line in lines if name_of(line["at"]) not in valid]
            stale += [(path, code, lines)] if lines else []
        return stale

    def known_timings(self, points):
        """Cached timings, {name of a point: line}, from the first of these that has all points:

        1. the store;
        2. the record;
        3. with `anyway`, both together, outdated timings included.

        If none has all points, returns the repeats that the store holds completely.
        """
        for known in (self.stored, self.recorded, self.known if self.place.anyway else {}):
            if all(name_of(point) in known for point in points):
                return dict(known)
        complete = {}
        for _, group in itertools.groupby(points, lambda point: point["repeat"]):
            names = [name_of(point) for point in group]
            if all(name in self.stored for name in names):
                complete |= {name: self.stored[name] for name in names}
        return complete

    def save(self, point, outcome):
        """Append an outcome to the store. Returns its line."""
        names, data = outcome.pop("names"), outcome.pop("data")
        line = {"at": point} | outcome | {"also": key.hashes_of(names, self.code, data)}
        append(self.path, self.code, line)
        return json.loads(json.dumps(line))

    def report_stale(self, missing):
        """Print what has changed since the newest outdated results of missing points.

        It also prints the number of these results and their run time.
        """
        for _, code, lines in reversed(self.stale_files()):
            stale = [line for line in lines if name_of(line["at"]) in missing]
            if stale:
                names = {n for n in code | self.code if code.get(n) != self.code.get(n)}
                hashes = {item for line in stale for item in line["also"].items()}
                names |= {n for n, old in hashes if not key.is_valid({n: old}, self.hashes)}
                minutes = sum(line["seconds"] for line in stale) / 60
                changed = ", ".join(sorted(names)[:4])
                print(
                    f"{len(stale)} trials of {self.trial.__name__} run again because "
                    f"{changed} changed; they took {minutes:.1f} minutes before"
                )
                return

    def check(self):
        """Group the outdated lines by the kinds and data that they used; rerun a point per group.

        It is the point of the group that took the least time. Timings are skipped.

        The name of the folder place.check says which code runs. In "here" it is the current code:
        the file gets the rerun rows and the recorded rows, which `lab run --check` compares. If
        they differ, it calls this again at the commit that wrote the record, with the folder
        "there". The same points are rerun, and their rows are compared with those in "here".
        """
        here = self.place.check.with_name("here") / self.place.notebook
        if self.place.check.name == "there":
            if (here / self.path.name).exists():
                points = json.loads((here / self.path.name).read_text())["points"]
                self.write_check(self.place.check / self.place.notebook / self.path.name, points)
            return
        for path, _, lines in self.stale_files():
            lines = [line for line in lines if "clock" not in line["also"]]
            if path.parent != self.folder or (here / path.name).exists() or not lines:
                continue
            cheapest = {}
            for line in sorted(lines, key=lambda line: -line["seconds"]):
                cheapest[frozenset(line["also"])] = line
            also = key.hashes_of({name for line in lines for name in line["also"]}, self.code, {})
            recorded = {name_of(line["at"]): line["rows"] for line in cheapest.values()}
            points = [line["at"] for line in cheapest.values()]
            self.write_check(here / path.name, points, also=also, recorded=recorded)

    def write_check(self, path, points, **more):
        """Run the points and write their rows, the current code hashes and `more`."""
        rows = {}
        for point, outcome in outcomes_of(self, points):
            if isinstance(outcome, Exception):
                raise outcome
            rows[name_of(point)] = outcome["rows"]
        path.parent.mkdir(parents=True, exist_ok=True)
        result = {"name": self.path.name, "code": self.code, "points": points, "rows": rows}
        result["defaults"] = as_annotated(self.trial, defaults_of(self.trial))
        path.write_text(json.dumps(result | more))


# Running


def call_of(cache, timing=False):
    """A function for worker processes that runs the trial at a point."""
    pickled = cloudpickle.dumps((cache.trial, custom_kinds()))
    return functools.partial(run_in_worker, pickled, cache.files, cache.place.device, timing)


def run_in_worker(pickled, files, device, timing, point):
    """Run a trial at a point in a worker process, which must have the same source `files`.

    `pickled` has the trial and the kinds registered outside lab, with their definitions.
    """
    with _process_lock:  # all threads share the random generators and the number of threads
        key.require_same_files(files)
        trial, kinds = unpickled(pickled)
        for seam, kind, variant in kinds:
            dict.__setitem__(uses.SEAMS[seam].kinds, kind, variant)
        return run(trial, point, device, timing)


_process_lock = Lock()
unpickled = functools.lru_cache(maxsize=1)(cloudpickle.loads)


def custom_kinds():
    """[(seam, kind, class)] of kinds registered outside lab, which workers lack."""
    return [
        (name, kind, variant)
        for name, seam in uses.SEAMS.items()
        for kind, variant in seam.kinds.items()
        if variant.__module__.split(".")[0] != "lab"
    ]


def run(trial, point, device="auto", timing=False):
    """Run a trial at a point. Returns its rows, dependencies, seconds and origin.

    The global random generators are seeded with the parameter `seed` if it is an int, else with 0.
    """
    import torch

    arguments = {name: value for name, value in point.items() if name not in RESERVED}
    seed = arguments.get("seed", 0)
    with state.preserved(), uses.watched(timing) as seen, arithmetic.fast():
        tokens = current.set(available(device)), state.in_trial.set(True)
        torch.set_num_threads(point.get("threads", 1))
        state.seed_all(seed if isinstance(seed, int) else 0)
        start = time.perf_counter()
        try:
            result = trial(**json.loads(name_of(arguments)))
        except SystemExit as error:
            raise RuntimeError(f"the trial called sys.exit({error.code!r})") from error
        finally:
            current.reset(tokens[0])
            state.in_trial.reset(tokens[1])
        seconds = time.perf_counter() - start
    n, rows = columns_of(result, point)
    names = {*seen.names, *key.paths_in(arguments)}
    data = {name: key.now(name) for name in names if key.is_data(name)}
    outcome = {"n": n, "rows": rows, "names": names, "data": data}
    return outcome | {"seconds": round(seconds, 4), "by": origin()}


@functools.cache
def origin():
    """The origin of a row: machine, torch version and date."""
    import torch

    return f"{machine()}, torch {torch.__version__}, {time.strftime('%F')}"


def outcomes_of(cache, points, timing=False, processes=0):
    """Yield (point, outcome).

    Timings run one at a time, with `processes` each repeat in a fresh process. Other trials run in
    parallel if jobs > 1, or on a cluster.

    Before a local pool starts, the last point, usually the slowest, runs alone in this process. If
    the others would together take less than MIN_PARALLEL_SECONDS at its speed, they follow here.
    """
    place = cache.place
    if processes:
        for _, group in itertools.groupby(points, lambda point: point["repeat"]):
            with workers.processes(1) as process:
                yield from workers.run_concurrently(process, call_of(cache, timing), group)
        return
    here = functools.partial(run, cache.trial, device=place.device, timing=timing)
    jobs, cluster = (1, "") if timing else (place.jobs, place.cluster)
    if jobs > 1 and not cluster and jobs not in workers.pools:
        *points, last = points
        for point, outcome in workers.outcomes(here, [last]):
            yield point, outcome
            seconds = 0 if isinstance(outcome, Exception) else outcome["seconds"]
        jobs = 1 if seconds * len(points) < MIN_PARALLEL_SECONDS else jobs
    trial = call_of(cache) if cluster or jobs > 1 else here
    yield from workers.outcomes(trial, points, jobs=jobs, cluster=cluster)


# The record


def record(place, used):
    """Replace the record of a notebook with the points that its run used, {file name: [point]}.

    Lines of the store take precedence over recorded ones. Raises RuntimeError if a point is in
    neither; the record is then unchanged.
    """
    folder = Path(place.record) / place.notebook
    files = {}
    for name, points in used.items():
        stored = Path(place.store) / place.notebook / name
        code, lines = read(folder / name)
        new_code, new_lines = read(stored)
        found = {name_of(line["at"]): line for line in [*lines, *new_lines]}
        if missing := set(points) - set(found):
            raise RuntimeError(
                f"{name}: {len(missing)} trials of the run are not stored: run it again"
            )
        files[name] = (code | new_code, [found[point] for point in points])
    for name, (code, lines) in files.items():
        write(folder / name, code, lines)
    for path in folder.glob("*.jsonl"):
        if path.name not in used:
            path.unlink()


def difference(one, other):
    """The largest relative difference of two results: numbers, or lists or dicts of them.

    It is inf if they differ in anything but finite floats: in length, keys, types, other values, or
    floats of which one is not finite. NaN equals NaN, and inf equals inf.
    """
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return max((difference(one[name], other[name]) for name in one), default=0.0)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return max(map(difference, one, other), default=0.0)
    if repr(one) == repr(other):
        return 0.0
    if type(one) is not float or type(other) is not float:
        return math.inf
    if one == other:  # 0.0 and -0.0
        return 0.0
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other))


def accept(folder, name, checked):
    """Move the rows of a record file to the file of the current code.

    Call this only if all rows that `check` reran agree (see lab/check.py): rows that were not rerun
    are moved too; they get the defaults of parameters that the trial has since gained. `checked` is
    the output of `TrialCache.check`. Timings of older code are dropped.
    """
    _, lines = read(folder / name)
    kept, hashes = [], {}
    for line in lines:
        line = line | {"at": checked["defaults"] | line["at"]}
        if checked["name"] == name and key.is_valid(line["also"], hashes):
            kept.append(line)
        elif "clock" not in line["also"]:
            also = {each: checked["also"][each] for each in line["also"] if each in checked["also"]}
            kept.append(line | {"also": also})
    path = folder / checked["name"]
    _, newer = read(path) if checked["name"] != name else ({}, [])
    write(path, checked["code"], [*kept, *newer])
    if checked["name"] != name:
        (folder / name).unlink()
