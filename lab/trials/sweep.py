"""A sweep: one function at every point of a grid of parameters, and no finished trial a second
time.

A trial is looked up in this machine's store, then in the record of its notebook, then in that of
other notebooks; what none of them knows runs now, and is written to the store as it ends, so that a
kill costs only what was in flight.
"""

import json
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path

from lab.device import available
from lab.trials import code, files, place, workers
from lab.trials.points import points_of
from lab.trials.rows import LABELS, canonical, encoded, table
from lab.trials.run import run_trial
from lab.trials.state import State
from lab.trials.store import File


class TrialsFailed(RuntimeError):
    """Some trials of a sweep failed; the others are stored.

    `failures` lists (parameters, cause, traceback) of each.
    """

    def __init__(self, name, failures, total):
        self.failures = failures
        lines = [f"  {canonical(parameters)}: {cause}" for parameters, cause, _ in failures]
        head = f"{len(failures)} of {total} trials of {name} failed; the others are finished and stored"
        super().__init__("\n".join([head, *lines, "", failures[0][2]]).rstrip())


class NotRecorded(RuntimeError):
    """Trials are missing that were to be drawn from the record alone."""


class OutOfTime(RuntimeError):
    """The time that a run was given is over; what finished is stored."""


@dataclass
class Sources:
    """Where the finished trials of a notebook come from, and what they may still cost.

    notebook: its name without ending. store: this machine's folder. record: folders. data: {name:
    function of what follows the name, giving its hash}, for sources that trials report by
    `trace.reads`. comparisons: {claim/part: hash}, which a trial that never ran before keeps among
    its labels. root: the folder that paths of files are told from.
    """

    notebook: str
    store: Path
    record: list = field(default_factory=list)
    data: dict = field(default_factory=dict)
    comparisons: dict = field(default_factory=dict)
    root: Path = field(default_factory=Path.cwd)
    recorded_only: bool = False
    deadline: float = float("inf")  # time.time()

    @property
    def stored(self):
        """This machine's `File`, as it is now."""
        return File(Path(self.store) / f"{self.notebook}.jsonl")

    @cached_property
    def recorded(self):
        """Each published `File` of the notebook, first folder first."""
        return [
            File(Path(folder) / f"{self.notebook}.jsonl", strict=True) for folder in self.record
        ]

    @cached_property
    def elsewhere(self):
        """Each published `File` of another notebook, which may have run the very same trial."""
        paths = [path for folder in self.record for path in sorted(Path(folder).glob("*.jsonl"))]
        return [File(path, strict=True) for path in paths if path.stem != self.notebook]

    def data_hash(self, name):
        """The hash that a source, file or folder has now; None where it is gone."""
        word, _, rest = name.partition(" ")
        if word in self.data:
            return self.data[word](rest)
        home = files.PARENT if name.startswith("lab/") else self.root
        return files.content_hash(Path(home) / name)

    def inputs(self, point):
        """{path: hash} of the files and folders among the parameters."""
        found = {}
        for path in map(Path, files.inputs_of(point)):
            inside = path.is_relative_to(self.root)
            name = path.relative_to(self.root).as_posix() if inside else str(path)
            found[name] = files.content_hash(path)
        return found


@dataclass(frozen=True)
class Used:
    """A finished trial in a table: the function, its body, and where it came from."""

    trial: object
    body: dict
    origin: str  # "store", "record" or "run"


