"""A sweep: one function called at every point of a grid; each finished row is kept on disk.

A trial is a function of JSON values, its seed among them, that returns a row, a list of rows or a
DataFrame. Its finished points are lines of FOLDER/NOTEBOOK/TRIAL-CODE.jsonl, in this machine's store
and in results/record alike. The first line holds the hashes of the code, every other one a point:

    {"at": {parameters}, "n": 3, "rows": {column: value or list}, "also": {name: hash}, "seconds", "by"}

CODE is the hash of the code behind the trial (lab.key), so rows that other code made stand in another
file and are never used by mistake. What the trial chose by its name or read stands in `also`.
"""

import functools
import inspect
import io
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
import pandas as pd
from filelock import FileLock
from IPython import get_ipython
from tqdm import tqdm

from lab import arithmetic, key, state, uses, workers
from lab.device import available, current, machine

BAR = "{desc}: {n}/{total} trials [{elapsed}<{remaining}]"
SHORT = 20  # seconds: a sweep that takes less runs in this process, since workers take ten to start
RESERVED = ("seconds", "repeat", "threads")  # columns that a sweep adds


class TrialsFailed(RuntimeError):
    """Raised where some trials of a sweep failed; the others are kept."""


@dataclass
class Place:
    """Where the trials of a notebook are kept and run.

    notebook   the name of the folder for its files
    store      the folder of this machine's trials
    record     the folder of recorded trials; None: none are used
    jobs       trials at a time on this machine
    cluster    the address of a Dask scheduler that runs them instead, or ""
    device     auto, cpu, cuda or mps
    anyway     whether rows that other code made are used
    check      a folder for the rows of `lab run --check`; None: no check
    progress   a file that gets a line about the sweep that runs now; None: a bar is shown
    used       {file name: {key of a point: line}} of all that sweeps have used
    """

    notebook: str
    store: Path
    record: Path | None = None
    jobs: int = 1
    cluster: str = ""
    device: str = "auto"
    anyway: bool = False
    check: Path | None = None
    progress: Path | None = None
    used: dict = field(default_factory=dict)

    def lines(self, name):
        """The lines that sweeps of the trial of this name have used."""
        found = [lines.values() for file, lines in self.used.items() if file.startswith(f"{name}-")]
        return [line for lines in found for line in lines]

    def told(self):
        """Where the trials that were used come from, in one line."""
        by = Counter(line["by"] for lines in self.used.values() for line in lines.values())
        return "Trials: " + ("; ".join(f"{n} by {name}" for name, n in by.items()) or "none") + "."

    def core_seconds(self):
        """The seconds that the trials that were used took on one core each."""
        seconds = [line["seconds"] for lines in self.used.values() for line in lines.values()]
        return round(sum(seconds), 1)


def sweep(trial, grid, place, *, jobs=None, threads=1, timing=False, processes=0):
    """A DataFrame of the trial's rows at every point, in the order of the grid.

    Its columns are the parameters, the values of the rows, and the seconds of the trial. `grid` maps
    parameters to lists of values (the first one varies slowest) or is a list of parameter dicts.
    Points are looked up in the store, then in the record; the others run, and each is kept as it
    ends. `timing` marks trials that read clocks or measure memory: they run one after another. With
    `processes`, all points run in that many fresh processes, and the column `repeat` counts these.
    Such rows are used from one machine only: all of the store, all of the record, or all timed now.

    Raises TypeError for parameters that the trial does not take and for results that are no rows,
    key.ImpureTrial for a trial whose code cannot be known, RuntimeError for files edited since this
    process had started or workers with other code, ConnectionError for a cluster that does not
    answer, and TrialsFailed where trials failed, after all others have ended.
    """
    points = points_of(trial, grid)
    if threads != 1:
        points = [point | {"threads": threads} for point in points]
    if processes:
        points = [point | {"repeat": i} for i in range(processes) for point in points]
    found = Finished(trial, place)
    cluster, jobs = "" if jobs == 1 else place.cluster, jobs or place.jobs
    if place.check:
        found.check(jobs)
    known = found.known_together(points) if processes else found.known
    left = {name_of(point): point for point in points if name_of(point) not in known}
    if left:
        found.tell_stale(left)
        if processes:
            ended = timed(found, list(left.values()))
        elif timing:
            here = functools.partial(run, trial, device=place.device, timing=True)
            ended = workers.outcomes(here, left.values())
        else:
            ended = in_parallel(found, list(left.values()), jobs, cluster)
        failed = []
        for point, outcome in shown(ended, trial.__name__, len(left), place.progress):
            if isinstance(outcome, key.OtherCode):
                raise outcome
            if isinstance(outcome, BaseException):
                failed.append((point, outcome))
            else:
                known[name_of(point)] = found.keep(point, outcome)
        if failed:
            raise TrialsFailed(failures(trial.__name__, failed, len(points))) from failed[0][1]
    lines = {name_of(point): known[name_of(point)] for point in points}
    place.used.setdefault(found.mine.name, {}).update(lines)
    return table(trial, lines.values())


