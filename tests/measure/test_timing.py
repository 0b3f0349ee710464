"""Clocks: every call is timed as often as asked, in changing order, under its own name."""

import resource
import sys
from functools import partial

import pytest
import torch

from lab.measure import timing
from lab.measure.timing import benchmark, interleaved, machine_peaks, rounds


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


def test_a_call_gives_one_row_the_median_of_its_rounds(monkeypatch):
    """The clock is pretended: each call takes longer than the one before."""
    now, called = [0.0], []
    monkeypatch.setattr(timing, "perf_counter", lambda: now[0])

    def call(name):
        called.append(name)
        now[0] += called.count(name)

    table = interleaved({name: partial(call, name) for name in "ba"}, warmup=0)
    assert table.to_dict("list") == {"name": ["b", "a"], "seconds": [(timing.ROUNDS + 1) / 2] * 2}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is kept by glibc")
@pytest.mark.parametrize("clock", [interleaved, partial(benchmark, parts=["call"], fill=1e-9)])
def test_no_clock_times_the_finding_of_pages(clock, monkeypatch):
    """Blocks of 2 and of 48 MiB, in shuffled rounds: most pages are there once every call has run."""
    faults = []

    def call(elements):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(elements).sum()
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

    monkeypatch.setattr(timing, "ROUNDS", 10)
    clock({(n,): partial(call, n) for n in (2**19, 12 * 2**20)})
    of_all_calls = 10 * 50 * 2**20 / 4096
    assert sum(faults[-20:]) < 0.5 * of_all_calls, "without kept memory each call asks for all of its pages"


def test_a_slow_first_call_shortens_no_loop(monkeypatch):
    """The clock is pretended: the first call prepares for a second, the later ones take a tick."""
    now, called, tick = [0.0], [], 2**-10
    monkeypatch.setattr(timing, "perf_counter", lambda: now[0])

    def call(name, first):
        now[0] += tick if name in called else first
        called.append(name)

    calls = {(first,): partial(call, first, first) for first in (1.0, tick)}
    table = benchmark(calls, ["first"], fill=16 * tick)
    assert called.count(1.0) == called.count(tick) == 3 + timing.ROUNDS * 16
    assert table.wall_seconds_a_call.tolist() == [tick] * 2
    called.clear()
    benchmark({("long",): partial(call, "long", 0.5)}, ["name"], fill=1e-4)
    assert called.count("long") == 2 + timing.ROUNDS, "warm after one, and no third one for what fills its time"


def test_machine_peaks_are_plausible():
    peaks = machine_peaks()
    assert peaks["matmul_gflop_per_s"] > 1 and peaks["copy_gbyte_per_s"] > 0.1
    assert peaks["threads"] == torch.get_num_threads()


def test_short_calls_fill_their_time_and_keep_their_names():
    x, done = torch.ones(200, 200), []
    calls = {("product", 2): lambda: x @ x, ("counted", 1): lambda: done.append(1)}
    table = benchmark(calls, ["kind", "size"], fill=1e-4)
    assert table[["kind", "size"]].to_dict("list") == {"kind": ["product", "counted"], "size": [2, 1]}
    assert len(done) > 100 and (table.wall_seconds_a_call > 0).all()
    typical = table.set_index("kind").wall_seconds_a_call
    assert typical["product"] > typical["counted"]
