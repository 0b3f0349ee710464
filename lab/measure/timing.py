"""Timing of calls in randomly ordered rounds."""

import random
import sys
from ctypes import CDLL
from math import ceil
from time import perf_counter, process_time

import pandas as pd
import torch

from lab import uses

ROUND = 0.001  # seconds; minimum duration of a round, which repeats shorter calls
TOTAL = 0.1  # seconds; total duration of the rounds of a call, at least three rounds


def benchmark(calls, parts, *, device="cpu"):
    """Time calls: a DataFrame with one row per call.

    calls: {tuple: function without arguments}. parts: column names for the values in the tuples.
    Columns: `parts`, then seconds_a_call and wall_seconds_a_call, both the minimum over rounds.
    seconds_a_call is processor time with one CPU thread, otherwise wall-clock time.

    The rounds of all calls run in one random order, so that drift of the machine affects all calls
    alike; compare calls by ratios. The minimum varies less than the median, because other programs
    and a shared cache can only add time. Long calls have few rounds, which raises their minimum by
    a few percent. Each process draws a new order and counts as one repetition: run the trial with
    study.sweep(..., processes=...).

    After this call the process keeps freed memory (up to 2 GiB at the end of the heap), so that
    timings exclude page faults and zeroing of pages. These took half the time of naive attention
    and would bias comparisons. Raises ValueError if there are no calls.
    """
    uses.clock("benchmark")
    _warm(calls, 0)
    times = {}
    schedule = []
    for name, call in calls.items():
        seconds = _fastest(call)
        times[name] = ceil(ROUND / seconds)
        schedule += [name] * max(3, ceil(TOTAL / (times[name] * seconds)))
    random.Random().shuffle(schedule)  # seeded by the system: the order differs between processes
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
    """Wall-clock seconds of every call in `repeats` rounds: columns name, repeat, seconds.

    callables: {name: function without arguments}; each is first called `warmup` times. Rounds of
    one process are not independent, so their spread does not measure the spread between processes.
    Raises ValueError if there are no functions.
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
    """Make the process keep freed memory, and call every function `times` times."""
    if not callables:
        raise ValueError("give at least one function")
    _keep_memory()
    for function in callables.values():
        for _ in range(times):
            function()


def _fastest(call):
    """Seconds of the fastest of two or three calls; the first may include one-time work."""
    taken = [_seconds(call), _seconds(call)]
    if taken[1] <= ROUND:
        taken.append(_seconds(call))
    return min(taken)


def _keep_memory():
    """Make glibc allocate all blocks on the heap and keep freed memory, up to 2 GiB at its end.

    Does nothing on other platforms.
    """
    if sys.platform == "linux" and hasattr(glibc := CDLL(None), "mallopt"):
        glibc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        # M_MMAP_MAX: otherwise blocks of 32 MiB or more are mapped and unmapped one by one
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