def failures(name, failed, total):
    """A message on the failed trials of a sweep, [(point, error)], with the first traceback."""
    told = [f"{len(failed)} of {total} trials of {name} failed; the others are finished and kept"]
    told += [f"  {name_of(point)}: {type(error).__name__}: {error}" for point, error in failed[:9]]
    told += [f"  and {len(failed) - 9} more"] * (len(failed) > 9)
    where = "".join(traceback.format_exception(failed[0][1]))
    return "\n".join([*told, "", where]).rstrip()


# Points and rows


def name_of(point):
    """The JSON text of a point, the same for equal points."""
    return json.dumps(point, sort_keys=True)


def points_of(trial, grid):
    """The parameter dicts of a grid, with the trial's defaults, after a round trip through JSON.

    Numbers have the type that the trial declares, so that 1 and 1.0 are one point. Raises TypeError
    where a parameter is missing, unknown, reserved or no JSON value, ValueError for an empty grid.
    """
    if not inspect.isfunction(trial) or trial.__name__ == "<lambda>":
        raise TypeError(f"a trial is a function written with def, not {trial!r}")
    if isinstance(grid, dict):
        axes = {name: listed(values) for name, values in grid.items()}
        combinations = itertools.product(*axes.values())
        grid = [dict(zip(axes, values, strict=True)) for values in combinations]
    if not grid:
        raise ValueError(f"the grid of {trial.__name__} is empty")
    return [complete(trial, dict(point)) for point in grid]


def listed(values):
    """The list of values of one parameter, where a single value is a list of one."""
    is_list = isinstance(values, list | tuple | range) or type(values).__name__ == "ndarray"
    return list(values) if is_list else [values]


def complete(trial, point):
    signature = inspect.signature(trial)
    takes = signature.parameters
    if taken := [name for name in takes if name in RESERVED]:
        raise TypeError(
            f"{trial.__name__}: {', '.join(taken)} is a column that the sweep adds; "
            "give the parameter another name"
        )
    try:
        signature.bind(**point)
    except TypeError as error:
        raise TypeError(f"{trial.__name__}{signature}: {error}") from None
    named = [p for p in takes.values() if p.default is not Parameter.empty]
    values = point | {p.name: p.default for p in named if p.name not in point}
    try:
        values = json.loads(json.dumps(values, default=number))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the parameters of {trial.__name__} must be JSON values: {error}"
        ) from None
    for name, kind in inspect.get_annotations(trial, eval_str=True).items():
        if kind in (int, float) and type(values.get(name)) in (int, float):
            values[name] = (
                kind(values[name]) if kind(values[name]) == values[name] else values[name]
            )
    return values


def number(value):
    """The Python number of a numpy or torch scalar. Raises TypeError for anything else."""
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        return value.item()
    raise TypeError(f"{value!r} is a {type(value).__name__}")


def columns_of(result, point):
    """(number of rows, {column: list of its values, or the one value of all rows}) of a result.

    Raises TypeError where the result is not made of rows of numbers, words, booleans and None, or
    where a column has the name of a parameter.
    """
    rows = result.to_dict("records") if isinstance(result, pd.DataFrame) else result
    rows = [rows] if isinstance(rows, dict) else rows
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TypeError(f"a trial returns a dict, a list of dicts or a DataFrame, not {result!r}")
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        if name in point or name in RESERVED:
            raise TypeError(
                f"the table has its own column {name}: give the row's value another name"
            )
        values = [value_of(name, row.get(name)) for row in rows]
        columns[name] = values[0] if len(set(map(repr, values))) == 1 else values
    return len(rows), columns


def value_of(name, value):
    """A value of a row as JSON can hold it."""
    plain = value if isinstance(value, str | int | float | type(None)) else number(value)
    if not isinstance(plain, str | int | float | type(None)):
        raise TypeError(f"a row holds numbers, words, booleans and None, not {name} = {value!r}")
    return plain


