"""Trials: the unit of work. A sweep runs one function over a grid of parameters, and never runs a finished trial again.

Every finished trial is a file of its own, written at once, so that a kill at any moment loses only what was in flight.
"""

import itertools
import json
import platform
import time
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from inspect import Parameter, isfunction, signature
from pathlib import Path

from lab.engine import store as trial_store
from lab.engine import workers
from lab.engine.device import available, current
from lab.engine.fingerprint import code_fingerprint, trial_code

RECORDED = ("device", "torch", "threads", "seconds")  # columns that the engine adds to every row


class TrialsFailed(RuntimeError):
    """Some trials of a sweep failed; the others are stored. `failures` lists (parameters, cause, traceback) of each."""

    def __init__(self, name, failures, total):
        self.failures = failures
        lines = [f"  {trial_store.canonical(parameters)}: {cause}" for parameters, cause, _ in failures]
        head = f"{len(failures)} of {total} trials of {name} failed; the others are finished and stored"
        super().__init__("\n".join([head, *lines, "", failures[0][2]]).rstrip())


def sweep(trial, grid, *, store, jobs=1, cluster=None, threads=1, device="auto", data="", progress=None):
    """A DataFrame with one row per row of each trial, in grid order: parameters, the row, then device, torch build,
    threads and seconds. Its attrs hold core_seconds, what all trials took, finished now or long ago.

    `trial` is a function of JSON-able parameters that returns a dict of numbers and words, a list of them or a
    DataFrame. `grid` maps a parameter to its list of values (the first varies slowest) or is a list of parameter dicts.
    Finished trials are kept in the folder `store`. More than one job runs in worker processes of this machine, and an
    address such as tcp://host:8786 as `cluster` on the Dask workers there. `data` identifies what the trials read
    from outside, such as the hash of a corpus. `progress(done, total, workers)` is called at
    the start and after every trial.

    Raises TypeError for parameters that the trial does not take, ImpureTrial for a trial that reads data from outside
    itself, ValueError for a device that is not there, ConnectionError for a cluster that does not answer, RuntimeError
    for one whose workers differ, OSError for a store that cannot be written, and TrialsFailed after all other trials
    have finished.
    """
    points = _points(trial, grid)
    code = trial_code(trial)
    modules, code = sorted(code.modules), code.digest()
    folder = Path(store) / trial.__name__
    with ExitStack() as stack:
        client = stack.enter_context(workers.connected(cluster)) if cluster else None
        place = whereabouts_of(client, device, modules) if client else whereabouts(device, modules)
        keys = [trial_store.key([point, code, data, place["torch"], place["device"], threads]) for point in points]
        work = dict(zip(keys, points, strict=True))
        finished = {key: body for key in work if (body := trial_store.read(folder, key))}
        left = {key: trial_store.canonical(point) for key, point in work.items() if key not in finished}
        if left:
            trial_store.make(folder)
        if not cluster and min(jobs, len(left)) > 1:
            client = stack.enter_context(workers.local(jobs))
        report = progress or (lambda done, total, workers: None)
        report(len(finished), len(work), workers.count(client))
        call = partial(run_trial, trial, device=place["device"], threads=threads)
        outcomes = _run_here(call, left) if client is None else workers.run(client, call, left)
        failures = []
        for key, outcome in stack.enter_context(closing(outcomes)):
            if "failed" in outcome:
                failures.append((work[key], outcome["failed"], outcome.get("traceback", "")))
            else:
                finished[key] = trial_store.write(folder, key, {"parameters": work[key]} | outcome)
            report(len(finished) + len(failures), len(work), workers.count(client))
    if failures:
        raise TrialsFailed(trial.__name__, failures, len(work))
    table = _table(points, [finished[key] for key in keys])
    table.attrs["core_seconds"] = sum(finished[key]["seconds"] for key in work)
    return table


# Parameters

NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def _points(trial, grid):
    """The parameter dicts of a grid, defaults included, as they look after a round trip through JSON."""
    if not isfunction(trial) or trial.__name__ == "<lambda>":
        raise TypeError(f"a trial is a function written with def, not {trial!r}")
    if isinstance(grid, Mapping):
        axes = {name: _values(values) for name, values in grid.items()}
        points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
        if empty := [name for name, values in axes.items() if not len(values)]:
            raise ValueError(f"the grid of {trial.__name__} has no value for {', '.join(map(repr, empty))}")
    else:
        points = [dict(point) for point in grid]
    if not points:
        raise ValueError(f"the grid of {trial.__name__} is empty")
    return [_complete(trial, point) for point in points]


