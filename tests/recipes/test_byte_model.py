"""The byte model is what its recipe says, and learns bytes."""

import pytest
import torch

from lab import training, trials, uses
from lab.models import ModelConfig, Transformer
from lab.recipes.byte_model import byte_model, ngram_baselines, trained_model, windows_of
from lab.state import as_in_a_trial
from lab.tasks.sequences import Pairs
from lab.training import TrainConfig, fit


def test_changes_are_fields_of_the_configuration_and_the_rest_is_the_recipe():
    config, task, schedule = byte_model(7, batch=4, context=32, learning_rate=0.004, d_model=128, position="alibi")
    assert (config.position, config.d_model, config.vocab_size, config.block_size) == ("alibi", 128, 256, task.length)
    assert config.residual == "pre" and config.initialization == {"kind": "fan-in", "embedding": 0.3}
    assert (schedule.steps, schedule.batch, schedule.learning_rate) == (7, 4, 0.004)
    assert (schedule.betas, schedule.warmup, schedule.min_lr_ratio, schedule.clip) == ((0.9, 0.98), 100, 0.1, 1.0)
    assert byte_model(1)[0].position == "rotary"


def test_it_learns_bytes(tmp_path):
    (tmp_path / "text.py").write_text("def f(x):\n    return x + 1\n" * 200)
    config, task, schedule = byte_model(120, corpus=str(tmp_path), context=32)
    model = Transformer(config, seed=0)
    run, _ = fit(model, task, schedule, seed=0)
    assert run["training_loss"] < task.unigram_entropy / 4 and torch.isfinite(model.embedding.weight).all()


def test_windows_are_tokens_and_the_last_target():
    batches = [
        (torch.tensor([[1, 2, 3]]), torch.tensor([[2, 3, 4]])),
        (torch.tensor([[5, 6, 7]]), torch.tensor([[6, 7, 8]])),
    ]
    assert windows_of(batches).tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_longer_tables_know_more_of_bytes_that_were_read(tmp_path):
    (tmp_path / "a").write_text("".join(f"value_{i} = {i * i % 97}\n" for i in range(3000)))
    _, task, schedule = byte_model(40, corpus=str(tmp_path / "a"), context=24)
    found = list(ngram_baselines(task, schedule, seed=0, windows=32).values())
    assert found == sorted(found, reverse=True) and found[0] == pytest.approx(task.unigram_entropy, rel=0.1)


NEEDED = 3  # steps of a training


def total(seed, factor):
    """A trial that trains a model; only its measurement depends on the factor."""
    model = trained_model(*small(), seed)
    return {"value": factor * sum(p.double().sum().item() for p in model.parameters()), "drawn": torch.rand(()).item()}


def small(dropout=0.1):
    task = Pairs()
    residual = {"kind": "post", "dropout": dropout}
    config = ModelConfig(vocab_size=task.vocabulary, block_size=task.length, d_model=16, n_layers=1, residual=residual)
    return config, task, TrainConfig(steps=NEEDED, batch=4)


def bits(model):
    return training.digest(*model.state_dict().values())


def test_trials_and_a_cell_get_the_same_model_and_trials_note_its_kinds(tmp_path):
    place = trials.Place("n", tmp_path)
    first = trials.sweep(total, {"seed": [0, 1], "factor": [1, 2]}, place)
    assert (first.value[1], first.value[3]) == (2 * first.value[0], 2 * first.value[2])
    model = trained_model(*small(), seed=1)
    assert sum(p.double().sum().item() for p in model.parameters()) == first.value[2]
    assert not model.training and model.run["parameters"] == sum(p.numel() for p in model.parameters())
    with uses.watched() as seen:
        trained_model(*small(), seed=1)
    assert "Residual.post" in seen.names


def test_weights_are_those_of_a_training_to_the_last_bit():
    config, task, schedule = small(dropout=0.0)
    alone = Transformer(config, seed=3)
    with as_in_a_trial():
        training.train(alone, task.batch, schedule, seed=3)
    assert (
        bits(trained_model(config, task, schedule, 3)) == bits(alone) != bits(trained_model(config, task, schedule, 4))
    )


def test_random_numbers_go_on_as_if_nothing_had_been_trained():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    trained_model(*small(), 0)
    assert torch.rand(2).tolist() == expected.tolist()
