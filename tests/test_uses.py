"""Run-time dependencies of trials: kinds, data and clocks, including cached results."""

import cloudpickle
import pytest

from lab import uses


def test_reports_outside_a_trial_are_ignored():
    uses.looked_up("Position", "rotary")
    uses.clock("a stopwatch")
    with uses.watched() as seen:
        pass
    assert seen.names == set()


def test_cache_hit_reports_dependencies():
    calls = []

    @uses.cache
    def built(name, *, size=1):
        calls.append(name)
        uses.looked_up("Norm", name)
        return name * size

    for _ in range(2):
        with uses.watched() as seen:
            assert built("none", size=2) == "nonenone"
        assert seen.names == {"Norm.none"}
    assert built("none") == "none" and calls == ["none", "none"]
    built.cache_clear()
    assert built("none") == "none" and len(calls) == 3


def test_measuring_time_outside_a_timing_raises():
    with uses.watched(), pytest.raises(RuntimeError, match="a stopwatch measures time or memory: pass timing=True"):
        uses.clock("a stopwatch")
    with uses.watched(timing=True) as seen:
        uses.clock("a stopwatch")
    assert seen.names == {"clock"}


def test_models_report_their_kinds():
    from lab.models import ModelConfig, Transformer

    with uses.watched() as seen:
        Transformer(ModelConfig(vocab_size=4, block_size=4, d_model=8, n_layers=1, n_heads=2, position="alibi"))
    assert "Position.alibi" in seen.names


def test_pickled_cached_function_has_an_empty_cache():
    @uses.cache
    def made(size):
        return bytes(size)

    made(10**6)
    sent = cloudpickle.dumps(made)
    assert len(sent) < 10**5 and cloudpickle.loads(sent)(3) == bytes(3)
