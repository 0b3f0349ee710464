"""Timing of calls in interleaved rounds, and peak speeds of this machine."""

import random
import sys
from ctypes import CDLL
from math import ceil
from time import perf_counter, process_time

import pandas as pd
import torch

from lab import trace

ROUNDS = 3  # per process; more processes are more informative than more rounds


def interleaved(callables: dict, *, warmup=2) -> pd.DataFrame:
    """Wall-clock seconds of every function: one row each, the median over ROUNDS rounds.

    Columns: name, seconds. The order is shuffled in every round, so that drift of the machine
    affects all functions alike; compare them by ratios. Each process draws its own orders and is
    one repetition: sweep the trial with `processes`.

    From this call on the process keeps freed memory, so that timings do not include page faults and
    zeroing by the system. These took half of the time of naive attention and would affect only one
    side of a comparison.
    """
    trace.clock("interleaved")
    _warm(callables, warmup)
    return _medians(callables)[["name", "seconds"]]


def rounds(callables: dict, repeats: int, *, warmup=2) -> pd.DataFrame:
    """Wall-clock seconds of every single call in `repeats` rounds: columns name, repeat, seconds.

    Rounds of one process are not independent: their spread says nothing about other processes.
    """
    trace.clock("rounds")
    _warm(callables, warmup)
    return _rounds(callables, repeats).drop(columns="processor_seconds")


def benchmark(calls, parts, *, fill=0.004, device="cpu"):
    """One row per call: seconds_a_call and wall_seconds_a_call, medians over rounds, and `parts`.

    The keys of `calls` are tuples with one value for each of `parts`. A call shorter than `fill`
    seconds is repeated until it fills them. With one CPU thread `seconds_a_call` is processor time,
    which other programs do not affect; otherwise it is wall-clock time. As in `interleaved`, a
    process is one repetition.
    """
    trace.clock("benchmark")
    _warm(calls, 0)
    times = {name: _repetitions(fill, call) for name, call in calls.items()}
    table = _medians({name: _loop(call, times[name]) for name, call in calls.items()})
    times = table["name"].map(times)
    table["wall_seconds_a_call"] = table.pop("seconds") / times
    table["seconds_a_call"] = table.pop("processor_seconds") / times
    if device != "cpu" or torch.get_num_threads() > 1:
        table["seconds_a_call"] = table.wall_seconds_a_call
    table[list(parts)] = table.pop("name").tolist()
    return table


def _warm(callables, times):
    """Keep freed memory, and call every function a few times before the clock runs."""
    if not callables:
        raise ValueError("give at least one function")
    _keep_memory()
    for function in callables.values():
        for _ in range(times):
            function()


def _medians(callables):
    """Columns seconds (wall clock), processor_seconds, name: one row for each function."""
    names = list(callables)
    table = _rounds(callables, ROUNDS)
    of_name = table.groupby(table["name"].map(names.index))
    medians = of_name[["seconds", "processor_seconds"]].median()
    return medians.assign(name=names).reset_index(drop=True)


def _rounds(callables, repeats):
    """Columns name, repeat, seconds (wall clock), processor_seconds; one row per call."""
    order = random.Random()  # seeded by the system, differently in every process
    names = list(callables)
    rows = []
    for repeat in range(repeats):
        for name in order.sample(names, len(names)):
            start = process_time()
            seconds = _seconds(callables[name])
            rows.append((name, repeat, seconds, process_time() - start))
    return pd.DataFrame(rows, columns=["name", "repeat", "seconds", "processor_seconds"])


def _loop(call, times):
    """A function that repeats the call `times` times."""

    def run():
        for _ in range(times):
            call()

    return run


def _repetitions(seconds, call):
    """Number of calls that fill `seconds`, by the fastest of two or three calls."""
    taken = [_seconds(call), _seconds(call)]
    if taken[1] <= seconds:
        taken.append(_seconds(call))
    return ceil(seconds / min(taken))


def machine_peaks(device="cpu") -> dict:
    """Roofline of this machine: float32 matrix product and copy, best of ten, within a second.

    Keys: matmul_gflop_per_s (two operations per multiply-add), copy_gbyte_per_s (read plus written,
    10⁹ bytes), threads.
    """
    trace.clock("machine_peaks")
    size = 1024 if device == "cpu" else 8192
    a, b = torch.ones(2, size, size, device=device)
    source = torch.ones(2**25 if device == "cpu" else 2**28, device=device)
    target = torch.empty_like(source)
    calls = {"matmul": lambda: a @ b, "copy": lambda: target.copy_(source)}
    best = rounds(calls, repeats=10).groupby("name")["seconds"].min()
    return {
        "matmul_gflop_per_s": 2e-9 * size**3 / float(best["matmul"]),
        "copy_gbyte_per_s": 2e-9 * source.nbytes / float(best["copy"]),
        "threads": torch.get_num_threads(),
    }


def _keep_memory():
    """With glibc, take all blocks from the heap and never return freed memory to the system.

    Does nothing on other platforms.
    """
    if sys.platform == "linux" and hasattr(glibc := CDLL(None), "mallopt"):
        glibc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD
        # M_MMAP_MAX: otherwise each block of 32 MiB or more would get its own mapping
        glibc.mallopt(-4, 0)


def _seconds(function):
    _synchronize()
    start = perf_counter()
    function()
    _synchronize()
    return perf_counter() - start


def _synchronize():
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()