class Finished:
    """What is known of the points of one sweep."""

    def __init__(self, trial, sources, arithmetic, threads):
        self.name, self.sources = trial.__name__, sources
        self.code = code.code_of(trial)
        self.state = State(self.code, lru_cache(code.kind_hash), lru_cache(sources.data_hash))
        self.store = sources.stored
        self._arithmetic = arithmetic
        self._stored = {}
        self._ran = {self._name(body) for body in self.store.trials}
        for body in self.store.trials:
            if (body["labels"]["arithmetic"], body["labels"]["threads"]) == (arithmetic, threads):
                self._stored.setdefault(self._name(body), []).append((body, []))
        self._recorded = self._of(sources.recorded)

    def _of(self, files):
        """{name: [(body, changes that its file accepts)]} of this trial, this machine's digits
        first.
        """
        found = {}
        for file in files:
            mine = [body for body in file.trials if body["trial"] == self.name]
            mine.sort(key=lambda body: body["labels"]["arithmetic"] != self._arithmetic)
            for body in mine:
                found.setdefault(self._name(body), []).append((body, file.accepted))
        return found

    @cached_property
    def _elsewhere(self):
        return self._of(self.sources.elsewhere)

    @staticmethod
    def _name(body):
        return body["trial"], canonical(body["parameters"])

    def find(self, point):
        """(body, "store" or "record") of a finished trial that counts now, or None.

        One that counts since a change was accepted says so in its labels.
        """
        if body := self._counting(self._stored, point):
            return body, "store"
        body = self._counting(self._recorded, point) or self._counting(self._elsewhere, point)
        return (body, "record") if body else None

    def _counting(self, known, point):
        """The body of a point among those `known` that counts now, or None."""
        inputs = self.sources.inputs(point)
        pairs = known.get((self.name, canonical(point)), ())
        bodies = [pair for pair in pairs if inputs.items() <= pair[0]["data"].items()]
        for body, _ in bodies:
            if self.state.agrees(body):
                return body
        for body, accepted in bodies:
            if change := self.state.accepts(body, accepted):
                labels = body["labels"] | {"accepted": change["why"]}
                return body | {"code": self.code.digest, "labels": labels}
        return None

    def ran_before(self, point):
        """Whether this point ran before, by whatever code: then its result was known."""
        name = self.name, canonical(point)
        return name in self._ran or name in self._recorded

    def stale(self, left):
        """Of {name: point} that are left: what changed since they ran, and what that took; "" where
        none did.
        """
        names = [(self.name, name) for name in left]
        known = [self._stored.get(name) or self._recorded.get(name) for name in names]
        bodies = [pairs[0][0] for pairs in known if pairs]
        if not bodies:
            return ""
        changed = sorted({part for body in bodies for part in self.state.differences(body)})
        minutes = sum(body["seconds"] for body in bodies) / 60
        took = f"they took {minutes:.1f} minutes of one core"
        return f"; {len(bodies)} ran before a change in {', '.join(changed)}: {took}"


