"""A model is the same to the last bit for all who ask."""

import json

import pytest
import torch

from lab import key, training, trials, uses, zoo
from lab.models import ModelConfig
from lab.recipes import reference
from lab.recipes.byte_model import byte_model, validation_loss
from lab.state import as_in_a_trial
from lab.tasks.code import Code
from lab.tasks.corpus import HASH
from lab.tasks.sequences import Pairs
from lab.training import TrainConfig

NEEDED = 3  # steps of a training


def total(seed, factor):
    """A trial that asks the zoo; only its measurement depends on the factor."""
    model = zoo.model(*small(), seed)
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
    model = zoo.model(*small(), seed=1)
    assert sum(p.double().sum().item() for p in model.parameters()) == first.value[2]
    assert not model.training and model.run["parameters"] == sum(p.numel() for p in model.parameters())
    with uses.watched() as seen:
        zoo.model(*small(), seed=1)
    assert "Residual.post" in seen.names


def test_weights_are_those_of_a_training_to_the_last_bit():
    config, task, schedule = small(dropout=0.0)
    alone = zoo.Transformer(config, seed=3)
    with as_in_a_trial():
        training.train(alone, task.batch, schedule, seed=3)
    assert bits(zoo.model(config, task, schedule, 3)) == bits(alone) != bits(zoo.model(config, task, schedule, 4))


def test_random_numbers_go_on_as_if_nothing_had_been_trained():
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    zoo.model(*small(), 0)
    assert torch.rand(2).tolist() == expected.tolist()


# The reference model


def test_the_reference_model_is_as_good_as_its_story_says():
    model = zoo.reference()
    story = model.story
    assert story["corpus"] == HASH, "the text of the lab is no longer the one that it read"
    loss = validation_loss(model, Code(story["config"]["block_size"]), story["windows"])
    assert loss == pytest.approx(story["validation_loss"], abs=1e-4) == story["curve"]["validation"][-1]
    assert loss < story["marks"]["4-gram"] - 0.2 < story["marks"]["trigram"] < story["marks"]["unigram"]
    assert sum(p.numel() for p in model.parameters()) == story["parameters"] and not model.training
    assert zoo.REFERENCE.stat().st_size < 4e6


def test_its_story_is_that_of_the_recipe_here():
    config, _, schedule = byte_model(**reference.SIZES)
    story = zoo.reference().story
    assert story["config"] == config.model_dump(exclude_unset=True)
    assert story["schedule"] == json.loads(schedule.model_dump_json())


def test_a_trial_that_reads_it_has_its_hash_and_no_file():
    with uses.watched() as seen:
        zoo.reference()
    assert "reference" in seen.names and key.now("reference") == zoo.reference_hash()


def test_weights_that_nobody_trained_are_refused(tmp_path, monkeypatch):
    for suffix in (".safetensors", ".json"):
        (tmp_path / f"model{suffix}").write_bytes(zoo.REFERENCE.with_suffix(suffix).read_bytes())
    monkeypatch.setattr(zoo, "REFERENCE", tmp_path / "model.safetensors")
    zoo.reference()
    raw = bytearray(zoo.REFERENCE.read_bytes())
    raw[-1] ^= 1
    zoo.REFERENCE.write_bytes(raw)
    with pytest.raises(ValueError, match="is not what was trained"):
        zoo.reference()