def rows_of(line):
    """The rows of a line, each with its parameters and the seconds of the trial."""
    values = {
        name: value if isinstance(value, list) else [value] * line["n"]
        for name, value in line["rows"].items()
    }
    for i in range(line["n"]):
        row = {name: column[i] for name, column in values.items()}
        yield line["at"] | row | {"seconds": line["seconds"]}


def table(trial, lines):
    """A DataFrame of the rows of lines; a column of numbers may have missing ones."""
    lines = list(lines)
    names = dict.fromkeys(inspect.signature(trial).parameters)
    names |= dict.fromkeys(name for line in lines for name in line["at"])
    names |= dict.fromkeys(name for line in lines for name in line["rows"])
    made = pd.DataFrame(
        [row for line in lines for row in rows_of(line)], columns=[*names, "seconds"]
    )
    for name in made.select_dtypes(object):
        if all(value is None or isinstance(value, float) for value in made[name]):
            made[name] = made[name].astype(float)
    return made


# Files


def read(path):
    """({name: hash} of the code, [line]) of a file; a damaged line is named and left out."""
    code, lines, damaged = {}, [], []
    texts = path.read_bytes().split(b"\n") if path.exists() else []
    for number_of_line, text in enumerate(texts, 1):
        try:
            entry = json.loads(text) if text else {}
            if "at" in entry:
                lines.append(
                    {name: entry[name] for name in ("at", "n", "rows", "also", "seconds", "by")}
                )
            else:
                code |= entry
        except (ValueError, KeyError, TypeError):
            damaged.append(number_of_line)
    if damaged:
        warnings.warn(
            f"{path}: line {', '.join(map(str, damaged))} damaged; such trials run again",
            stacklevel=2,
        )
    return code, lines


