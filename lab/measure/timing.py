"""Timing of calls in shuffled rounds, and peak speeds of this machine."""

import random
import sys
from ctypes import CDLL
from math import ceil
from time import perf_counter, process_time

import pandas as pd
import torch

from lab import uses

ROUND = 0.001  # seconds: in one round a shorter call is repeated until they have passed
TOTAL = 0.1  # seconds: a call has as many rounds as take this long, and at least three


def benchmark(calls, parts, *, device="cpu"):
    """One row per call: `parts`, seconds_a_call and wall_seconds_a_call, the least of its rounds.

    The keys of `calls` are tuples with one value for each of `parts`. The rounds of all calls run
    in one shuffled order, so that drift of the machine affects all of them alike; compare them by
    ratios. The least counts, because other programs and a shared cache can only add time: two
    timings of the same call differ less by it than by the median. A long call has fewer rounds, so
    its least is a few percent higher than that of a hundred would be. With one CPU thread
    `seconds_a_call` is processor time, otherwise it is wall-clock time. Each process draws its own
    order and is one repetition: sweep the trial with `processes`.

    From this call on the process keeps freed memory, so that timings do not include page faults and
    zeroing by the system. These took half of the time of naive attention and would affect only one
    side of a comparison. Raises ValueError if there are no calls.
    """
    uses.clock("benchmark")
    _warm(calls, 0)
    times = {}
    schedule = []
    for name, call in calls.items():
        seconds = _fastest(call)
        times[name] = ceil(ROUND / seconds)
        schedule += [name] * max(3, ceil(TOTAL / (times[name] * seconds)))
    random.Random().shuffle(schedule)  # seeded by the system, differently in every process
    wall = {name: [] for name in calls}
    processor = {name: [] for name in calls}
    for name in schedule:
        start = process_time()
        wall[name].append(_seconds(calls[name], times[name]))
        processor[name].append(process_time() - start)
    charged = processor if device == "cpu" and torch.get_num_threads() == 1 else wall
    rows = [
        (*name, min(charged[name]) / times[name], min(wall[name]) / times[name]) for name in calls
    ]
    return pd.DataFrame(rows, columns=[*parts, "seconds_a_call", "wall_seconds_a_call"])


def rounds(callables: dict, repeats: int, *, warmup=2) -> pd.DataFrame:
    """Wall-clock seconds of every single call in `repeats` rounds: columns name, repeat, seconds.

    Rounds of one process are not independent: their spread says nothing about other processes.
    """
    uses.clock("rounds")
    _warm(callables, warmup)
    order = random.Random()
    names = list(callables)
    rows = []
    for repeat in range(repeats):
        for name in order.sample(names, len(names)):
            rows.append((name, repeat, _seconds(callables[name])))
    return pd.DataFrame(rows, columns=["name", "repeat", "seconds"])


def _warm(callables, times):
    """Keep freed memory, and call every function a few times before the clock runs."""
    if not callables:
        raise ValueError("give at least one function")
    _keep_memory()
    for function in callables.values():
        for _ in range(times):
            function()


def _fastest(call):
    """Seconds of the fastest of two or three calls; the first may include preparations."""
    taken = [_seconds(call), _seconds(call)]
    if taken[1] <= ROUND:
        taken.append(_seconds(call))
    return min(taken)


def _keep_memory():
    """With glibc, take all blocks from the heap and never return freed memory to the system.

    Does nothing on other platforms.
    """
    if sys.platform == "linux" and hasattr(glibc := CDLL(None), "mallopt"):
        glibc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        # M_MMAP_MAX: otherwise each block of 32 MiB or more would get its own mapping
        glibc.mallopt(-4, 0)


def _seconds(function, times=1):
    _synchronize()
    start = perf_counter()
    for _ in range(times):
        function()
    _synchronize()
    return perf_counter() - start


def _synchronize():
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()
