"""What a trial touches is told to whoever asks: kinds, data and clocks, through caches too."""

import threading

import pytest
import torch

from lab import trace


def test_outside_a_trial_nothing_is_kept():
    trace.looked_up("Position", "rotary")
    trace.reads("corpus", "digest")
    trace.step(0, 1.0)
    with trace.touching() as touched:
        pass
    assert touched == trace.Touched()


def test_what_a_block_inside_touches_counts_for_the_one_around_it():
    with trace.touching() as outer:
        with trace.touching() as inner:
            trace.looked_up("Position", "rotary")
            trace.reads("corpus", "digest")
        trace.looked_up("Norm", "none")
    assert inner.kinds == {"Position.rotary"} and outer.kinds == {"Position.rotary", "Norm.none"}
    assert inner.data == outer.data == {"corpus": "digest"}


# Apart


def test_apart_nothing_is_reported_and_afterwards_all_is_again():
    with trace.touching() as touched:
        with trace.apart():
            trace.looked_up("Position", "rotary")
            trace.clock("a clock")
        with pytest.raises(KeyError), trace.apart():
            raise KeyError
        trace.looked_up("Norm", "none")
    assert touched.kinds == {"Norm.none"}


# Caches


def test_whoever_is_given_a_kept_value_has_touched_what_made_it():
    made = []

    @trace.cache
    def text(name, times=1):
        """Its text."""
        made.append(name)
        trace.looked_up("Norm", name)
        trace.reads("corpus", "digest")
        return "abc" * times

    assert text("text") == "abc", "outside a trial it is made as well"
    for _ in range(2):
        with trace.touching() as touched:
            assert text("text") == "abc"
        assert touched.kinds == {"Norm.text"} and touched.data == {"corpus": "digest"}
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
