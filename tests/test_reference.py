"""The reference model: its training record is correct, it is reproducible, and trials record its hash.

Tests `lab.reference` and `lab.reference.make`.
"""

import json

import pytest

from lab import key, reference, uses
from lab.recipes.byte_model import byte_model, validation_loss
from lab.reference import make, reference_hash, reference_model
from lab.tasks.code import Code
from lab.tasks.corpus import HASH


def test_reference_model_reproduces_its_recorded_loss():
    model = reference_model()
    story = model.story
    assert story["corpus"] == HASH, "the corpus has changed since training"
    loss = validation_loss(model, Code(story["config"]["block_size"]), story["windows"])
    assert loss == pytest.approx(story["validation_loss"], abs=1e-4) == story["curve"]["validation"][-1]
    assert loss < story["marks"]["4-gram"] - 0.2 < story["marks"]["trigram"] < story["marks"]["unigram"]
    assert sum(p.numel() for p in model.parameters()) == story["parameters"] and not model.training
    assert reference.WEIGHTS.stat().st_size < 4e6


def test_training_record_of_the_reference_matches_the_current_recipe():
    config, _, schedule = byte_model(**make.SIZES)
    story = reference_model().story
    assert story["config"] == config.model_dump(exclude_unset=True)
    assert story["schedule"] == json.loads(schedule.model_dump_json())


def test_making_the_reference_model_is_deterministic_and_records_ngram_losses(tmp_path):
    sizes = {"steps": 3, "batch": 2, "context": 16, "d_model": 16, "n_layers": 1}
    for name in ("one", "two"):
        make.make(tmp_path / name / "model.safetensors", sizes=sizes)
    one, two = (json.loads((tmp_path / name / "model.json").read_text()) for name in ("one", "two"))
    assert one["weights"] == two["weights"] and one["curve"]["step"] == [0, 3]
    assert list(one["marks"]) == ["unigram", "bigram", "trigram", "4-gram"] and one["corpus"] == HASH


def test_trials_record_the_reference_by_hash():
    with uses.watched() as watched:
        reference_model()
    assert "reference" in watched.names and key.now("reference") == reference_hash()


def test_modified_reference_weights_raise(tmp_path, monkeypatch):
    raw = bytearray(reference.WEIGHTS.read_bytes())
    raw[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(raw)
    (tmp_path / "model.json").write_bytes(reference.WEIGHTS.with_suffix(".json").read_bytes())
    monkeypatch.setattr(reference, "WEIGHTS", tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="does not match its recorded hash"):
        reference_model()
