"""The byte-level language model recipe."""

import pytest
import torch

from lab import training, trials, uses
from lab.models import ModelConfig, Transformer
from lab.recipes.byte_model import byte_model, ngram_baselines, trained_model, windows_of
from lab.state import as_in_a_trial
from lab.tasks.sequences import Pairs
from lab.training import TrainConfig, fit


def test_byte_model_overrides_config_fields_and_keeps_defaults():
    config, task, schedule = byte_model(7, batch=4, context=32, learning_rate=0.004, d_model=128, position="alibi")
    assert (config.position, config.d_model, config.vocab_size, config.block_size) == ("alibi", 128, 256, task.length)
    assert config.residual == "pre" and config.initialization == {"kind": "fan-in", "embedding": 0.3}
    assert (schedule.steps, schedule.batch, schedule.learning_rate) == (7, 4, 0.004)
    assert (schedule.betas, schedule.warmup, schedule.min_lr_ratio, schedule.clip) == ((0.9, 0.98), 100, 0.1, 1.0)
    assert byte_model(1)[0].position == "rotary"


def test_byte_model_learns_a_repetitive_file(tmp_path):
    (tmp_path / "text.py").write_text("def f(x):\n    return x + 1\n" * 200)
    config, task, schedule = byte_model(120, corpus=str(tmp_path), context=32)
    model = Transformer(config, seed=0)
    run, _ = fit(model, task, schedule, seed=0)
    assert run["training_loss"] < task.unigram_entropy / 4 and torch.isfinite(model.embedding.weight).all()


def test_windows_join_tokens_and_the_last_target():
    batches = [
        (torch.tensor([[1, 2, 3]]), torch.tensor([[2, 3, 4]])),
        (torch.tensor([[5, 6, 7]]), torch.tensor([[6, 7, 8]])),
    ]
    assert windows_of(batches).tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_ngram_baseline_losses_fall_with_order(tmp_path):
    (tmp_path / "a").write_text("".join(f"value_{i} = {i * i % 97}\n" for i in range(3000)))
    _, task, schedule = byte_model(40, corpus=str(tmp_path / "a"), context=24)
    losses = list(ngram_baselines(task, schedule, seed=0, windows=32).values())
    assert losses == sorted(losses, reverse=True) and losses[0] == pytest.approx(task.unigram_entropy, rel=0.1)


STEPS = 3


def total(seed, factor):
    """Trial: the sum of the trained weights, times `factor`, which does not affect training."""
    model = trained_model(*small(), seed)
    return {"value": factor * sum(p.double().sum().item() for p in model.parameters()), "drawn": torch.rand(()).item()}


def small(dropout=0.1):
    task = Pairs()
    residual = {"kind": "post", "dropout": dropout}
    config = ModelConfig(vocab_size=task.vocabulary, block_size=task.length, d_model=16, n_layers=1, residual=residual)
    return config, task, TrainConfig(steps=STEPS, batch=4)


def bits(model):
    return training.digest(*model.state_dict().values())


def test_trained_model_is_identical_in_trials_and_cells(tmp_path):
    place = trials.Place("n", tmp_path)
    first = trials.sweep(total, {"seed": [0, 1], "factor": [1, 2]}, place)
    assert (first.value[1], first.value[3]) == (2 * first.value[0], 2 * first.value[2])
    model = trained_model(*small(), seed=1)
    assert sum(p.double().sum().item() for p in model.parameters()) == first.value[2]
    assert not model.training and model.run["parameters"] == sum(p.numel() for p in model.parameters())
    with uses.watched() as watched:
        trained_model(*small(), seed=1)
    assert "Residual.post" in watched.names


def test_trained_model_equals_direct_training_bit_for_bit():
    config, task, schedule = small(dropout=0.0)
    reference = Transformer(config, seed=3)
    with as_in_a_trial():
        training.train(reference, task.batch, schedule, seed=3)
    assert (
        bits(trained_model(config, task, schedule, 3))
        == bits(reference)
        != bits(trained_model(config, task, schedule, 4))
    )


def test_trained_model_preserves_the_global_rng_state():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    trained_model(*small(), 0)
    assert torch.rand(2).tolist() == expected.tolist()