def _values(values):
    """The list of values of one parameter; what is no list counts as one value."""
    listed = isinstance(values, (list, tuple, range)) or type(values).__name__ == "ndarray"
    return list(values) if listed else [values]


def _complete(trial, point):
    takes = signature(trial).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    missing = [name for name, p in takes.items() if p.default is p.empty and p.kind in NAMED and name not in point]
    unknown = [name for name in point if name not in takes and not open_ended]
    wrong = [f"{name!r} is missing" for name in missing] + [f"{name!r} is unknown" for name in unknown]
    if wrong:
        raise TypeError(f"{trial.__name__}{signature(trial)}: parameter {', '.join(wrong)}")
    if taken := [name for name in takes if name in RECORDED]:
        raise TypeError(f"{trial.__name__}: {', '.join(taken)} is recorded by the sweep; name the parameter otherwise")
    defaults = {name: p.default for name, p in takes.items() if p.kind in NAMED and name not in point}
    try:
        return json.loads(json.dumps(point | defaults, default=trial_store.plain_or_error))
    except (TypeError, ValueError) as error:
        raise TypeError(f"the parameters of {trial.__name__} must be JSON values: {error}") from None


# One trial


def run_trial(trial, parameters, *, device, threads):
    """What one trial gives: its rows with device, torch build, threads and seconds, or the cause why it failed."""
    import torch

    from lab.engine import arithmetic

    parameters = json.loads(parameters)
    threads_before = torch.get_num_threads()
    token = current.set(device)
    torch.set_num_threads(threads)
    try:
        start = time.perf_counter()
        with arithmetic.fast():
            rows = trial(**parameters)
        seconds = time.perf_counter() - start
        rows = [_row(row, parameters) for row in _rows(rows)]
        return {"rows": rows, "device": device, "torch": torch.__version__, "threads": threads, "seconds": seconds}
    except (Exception, SystemExit) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        cause = f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno}, in {where.name})"
        return {"failed": cause, "traceback": traceback.format_exc()}
    finally:
        torch.set_num_threads(threads_before)
        current.reset(token)


def _rows(result):
    import pandas

    if isinstance(result, pandas.DataFrame):
        return result.to_dict("records")
    rows = [result] if isinstance(result, Mapping) else result
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise TypeError(f"a trial returns a dict, a list of dicts or a DataFrame, not {result!r}")
    return rows


def _row(row, parameters):
    row = {name: trial_store.plain(value) for name, value in row.items()}
    if taken := [name for name in row if name in parameters or name in RECORDED]:
        raise TypeError(f"the table has its own column for {', '.join(taken)}: give the row's value another name")
    if odd := {name: value for name, value in row.items() if not isinstance(value, (str, int, float, type(None)))}:
        raise TypeError(f"a row holds numbers, words, True, False and None, not {odd}")
    return row


# Places and engines


def _run_here(call, left):
    for key, parameters in left.items():
        yield key, call(parameters)


def whereabouts(device, modules):
    """What must be the same wherever the trials of one sweep run."""
    import torch

    python = ".".join(platform.python_version_tuple()[:2])
    build = {"device": available(device), "torch": str(torch.__version__), "python": python}
    return build | {"code": code_fingerprint(modules)}


def whereabouts_of(client, device, modules):
    """The whereabouts of a cluster. RuntimeError where its workers differ, or run another Python or lab than this."""
    there, here = workers.agreed(client, partial(whereabouts, device, modules)), whereabouts("auto", modules)
    if there["python"] != here["python"]:
        raise RuntimeError(f"the workers run Python {there['python']}, but here it is {here['python']}: use the same")
    if there["code"] != here["code"]:
        raise RuntimeError("the workers run other code of lab: install the same commit there")
    return there


def _table(points, bodies):
    import pandas

    rows = [
        point | row | {name: body[name] for name in RECORDED}
        for point, body in zip(points, bodies, strict=True)
        for row in body["rows"]
    ]
    columns = dict.fromkeys(name for point in points for name in point)
    columns |= dict.fromkeys(name for body in bodies for row in body["rows"] for name in row)
    return pandas.DataFrame(rows, columns=[*columns, *RECORDED])
