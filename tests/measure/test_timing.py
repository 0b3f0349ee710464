"""Timing: repeats, shuffled order and one row per call."""

import resource
import sys
from functools import partial

import pytest
import torch

from lab.measure import timing
from lab.measure.timing import benchmark, rounds


def test_rounds_call_every_function_once_in_shuffled_order():
    called = []
    functions = {name: (lambda name=name: called.append(name)) for name in "abc"}
    table = rounds(functions, repeats=20, warmup=1)
    assert called[:3] == list("abc") and called[3:] == table["name"].tolist()
    orders = table.groupby("repeat")["name"].agg("".join)
    assert len(orders) == 20 and {"".join(sorted(order)) for order in orders} == {"abc"} and orders.nunique() > 2
    assert (table["seconds"] >= 0).all()
    again = rounds(functions, repeats=20)
    assert again["name"].tolist() != table["name"].tolist(), "the order must be shuffled per call"
    with pytest.raises(ValueError):
        rounds({}, repeats=3)


@pytest.fixture
def clocks(monkeypatch):
    """(call, runs) on a fake clock: the i-th run of call(name, ticks) takes ticks(i); `runs` logs all runs."""
    now, runs = [0.0], []
    monkeypatch.setattr(timing, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing, "process_time", lambda: now[0] / 2)
    monkeypatch.setattr(timing, "ROUND", 2**-10)  # sums of powers of two are exact
    monkeypatch.setattr(timing, "TOTAL", 2**-4)

    def call(name, ticks):
        now[0] += ticks(runs.count(name))
        runs.append(name)

    return lambda name, ticks: partial(call, name, ticks), runs


def test_benchmark_reports_the_minimum_of_rounds(clocks, monkeypatch):
    call, runs = clocks
    calls = {
        ("steady", 5): call("steady", lambda i: 2**-7),
        ("once fast", 6): call("once fast", lambda i: 2**-9 if i == 5 else 2**-7),
    }
    threads = torch.get_num_threads()
    for n_threads, cpu_share in ((1, 0.5), (2, 1)):
        runs.clear()
        torch.set_num_threads(n_threads)
        table = benchmark(calls, ["name", "n"])
        torch.set_num_threads(threads)
        assert table[["name", "n"]].values.tolist() == [["steady", 5], ["once fast", 6]]
        assert table.wall_seconds_a_call.tolist() == [2**-7, 2**-9]
        assert (table.seconds_a_call == cpu_share * table.wall_seconds_a_call).all(), (
            "with one thread the CPU time is reported"
        )
        assert runs.count("steady") == runs.count("once fast") == 2 + 8, "TOTAL is 8 rounds"
    orders = {tuple(runs)}
    for _ in range(4):
        runs.clear()
        benchmark(calls, ["name", "n"])
        orders.add(tuple(runs))
    assert len(orders) > 1


def test_short_calls_repeat_within_rounds_and_long_calls_run_in_three_rounds(clocks):
    call, runs = clocks
    tick = 2**-14
    calls = {
        ("long",): call("long", lambda i: 0.5),
        ("short",): call("short", lambda i: tick),
        ("slow at first",): call("slow at first", lambda i: tick if i else 1.0),
    }
    table = benchmark(calls, ["name"])
    assert table.wall_seconds_a_call.tolist() == [0.5, tick, tick]
    assert runs.count("long") == 2 + 3
    assert runs.count("short") == runs.count("slow at first") == 3 + 64 * 16


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="allocator settings are for glibc")
def test_benchmark_does_not_time_page_faults(monkeypatch):
    """Buffers of 2 and 48 MiB in shuffled rounds: after warmup the allocator reuses most pages."""
    faults = []

    def call(elements):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(elements).sum()
        faults.append((elements, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before))

    benchmark({(n,): partial(call, n) for n in (2**19, 12 * 2**20)}, ["elements"])
    late = faults[len(faults) // 2 :]
    all_pages = sum(4 * elements / 4096 for elements, _ in late)
    page_faults = sum(pages for _, pages in late)
    assert page_faults < 0.5 * all_pages, "calls fault in their pages again"
