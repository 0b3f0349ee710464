"""Clocks: every call is timed as often as asked, in changing order, under its own name."""

import resource
import sys
from functools import partial

import pytest
import torch

from lab.measure import timing
from lab.measure.timing import benchmark, rounds


def test_rounds_hold_every_name_once_in_changing_order():
    called = []
    functions = {name: (lambda name=name: called.append(name)) for name in "abc"}
    table = rounds(functions, repeats=20, warmup=1)
    assert called[:3] == list("abc") and called[3:] == table["name"].tolist()
    orders = table.groupby("repeat")["name"].agg("".join)
    assert len(orders) == 20 and {"".join(sorted(order)) for order in orders} == {"abc"} and orders.nunique() > 2
    assert (table["seconds"] >= 0).all()
    again = rounds(functions, repeats=20)
    assert again["name"].tolist() != table["name"].tolist(), "another order in every process"
    with pytest.raises(ValueError):
        rounds({}, repeats=3)


@pytest.fixture
def clocks(monkeypatch):
    """Pretended clocks: `clocks(name, ticks)` is a call whose i-th run takes ticks(i); and all runs."""
    now, runs = [0.0], []
    monkeypatch.setattr(timing, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing, "process_time", lambda: now[0] / 2)
    monkeypatch.setattr(timing, "ROUND", 2**-10)  # sums of powers of two are exact
    monkeypatch.setattr(timing, "TOTAL", 2**-4)

    def call(name, ticks):
        now[0] += ticks(runs.count(name))
        runs.append(name)

    return lambda name, ticks: partial(call, name, ticks), runs


def test_a_call_gives_one_row_the_least_of_its_rounds(clocks, monkeypatch):
    call, runs = clocks
    calls = {
        ("steady", 5): call("steady", lambda i: 2**-7),
        ("once fast", 6): call("once fast", lambda i: 2**-9 if i == 5 else 2**-7),
    }
    threads = torch.get_num_threads()
    for given, charged in ((1, 0.5), (2, 1)):
        runs.clear()
        torch.set_num_threads(given)
        table = benchmark(calls, ["name", "n"])
        torch.set_num_threads(threads)
        assert table[["name", "n"]].values.tolist() == [["steady", 5], ["once fast", 6]]
        assert table.wall_seconds_a_call.tolist() == [2**-7, 2**-9]
        assert (table.seconds_a_call == charged * table.wall_seconds_a_call).all(), "the processor's with one thread"
        assert runs.count("steady") == runs.count("once fast") == 2 + 8, "8 rounds are a sixteenth of a second"
    orders = {tuple(runs)}
    for _ in range(4):
        runs.clear()
        benchmark(calls, ["name", "n"])
        orders.add(tuple(runs))
    assert len(orders) > 1


def test_a_short_call_fills_its_rounds_and_a_long_one_has_three(clocks):
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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is kept by glibc")
def test_no_clock_times_the_finding_of_pages(monkeypatch):
    """Blocks of 2 and of 48 MiB, in shuffled rounds: most pages are there once every call has run."""
    faults = []

    def call(elements):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(elements).sum()
        faults.append((elements, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before))

    benchmark({(n,): partial(call, n) for n in (2**19, 12 * 2**20)}, ["elements"])
    late = faults[len(faults) // 2 :]
    of_all_calls = sum(4 * elements / 4096 for elements, _ in late)
    found = sum(pages for _, pages in late)
    assert found < 0.5 * of_all_calls, "without kept memory each call asks for all of its pages"
