"""The byte model is what its recipe says, and learns bytes."""

import pytest
import torch

from lab.models.gpt import Transformer
from lab.recipes.byte_model import byte_model, ngram_baselines, windows_of
from lab.training import fit


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
