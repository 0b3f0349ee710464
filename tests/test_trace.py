"""What a trial touches is told to whoever asks: files, kinds, data and clocks, through caches too; and what it ran."""

import os
import sys
import threading

import pytest
import torch

from lab import trace
from lab.engine import arithmetic
from lab.measure import statistics
from lab.measure.timing import seconds_a_call
from lab.models.norms import Norm


def test_outside_a_trial_nothing_is_kept():
    trace.looked_up("Position", "rotary")
    trace.reads("corpus", "digest")
    trace.step(0, 1.0)
    with trace.touching() as touched:
        pass
    assert touched == trace.Touched()


def test_what_a_block_inside_touches_counts_for_the_one_around_it(tmp_path):
    (tmp_path / "read.txt").write_text("read")
    with trace.touching() as outer:
        with trace.touching() as inner:
            trace.looked_up("Position", "rotary")
            trace.reads("corpus", "digest")
            (tmp_path / "read.txt").read_text()
            (tmp_path / "written.txt").write_text("written")
            (tmp_path / "written.txt").read_text()
        trace.looked_up("Norm", "none")
    assert inner.kinds == {"Position.rotary"} and outer.kinds == {"Position.rotary", "Norm.none"}
    told = {"corpus": "digest", str(tmp_path / "read.txt"): trace.file_hash(tmp_path / "read.txt")}
    assert inner.all_data() == outer.all_data() == told, "what it wrote itself is no data of a trial"


def test_code_and_what_is_installed_are_no_data(tmp_path):
    (tmp_path / "module.py").write_text("")
    with trace.touching() as touched:
        for path in (tmp_path / "module.py", torch.__file__, os.devnull):
            open(path, "rb").close()
    assert touched.all_data() == {}


def test_a_file_that_changed_has_another_hash(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abc")
    before = trace.file_hash(path)
    path.write_text("abcd")
    assert trace.file_hash(path) != before
    path.write_text("abc")
    assert trace.file_hash(path) == before


# Apart


def test_apart_nothing_is_reported_and_afterwards_all_is_again(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    with trace.touching() as touched:
        with trace.apart():
            trace.looked_up("Position", "rotary")
            (tmp_path / "a.txt").read_text()
            trace.clock("a clock")
        with pytest.raises(KeyError), trace.apart():
            raise KeyError
        trace.looked_up("Norm", "none")
    assert touched.kinds == {"Norm.none"} and touched.all_data() == {}


# Caches


def test_whoever_is_given_a_kept_value_has_touched_what_made_it(tmp_path):
    (tmp_path / "text.txt").write_text("abc")
    made = []

    @trace.cache
    def text(name, times=1):
        """Its text."""
        made.append(name)
        trace.looked_up("Norm", name)
        return (tmp_path / f"{name}.txt").read_text() * times

    assert text("text") == "abc", "outside a trial it is made as well"
    for _ in range(2):
        with trace.touching() as touched:
            assert text("text") == "abc"
        assert touched.kinds == {"Norm.text"} and [*touched.all_data()] == [str(tmp_path / "text.txt")]
    assert text("text", times=2) == text("text", 2) == "abcabc" and text.__doc__ == "Its text."
    assert made == ["text"] * 3, "once for each way of calling it"
    with trace.touching() as touched:
        pass
    assert touched.kinds == set(), "a trial that did not ask has touched nothing"
    text.cache_clear()
    assert text("text") == "abc" and len(made) == 4


def test_an_error_is_not_kept():
    calls = []

    @trace.cache
    def fails_once():
        calls.append(1)
        if len(calls) == 1:
            raise OSError
        return 3

    with pytest.raises(OSError):
        fails_once()
    assert fails_once() == fails_once() == 3 and len(calls) == 2


# Clocks and steps


def test_clocks_are_refused_but_where_times_are_measured():
    with trace.touching(), pytest.raises(RuntimeError, match="timing=True"):
        trace.clock("a stopwatch")
    with trace.touching(timing=True):
        trace.clock("a stopwatch")
    trace.clock("a stopwatch")


def test_the_beginning_of_the_first_training_is_kept():
    """The first ten steps and then the powers of two; a second training begins at 0 again and is left out."""
    batch = (torch.arange(4), (torch.ones(2), torch.zeros(2)))
    with trace.touching() as touched:
        for training in range(2):
            for number in range(70):
                trace.step(number, torch.tensor(100.0 * training + number, requires_grad=True), batch)
    kept = [*range(10), 16, 32, 64]
    assert touched.curve == [[number, float(number)] for number in kept]
    assert touched.batch == trace.tensor_hash(batch) != trace.tensor_hash((torch.ones(4), batch[1]))


def test_out_of_time_a_training_is_left():
    with pytest.raises(trace.Enough), trace.touching(until=0.0) as touched:
        try:
            trace.step(0, 1.0)
        except Exception:
            pytest.fail("a trial could go on")
    assert touched.curve == []


def test_a_listener_hears_every_step_of_its_own_thread():
    heard, elsewhere = [], threading.Thread(target=trace.step, args=(7, 1.0), kwargs={"steps": 9})
    with trace.watching(lambda *step: heard.append(step)):
        for number in range(3):
            trace.step(number, 1.0, steps=3)
        elsewhere.start()
        elsewhere.join()
    trace.step(3, 1.0, steps=4)
    assert heard == [(0, 3), (1, 3), (2, 3)]


def test_a_listener_ends_a_training_whatever_it_catches():
    def enough(step, steps):
        if step == 2:
            raise trace.Enough

    with trace.touching() as touched, trace.watching(enough), pytest.raises(trace.Enough):
        for number in range(5):
            try:
                trace.step(number, float(number), steps=5)
            except Exception:
                pytest.fail("a trial could go on")
    assert touched.curve == [[0, 0.0], [1, 1.0]]
    trace.step(2, 1.0)


# What ran


class Local:
    def method(self):
        return statistics.mean([1.0, 2.0, 4.0])


def test_the_definitions_of_lab_that_run_are_seen_by_name():
    with trace.executed() as found:
        Local().method()
        Norm.resolve("rmsnorm")
    assert {"lab.measure.statistics.mean", "lab.models.registry.Seam"} <= found
    assert all(name.startswith("lab.") for name in found), "nothing of torch, numpy or the tests"
    assert not {name for name in found if "<" in name or "__" in name}, "definitions, no lambdas or comprehensions"
    before = set(found)
    statistics.paired([1.0, 2.0, 4.0], [0.0, 1.0, 2.0])
    assert found == before, "and nothing once the block has ended"


def test_a_method_stands_for_its_class_and_an_inner_function_for_the_one_around_it():
    with trace.executed() as found:
        seconds_a_call({("x",): lambda: None}, ["name"], 2)
        with arithmetic.fast():
            pass
    assert {"lab.measure.timing.seconds_a_call", "lab.engine.arithmetic.fast"} <= found
    assert {name.count(".") for name in found if name.startswith("lab.measure.timing")} == {3}


def test_a_profile_that_was_there_before_is_back_afterwards():
    def mine(frame, event, argument):
        pass

    earlier = sys.getprofile()
    try:
        sys.setprofile(mine)
        with pytest.raises(KeyError), trace.executed():
            raise KeyError
        assert sys.getprofile() is mine
    finally:
        sys.setprofile(earlier)