def append(path, code, line):
    """Add a line to the end of a file. Raises OSError with the path where that is not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.parent / ".lock"), path.open("ab+") as file:
            size = file.seek(0, 2)
            head = "" if size else json.dumps(code) + "\n"
            if size:
                file.seek(-1, 2)
                head = "" if file.read(1) == b"\n" else "\n"  # a kill left half a line
            file.write((head + json.dumps(line) + "\n").encode())
    except OSError as error:
        raise OSError(
            error.errno, f"{error.strerror}; --results names another folder", str(path)
        ) from None


def write(path, code, lines):
    """Write a file anew, in one step, with its lines sorted; the last one of a point counts."""
    newest = {name_of(line["at"]): line for line in lines}
    texts = [json.dumps(code), *(json.dumps(newest[name]) for name in sorted(newest))]
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".tmp")
    aside.write_text("\n".join(texts) + "\n", "utf-8")
    os.replace(aside, path)


class Finished:
    """The finished points of a trial: `known`, {name of a point: line}, of the store and record."""

    def __init__(self, trial, place):
        self.trial, self.place = trial, place
        self.code = key.code_of(trial)
        self.files = key.of_files(self.code)
        self.hashes = {}  # {name: hash today} of what lines noted
        name = f"{trial.__name__}-{key.digest_of(self.code)}.jsonl"
        self.mine = Path(place.store) / place.notebook / name
        self.stored = self.valid(self.mine)
        self.recorded = self.valid(self.folder / name) if place.record else {}
        self.known = self.recorded | self.stored
        if place.anyway:
            self.known = self.of_other_code() | self.known

    @property
    def folder(self):
        """The folder of the notebook in the record."""
        return Path(self.place.record) / self.place.notebook

    def valid(self, path):
        """{name of a point: line} of a file, without lines whose kinds or data have changed."""
        found = {}
        for line in read(path)[1]:
            files = {name for name in line["also"] if name.startswith("file ")}
            if key.is_valid(line["also"], self.hashes) and files == set(key.paths_in(line["at"])):
                found[name_of(line["at"])] = line
        return found

    def older(self):
        """[(path, {name: hash}, lines)] of rows that are not valid today, newest last."""
        folders = [self.mine.parent, *([self.folder] if self.place.record else [])]
        paths = [p for folder in folders for p in folder.glob(f"{self.trial.__name__}-*.jsonl")]
        found = []
        for path in sorted(paths, key=lambda path: path.stat().st_mtime):
            code, lines = read(path)
            counting = self.valid(path) if path.name == self.mine.name else {}
            lines = [line for line in lines if name_of(line["at"]) not in counting]
            found += [(path, code, lines)] if lines else []
        return found

    def of_other_code(self):
        """{name of a point: line} of rows that are not valid today."""
        return {name_of(line["at"]): line for _, _, lines in self.older() for line in lines}

    def known_together(self, points):
        """The known rows of a timing: those of the store or of the record, if these are complete."""
        for known in (self.stored, self.recorded, self.known if self.place.anyway else {}):
            if all(name_of(point) in known for point in points):
                return dict(known)
        whole = {}  # processes that ran all their points here, before a kill
        for _, group in itertools.groupby(points, lambda point: point["repeat"]):
            names = [name_of(point) for point in group]
            if all(name in self.stored for name in names):
                whole |= {name: self.stored[name] for name in names}
        return whole

    def keep(self, point, outcome):
        """Write an outcome to the store; returns its line."""
        data = outcome.pop("data")
        names = {*outcome.pop("names"), *data}
        also = key.noted(names, self.code, data)
        line = {"at": point} | {name: outcome[name] for name in ("n", "rows", "seconds", "by")}
        line["also"] = also
        append(self.mine, self.code, line)
        return json.loads(json.dumps(line))

    def tell_stale(self, left):
        """Print which of the points `left` ran with other code, and how long they took then."""
        for _, code, lines in reversed(self.older()):
            there = [line for line in lines if name_of(line["at"]) in left]
            if there:
                names = ", ".join(self.changes(code, there))
                minutes = sum(line["seconds"] for line in there) / 60
                print(
                    f"{len(there)} trials of {self.trial.__name__} ran before a change of {names}; "
                    f"they run again here, which took {minutes:.1f} minutes of one core"
                )
                return

    def changes(self, code, lines):
        """The names of the modules, definitions, kinds and data that changed since lines were made."""
        was = code or self.code
        found = {
            name for name in was.keys() | self.code.keys() if was.get(name) != self.code.get(name)
        }
        for line in lines:
            found |= {
                name
                for name in line["also"]
                if not key.is_valid({name: line["also"][name]}, self.hashes)
            }
        names = sorted(found)
        return names[:4] + [f"{len(names) - 4} more"] * (len(names) > 4)

    def check(self, jobs):
        """Run the cheapest recorded row of every set of noted names, where rows are not valid today.

        The outcomes are written to place.check: `lab run --check` compares them with the record and,
        where they differ, with those of the commit that recorded them, which runs the same points.
        """
        side = self.place.check
        for path, _, lines in self.older() if side.name == "here" else ():
            written = side / self.place.notebook / path.name
            lines = [line for line in lines if "clock" not in line["also"]]
            if path.parent != self.folder or written.exists() or not lines:
                continue
            sets = {}
            for line in sorted(lines, key=lambda line: -line["seconds"]):
                sets[frozenset(line["also"])] = line
            noted = key.noted({name for line in lines for name in line["also"]}, self.code, {})
            recorded = {name_of(line["at"]): line["rows"] for line in sets.values()}
            asked = [line["at"] for line in sets.values()]
            self.write_check(written, asked, jobs, also=noted, recorded=recorded)
        asked = side.with_name("here") / self.place.notebook / self.mine.name
        written = side / self.place.notebook / self.mine.name
        if side.name == "there" and asked.exists() and not written.exists():
            points = json.loads(asked.read_text())["points"]
            self.write_check(written, points, jobs)

    def write_check(self, path, points, jobs, **more):
        """Run the points and write their rows, with the code of today and what `more` names."""
        ended = in_parallel(self, points, jobs)
        rows = {}
        for point, outcome in shown(
            ended, f"check {self.trial.__name__}", len(points), self.place.progress
        ):
            rows[name_of(point)] = (
                repr(outcome) if isinstance(outcome, Exception) else outcome["rows"]
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        told = {"name": self.mine.name, "code": self.code, "points": points, "rows": rows}
        path.write_text(json.dumps(told | more))


# Running


@dataclass
class Call:
    """The call of a trial in a worker process, which must have the same `files`."""

    packed: bytes
    files: dict
    device: str
    timing: bool

    def __call__(self, point):
        with _alone:  # trials of one process share its random generators and threads
            key.refuse_other(self.files)
            trial, kinds = unpacked(self.packed)
            for seam, kind, variant in kinds:
                dict.__setitem__(uses.SEAMS[seam].kinds, kind, variant)
            return run(trial, point, self.device, self.timing)


def call_of(found, timing=False):
    """The `Call` of a trial, with the kinds that workers lack and its definitions by value."""
    packed = cloudpickle.dumps((found.trial, foreign_kinds()))
    return Call(packed, found.files, found.place.device, timing)


_alone = Lock()
unpacked = functools.lru_cache(maxsize=1)(cloudpickle.loads)


def foreign_kinds():
    """[(seam, kind, class)] of the kinds that are registered outside lab, which workers lack."""
    return [
        (name, kind, variant)
        for name, seam in uses.SEAMS.items()
        for kind, variant in seam.kinds.items()
        if variant.__module__.split(".")[0] != "lab"
    ]


def run(trial, point, device="auto", timing=False):
    """The outcome of a trial at a point: its rows, what it used, its seconds and its machine.

    Random numbers without a generator of their own are seeded by the parameter `seed`, or by 0.
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
    return outcome | {"seconds": round(seconds, 4), "by": by()}


