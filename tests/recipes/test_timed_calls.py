"""Timed training steps compute real gradients."""

import pytest
import torch
import torch.nn.functional as F

from lab.models import ModelConfig, Transformer
from lab.recipes import timed_calls


def test_checkpointing_saves_memory_and_keeps_gradients():
    plain, checkpointed = (timed_calls.training_step(3, 16, 64, 2, flag) for flag in (False, True))
    assert all(torch.equal(*pair) for pair in zip(plain(), checkpointed(), strict=True))
    assert timed_calls.saved_bytes(checkpointed) < timed_calls.saved_bytes(plain) / 2


@pytest.mark.parametrize("residual", ["pre", "post", "reversible"])
def test_training_step_returns_the_gradients_of_the_model(residual):
    got = timed_calls.training_step(2, 8, 16, 4, residual=residual)()
    config = ModelConfig(vocab_size=256, block_size=8, d_model=16, n_layers=2, n_heads=1, residual=residual)
    model = Transformer(config)
    tokens = torch.randint(256, (4, 9), generator=torch.Generator().manual_seed(0))
    F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    for a, p in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)
        assert a.abs().max() > 0
