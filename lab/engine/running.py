"""One trial and its place: what a function gives for its parameters, where it ran and what it touched."""

import hashlib
import json
import platform
import random
import time
import traceback
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

from lab import trace
from lab.engine import fingerprint, models, source, workers
from lab.engine import store as trial_store
from lab.engine.device import available, current

LABELS = ("device", "torch", "threads", "seconds")  # columns that the engine adds to every row


def run_trial(trial, parameters, *, device, threads, timing=False, until=float("inf"), kept=None):
    """What one trial gives: its rows with where it ran and what it touched, or the cause why it failed.

    Random numbers that come from no generator of the trial's own follow from its parameters. A trial that is still in
    training `until` seconds after its start ends there: {"curve", "batch"} of its beginning. `kept` is the folder of
    trained models that it may use; without one it trains what it needs. Its seconds hold the training of those it took.
    """
    import numpy
    import torch

    from lab.engine import arithmetic

    threads_before, dtype_before = torch.get_num_threads(), torch.get_default_dtype()
    seed = int(hashlib.sha256(trial_store.canonical(parameters).encode()).hexdigest()[:8], 16)
    tokens = current.set(device), models.kept_in.set(kept)
    torch.set_num_threads(threads)
    try:
        start = time.perf_counter()
        for sow in (random.seed, numpy.random.seed, torch.manual_seed):
            sow(seed)
        with trace.touching(timing=timing, until=start + until) as touched, arithmetic.fast():
            result = trial(**json.loads(trial_store.canonical(parameters)))
        seconds = time.perf_counter() - start + touched.spared
        rows = [_row(row, parameters) for row in _rows(result)]
        place = {"device": device, "torch": torch.__version__, "threads": threads, "seconds": round(seconds, 4)}
        seen = {"curve": touched.curve, "batch": touched.batch}
        made_of = {"kinds": touched.kinds, "data": touched.all_data()}
        return {"n": len(rows), "columns": trial_store.columns(rows)} | seen | place | made_of
    except trace.Enough:
        return {"curve": touched.curve, "batch": touched.batch}
    except (Exception, SystemExit) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        cause = f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno}, in {where.name})"
        return {"failed": cause, "traceback": traceback.format_exc()}
    finally:
        torch.set_num_threads(threads_before)
        torch.set_default_dtype(dtype_before)
        current.reset(tokens[0])
        models.kept_in.reset(tokens[1])


def run_traced(code, trial, parameters, **options):
    """run_trial, failed where it runs a definition of lab that its fingerprint would not notice."""
    with trace.executed() as found:
        outcome = run_trial(trial, parameters, **options)
    if "failed" in outcome:
        return outcome
    known = set(code.parts)
    for name in outcome.get("kinds", ()):
        seam, _, kind = name.partition(".")
        known |= set(fingerprint.code_of(dict.get(trace.SEAMS[seam].kinds, kind)).parts)
    if outside := sorted(name for name in found - known if not name.startswith(source.RUNS)):
        return {"failed": f"runs {', '.join(outside)}, which its fingerprint does not hold"}
    return outcome


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
    if taken := [name for name in row if name in parameters or name in LABELS]:
        raise TypeError(f"the table has its own column for {', '.join(taken)}: give the row's value another name")
    if odd := {name: value for name, value in row.items() if not isinstance(value, (str, int, float, type(None)))}:
        raise TypeError(f"a row holds numbers, words, True, False and None, not {odd}")
    return row


def whereabouts(device, threads):
    """What must be the same wherever the trials of one sweep run."""
    import torch

    from lab.engine import arithmetic

    place = available(device)
    python = ".".join(platform.python_version_tuple()[:2])
    build = {"device": place, "torch": str(torch.__version__), "python": python}
    return build | {"arithmetic": arithmetic.digest(place, threads), "code": package_hash()}


@cache
def package_hash():
    """The hash of all code of lab, as it was when this process first asked."""
    files = sorted(Path(trace.__file__).parent.rglob("*.py"))
    return source.digest(json.dumps([trace.file_hash(path) for path in files]))


def whereabouts_of(client, device, threads):
    """The whereabouts of a cluster. RuntimeError where its workers differ, or run another Python or lab than this."""
    there = workers.agreed(client, partial(whereabouts, device, threads))
    if there["python"] != (here := ".".join(platform.python_version_tuple()[:2])):
        raise RuntimeError(f"the workers run Python {there['python']}, but here it is {here}: use the same")
    if there["code"] != package_hash():
        raise RuntimeError("the workers run other code of lab: install the same commit there")
    return there