@functools.cache
def by():
    """Who made a row: this machine, the version of torch, and the date."""
    import torch

    return f"{machine()}, torch {torch.__version__}, {time.strftime('%F')}"


def in_parallel(found, points, jobs, cluster=""):
    """Yield (point, outcome): here where that takes a few seconds, else from worker processes."""
    here = functools.partial(run, found.trial, device=found.place.device)
    if cluster:
        yield from workers.outcomes(call_of(found), points, cluster=cluster)
        return
    if jobs > 1 and not workers.is_started(jobs):
        *points, last = points  # grids grow: it is a long one
        for each in workers.outcomes(here, [last]):
            took = 0 if isinstance(each[1], Exception) else each[1]["seconds"]
            yield each
        if took * len(points) < SHORT:
            jobs = 1
    call = here if jobs == 1 else call_of(found)
    yield from workers.outcomes(call, points, jobs=jobs)


def timed(found, points):
    """Yield (point, outcome) of a timing, where all points of a repeat run in a fresh process."""
    call = call_of(found, timing=True)
    for _, group in itertools.groupby(points, lambda point: point["repeat"]):
        with workers.processes(1) as process:
            yield from workers.side_by_side(process, call, group, 1)


def rehearsed(trial, grid, processes):
    """The table of a timing that runs in this process and is not kept: its times mean nothing."""
    lines = []
    for repeat in range(processes):
        for point in points_of(trial, grid):
            outcome = run(trial, point, timing=True)
            lines.append({"at": point | {"repeat": repeat}} | outcome)
    return table(trial, lines)


def shown(ended, name, total, file):
    """Yield what `ended` yields, with a bar, or with a line about it in `file`."""
    out = io.StringIO() if file else sys.stderr
    if not file and getattr(get_ipython(), "kernel", None):
        out = sys.stdout  # a notebook shows what goes to stderr in red
    with tqdm(ended, name, total, leave=False, mininterval=1, bar_format=BAR, file=out) as bar:
        for each in bar:
            yield each
            if file:
                Path(file).write_text(str(bar), "utf-8")
    if file:
        Path(file).write_text("", "utf-8")


# The record


def record(place, used):
    """Make the record of a notebook hold just the rows that its run used, {file name: [point]}.

    Rows of this machine's store replace those of the record. Returns the number of rows.
    """
    folder, count = Path(place.record) / place.notebook, 0
    for name, points in used.items():
        stored = Path(place.store) / place.notebook / name
        code, lines = read(folder / name)
        new_code, new_lines = read(stored)
        kept = [line for line in [*lines, *new_lines] if name_of(line["at"]) in set(points)]
        write(folder / name, code | new_code, kept)
        count += len(points)
    for path in folder.glob("*.jsonl"):
        if path.name not in used:
            path.unlink()
    return count


def apart(here, there):
    """The largest relative difference of two results {column: values}; infinite if they are unlike."""
    if isinstance(here, str) or isinstance(there, str) or here.keys() != there.keys():
        return math.inf
    return max((far(here[name], there[name]) for name in here), default=0.0)


def far(one, other):
    """The relative difference of two values or lists of them."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return max(map(far, one, other), default=0.0)
    if repr(one) == repr(other):
        return 0.0
    if type(one) is not float or type(other) is not float:
        return math.inf
    return abs(one - other) / max(abs(one), abs(other))


def accept(folder, name, checked):
    """Move the rows of a file of the record to the file of the code that gives the same digits.

    `checked` is what `Finished.check` wrote. Times that other code made are left out: they are taken
    anew.
    """
    _, lines = read(folder / name)
    kept, hashes = [], {}
    for line in lines:
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
