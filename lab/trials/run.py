"""How one trial runs: its seed, threads, number type and device.

The code of this file is part of every trial's hash.

Where a trial draws random numbers without a generator of its own, they are seeded by its parameter
`seed`, or by 0 where it has none.
"""

import json
import random
import time
import traceback
from contextlib import contextmanager
from contextvars import ContextVar

from lab import trace
from lab.device import current
from lab.trials import files, rows

in_trial = ContextVar("in_trial", default=False)


def run_trial(trial, parameters, *, device, threads, timing=False, until=float("inf")):
    """The outcome of one trial as a dict: its rows, where it ran and what it used.

    A failed trial gives {"failed": cause, "traceback"}. A trial that is still in training `until`
    seconds after its start ends there and gives {"curve", "batch"} of its first training.
    """
    import torch

    from lab.trials import arithmetic

    files.watch()
    threads_before, dtype_before = torch.get_num_threads(), torch.get_default_dtype()
    tokens = current.set(device), in_trial.set(True)
    torch.set_num_threads(threads)
    torch.set_default_dtype(torch.float32)
    sow(parameters.get("seed", 0))
    start = time.perf_counter()
    inputs = tuple(files.inputs_of(parameters))
    try:
        with (
            trace.touching(timing=timing, inputs=inputs, until=start + until) as touched,
            arithmetic.fast(),
        ):
            result = trial(**json.loads(rows.canonical(parameters)))
        seconds = time.perf_counter() - start
        found = rows.checked(result, parameters)
        place = {
            "device": device,
            "torch": torch.__version__,
            "threads": threads,
            "seconds": round(seconds, 4),
        }
        seen = {
            "curve": touched.curve,
            "batch": touched.batch,
            "kinds": touched.kinds,
            "data": touched.data,
        }
        return {"n": len(found), "columns": rows.columns(found)} | seen | place
    except trace.Enough:
        return {"curve": touched.curve, "batch": touched.batch}
    except (Exception, SystemExit) as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        cause = (
            f"{type(error).__name__}: {error} "
            f"({where.filename}, line {where.lineno}, in {where.name})"
        )
        return {"failed": cause, "traceback": traceback.format_exc()}
    finally:
        torch.set_num_threads(threads_before)
        torch.set_default_dtype(dtype_before)
        current.reset(tokens[0])
        in_trial.reset(tokens[1])


def sow(seed):
    """Seed the global random generators of Python, numpy and torch."""
    import numpy
    import torch

    seed = seed if isinstance(seed, int) else 0
    for each in (random.seed, numpy.random.seed, torch.manual_seed):
        each(seed % 2**32)


@contextmanager
def as_in_a_trial():
    """Use one thread and the matrix products of trials, so that cells train the same models.

    Does nothing inside a trial.
    """
    import torch

    from lab.trials import arithmetic

    if in_trial.get():
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with arithmetic.fast():
            yield
    finally:
        torch.set_num_threads(threads)
