"""Seconds a call of things that differ a thousandfold in size, fairly: short calls in loops, all in shuffled rounds."""

import sys
from ctypes import CDLL
from math import ceil
from time import perf_counter, process_time

import torch

from lab import trace
from lab.measure.cost import interleaved


def keep_memory():
    """From here on freed memory stays with this process (glibc), so that asking the system for pages is not timed."""
    if sys.platform == "linux" and hasattr(glibc := CDLL(None), "mallopt"):
        glibc.mallopt(-1, 2**30)  # M_TRIM_THRESHOLD
        glibc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, the largest allowed


def seconds_a_call(calls, parts, repeats, *, fill=0.004, device="cpu"):
    """Long form, one row per call and repeat: repeat, seconds_a_call, wall_seconds_a_call, and `parts`.

    The names in `calls` are tuples, one value for each of `parts`. A call shorter than `fill` seconds runs in a loop
    that fills them. One thread on a CPU is charged its processor time, which other programs' turns do not lengthen;
    elsewhere `seconds_a_call` is the time on the wall.
    """
    trace.clock("seconds_a_call")
    loops, spent = {}, []
    for name, call in calls.items():
        for _ in range(3):  # the first call of its kind may still prepare something
            start = perf_counter()
            call()
            loops[name] = ceil(fill / (perf_counter() - start))
            if loops[name] == 1:
                break

    def looped(call, times):
        def run():
            start = process_time()
            for _ in range(times):
                call()
            spent.append(process_time() - start)

        return run

    rounds = {name: looped(call, loops[name]) for name, call in calls.items()}
    table = interleaved(rounds, repeats, warmup=0)
    times = [loops[name] for name in table["name"]]
    table["wall_seconds_a_call"] = table.pop("seconds") / times
    alone = device == "cpu" and torch.get_num_threads() == 1
    table["seconds_a_call"] = [s / n for s, n in zip(spent, times, strict=True)] if alone else table.wall_seconds_a_call
    table[list(parts)] = table.pop("name").tolist()
    return table
