"""Learning ends where the target is confirmed on fresh data, and says what it took."""

import pytest
import torch

from lab.learning import learn
from lab.models import ModelConfig, Transformer
from lab.tasks.sequences import Lookup
from lab.tasks.task import accuracy
from lab.training import TrainConfig

TASK = Lookup(offsets=(1,), vocabulary=4, length=8)


def model():
    sizes = {"vocab_size": TASK.vocabulary, "block_size": TASK.length, "d_out": TASK.d_out}
    return Transformer(ModelConfig(n_layers=1, n_heads=1, d_model=16, position="learned", **sizes), seed=0)


def right(model, seed):
    """The share of right answers on a test set of its own for each seed."""
    tokens, targets = TASK.batch(torch.Generator().manual_seed(10**6 + seed), 64)
    return {"accuracy": accuracy(model(tokens), targets)}


def learned(measure=right, steps=600, until=("accuracy", ">=", 0.9), **options):
    schedule = TrainConfig(steps=steps, batch=16, learning_rate=0.01, warmup=5)
    return learn(model(), TASK, schedule, seed=0, measure=measure, every=20, until=until, **options)


def test_it_ends_at_a_confirmed_target():
    run, curve = learned()
    assert run["steps_used"] == run["steps_to_mark"] == curve.step.iloc[-1] < 600
    assert curve.accuracy.iloc[-1] >= 0.9 and (curve.accuracy.iloc[:-1] < 0.9).all()
    assert run["mark"] == 0.9


def test_a_target_that_fresh_data_does_not_confirm_ends_nothing():
    asked = []

    def lucky(model, seed):
        asked.append(seed)
        return {"accuracy": 1.0 if seed == 0 else 0.5}

    run, curve = learned(lucky, steps=60)
    assert run["steps_used"] == 60 and run["steps_to_mark"] is None
    assert [seed for seed in asked if seed] == [1, 2, 3, 4], "a test set of its own each time"


def test_without_a_target_all_steps_are_taken():
    run, curve = learned(steps=40, until=None)
    assert run["steps_used"] == 40 and "mark" not in run and list(curve.step) == [0, 20, 40]


def test_measuring_on_fresh_data_changes_no_digit():
    """The same losses as a training that never looks."""
    _, looked = learned(lambda model, seed: {"accuracy": float(seed == 0)}, steps=60)
    _, plain = learned(steps=60, until=None)
    assert looked.loss.tolist() == plain.loss.tolist()


def test_threads_are_those_of_trials_and_come_back(capsys):
    before, seen = torch.get_num_threads(), []

    def measure(model, seed):
        seen.append((torch.get_num_threads(), model.training, torch.is_grad_enabled()))
        return {"accuracy": 1.0}

    torch.set_num_threads(2)
    try:
        learned(measure, steps=20, show=True)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {(1, False, False)}
    assert "accuracy 1" in capsys.readouterr().out


def test_a_target_of_no_column_is_refused():
    with pytest.raises(ValueError, match="a mark is"):
        learned(until=("loess", "<", 1))