def sweep(
    trial,
    grid,
    *,
    sources,
    jobs=1,
    cluster=None,
    threads=1,
    device="auto",
    timing=False,
    progress=None,
    used=None,
):
    """A DataFrame with one row per row of each trial, in grid order: parameters, the row, then
    device, torch build, threads and seconds. Its attrs hold core_seconds, what all trials took,
    finished now or long ago.

    `trial` is a function of JSON-able parameters that returns a dict of numbers and words, a list
    of them or a DataFrame; its numbers are converted as its annotations say. `grid` maps a
    parameter to its list of values (the first varies slowest) or is a list of parameter dicts.
    `sources` says where finished trials are found and kept. More than one job runs in worker
    processes of this machine, and an address such as tcp://host:8786 as `cluster` on the Dask
    workers there. `timing` marks trials that read clocks or measure memory: they run here and now,
    one after another, and are never kept; `sittings.sweep` runs those whose numbers a process
    moves. `progress(done, total)` is called at the start
    and after every trial. `used` is a list that gets a `Used` for every trial.

    Raises TypeError for parameters that the trial does not take, ImpureTrial for a trial that reads
    data from outside itself, ValueError for a device that is not there, ConnectionError for a
    cluster that does not answer, RuntimeError for one whose workers differ, OSError for a store
    that cannot be written, NotRecorded and OutOfTime as `sources` ask, and TrialsFailed after all
    other trials have finished.
    """
    points = points_of(trial, grid)
    report = progress or (lambda done, total: None)
    if timing:
        return _timed(trial, points, report, device=available(device), threads=threads)
    with ExitStack() as stack:
        client = stack.enter_context(workers.connected(cluster)) if cluster else None
        where = place.of_cluster(client, device, threads) if client else place.here(device, threads)
        known = Finished(trial, sources, where["arithmetic"], threads)
        work = {canonical(point): point for point in points}
        finished = {name: found for name, point in work.items() if (found := known.find(point))}
        left = {name: point for name, point in work.items() if name not in finished}
        stale = known.stale(left)
        if left and sources.recorded_only:
            missing = f"{len(left)} of {len(work)} trials of {known.name} are not in the record"
            raise NotRecorded(f"{missing}, such as {next(iter(left))}{stale}")
        if stale:
            print(f"{len(left)} of {len(work)} trials of {known.name} run here{stale}")
        if not cluster and min(jobs, len(left)) > 1:
            client = stack.enter_context(workers.local(jobs))
        report(len(finished), len(work))
        call = partial(run_trial, device=where["device"], threads=threads)
        if client:
            outcomes = workers.run(client, call, trial, known.code, left, sources.deadline)
        else:
            outcomes = _run_here(call, trial, known.code, left, sources.deadline)
        failures = []
        for name, outcome in stack.enter_context(closing(outcomes)):
            point = left.pop(name)
            if "failed" in outcome:
                failures.append((point, outcome["failed"], outcome.get("traceback", "")))
            else:
                finished[name] = keep(known, point, outcome, where), "run"
            report(len(work) - len(left), len(work))
    if failures:
        raise TrialsFailed(known.name, failures, len(work))
    if left:
        raise OutOfTime(
            f"{len(left)} of {len(work)} trials of {known.name} are left; what finished is stored"
        )
    if used is not None:
        used += [Used(trial, *finished[name]) for name in work]
    made = table(points, [with_labels(finished[canonical(point)][0]) for point in points])
    made.attrs["core_seconds"] = sum(body["seconds"] for body, _ in finished.values())
    return made


def run_once(trial, point, *, device="auto", threads=1):
    """The rows that a sweep of this full point gives, run here and never kept."""
    return table([point], [run_body(trial, point, 1, device=available(device), threads=threads)])


def with_labels(body):
    """A body with the columns that every table has beside its rows."""
    return body | {name: body["labels"][name] for name in ("device", "torch", "threads")}


def _timed(trial, points, report, **options):
    bodies = []
    for point in points:
        report(len(bodies), len(points))
        bodies.append(run_body(trial, point, len(points), **options))
    report(len(bodies), len(points))
    return table(points, bodies)


def run_body(trial, point, total, **options):
    """What a trial gives here and now, one of `total`, as it would be read from a store."""
    outcome = run_trial(trial, point, timing=True, **options)
    if "failed" in outcome:
        raise TrialsFailed(
            trial.__name__, [(point, outcome["failed"], outcome["traceback"])], total
        )
    return json.loads(encoded({name: outcome[name] for name in ("n", "columns", *LABELS)}))


def keep(known, point, outcome, where):
    """Write the outcome of a trial to the store, and return it as it will be read."""
    kinds = {name: known.state.kind_hash(name) for name in sorted(outcome["kinds"])}
    data = dict(sorted((outcome["data"] | known.sources.inputs(point)).items()))
    told = {name: outcome[name] for name in ("n", "columns", "curve", "batch", "seconds")}
    body = {"trial": known.name, "parameters": point} | told
    body |= {"code": known.code.digest, "kinds": kinds, "data": data}
    labels = place.labels(where, outcome["threads"])
    if known.sources.comparisons and not known.ran_before(point):
        labels["comparisons"] = known.sources.comparisons
    return known.store.append(body, labels, known.code.parts)


def _run_here(call, trial, found, left, deadline):
    """One trial runs in any case, so that a short budget given again and again gets on."""
    found.clear_caches()
    for name, point in list(left.items()):
        yield name, call(trial, point)
        if time.time() > deadline:
            return
