"""A sweep: one function called at every point of a grid of parameters.

Each such call is a trial. A finished trial is looked up in this machine's store, then in the record
of its notebook, then in the records of other notebooks. A trial that none of them holds runs now.
It is written to the store when it ends, so a kill loses only the trials that are running.
"""

import json
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
    """Raised where some trials of a sweep failed; the others are stored.

    `failures` lists (parameters, cause, traceback) of each failed trial.
    """

    def __init__(self, name, failures, total):
        self.failures = failures
        lines = [f"  {canonical(parameters)}: {cause}" for parameters, cause, _ in failures]
        head = (
            f"{len(failures)} of {total} trials of {name} failed; "
            "the others are finished and stored"
        )
        super().__init__("\n".join([head, *lines, "", failures[0][2]]).rstrip())


class NotRecorded(RuntimeError):
    """Raised where only recorded trials are allowed and some are not in the record."""


@dataclass
class Sources:
    """Where the finished trials of a notebook come from, and whether others may run.

    notebook       its file name without ending
    store          the folder of this machine's trials
    record         folders of recorded trials
    data           {name: function} for the sources that trials report by `trace.reads`; a function
                   maps the text after the name to the hash of the source
    comparisons    {claim/part: hash}, added to the labels of a trial that never ran before
    root           the folder that the paths of input files are relative to
    recorded_only  whether only recorded trials are allowed
    """

    notebook: str
    store: Path
    record: list = field(default_factory=list)
    data: dict = field(default_factory=dict)
    comparisons: dict = field(default_factory=dict)
    root: Path = field(default_factory=Path.cwd)
    recorded_only: bool = False

    @property
    def stored(self):
        """The `File` of this machine's trials, read now."""
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
        """The hash of a source, file or folder now; None where it does not exist."""
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
    """The finished trials of one sweep's function, from the store and the record."""

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
        """{name: [(body, accepted changes of its file)]} of this trial's rows in `files`.

        Rows with the arithmetic of this machine come first.
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
        """(body, "store" or "record") of a valid finished trial at this point, or None.

        If it is valid because of an accepted change, its labels hold the reason as "accepted".
        """
        if body := self._counting(self._stored, point):
            return body, "store"
        body = self._counting(self._recorded, point) or self._counting(self._elsewhere, point)
        return (body, "record") if body else None

    def _counting(self, known, point):
        """The valid body at this point among those `known`, or None."""
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
        """Whether this point ran before with any code, so that its result may have been known."""
        name = self.name, canonical(point)
        return name in self._ran or name in self._recorded

    def stale(self, left):
        """A clause about the trials `left`, {name: point}, that ran with other code, kinds or data.

        It names the changes and the time that these trials took; "" where none ran before.
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
    """A DataFrame with the rows of all trials in grid order.

    Its columns are the parameters, the values of the row, device, torch build, threads and seconds.
    Its attribute attrs["core_seconds"] is the time that all trials took when they ran.

    `trial` is a function of JSON values that returns a dict of numbers and words, a list of such
    dicts or a DataFrame; numbers among its arguments are converted to the annotated type. `grid`
    maps a parameter to its list of values (the first parameter varies slowest) or is a list of
    parameter dicts. `sources` says where finished trials are found and stored. With `jobs` above 1
    trials run in worker processes of this machine. With a `cluster`, an address such as
    tcp://host:8786, they run on its Dask workers. Trials that read clocks or measure memory need
    `timing`: they run in this process, one after another, and are never stored; `sittings.sweep` is
    for timings that vary from process to process. `progress(done, total)` is called at the start
    and after every trial. `used` is a list that gets a `Used` for every trial.

    Raises TypeError for parameters that the trial does not take, ImpureTrial for a trial that reads
    data from outside itself, ValueError for a device that does not exist, ConnectionError for a
    cluster that does not answer, RuntimeError for a cluster whose workers differ, and OSError for a
    store that cannot be written. Raises NotRecorded where `sources` allows only recorded trials and
    some are missing, and TrialsFailed where trials failed, after all others have finished.
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
            outcomes = workers.run(client, call, trial, known.code, left)
        else:
            outcomes = _run_here(call, trial, known.code, left)
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
    if used is not None:
        used += [Used(trial, *finished[name]) for name in work]
    made = table(points, [with_labels(finished[canonical(point)][0]) for point in points])
    made.attrs["core_seconds"] = sum(body["seconds"] for body, _ in finished.values())
    return made


def run_once(trial, point, *, device="auto", threads=1):
    """The table of one trial at a full point, run in this process and never stored."""
    return table([point], [run_body(trial, point, 1, device=available(device), threads=threads)])


def with_labels(body):
    """A body with the labels device, torch and threads, which are columns of every table."""
    return body | {name: body["labels"][name] for name in ("device", "torch", "threads")}


def _timed(trial, points, report, **options):
    bodies = []
    for point in points:
        report(len(bodies), len(points))
        bodies.append(run_body(trial, point, len(points), **options))
    report(len(bodies), len(points))
    return table(points, bodies)


def run_body(trial, point, total, **options):
    """The body of a trial that runs now, as it would be read from a store.

    Raises TrialsFailed where the trial fails; `total` is the number of trials in its message.
    """
    outcome = run_trial(trial, point, timing=True, **options)
    if "failed" in outcome:
        raise TrialsFailed(
            trial.__name__, [(point, outcome["failed"], outcome["traceback"])], total
        )
    return json.loads(encoded({name: outcome[name] for name in ("n", "columns", *LABELS)}))


def keep(known, point, outcome, where):
    """Write the outcome of a trial to the store, and return its body as a reader gets it."""
    kinds = {name: known.state.kind_hash(name) for name in sorted(outcome["kinds"])}
    data = dict(sorted((outcome["data"] | known.sources.inputs(point)).items()))
    result = {name: outcome[name] for name in ("n", "columns", "curve", "batch", "seconds")}
    body = {"trial": known.name, "parameters": point} | result
    body |= {"code": known.code.digest, "kinds": kinds, "data": data}
    labels = place.labels(where, outcome["threads"])
    if known.sources.comparisons and not known.ran_before(point):
        labels["comparisons"] = known.sources.comparisons
    return known.store.append(body, labels, known.code.parts)


def _run_here(call, trial, found, left):
    """Yield (name, outcome) of the trials `left`, run in this process."""
    found.clear_caches()
    for name, point in list(left.items()):
        yield name, call(trial, point)
