"""The leak meter against Jacobians written out, and against models whose reach is known."""

import pytest
import torch
from torch import nn

from lab.measure.gradients import future, leak
from lab.models import ModelConfig, Transformer


def from_embeddings(mask, position="learned", n_layers=2):
    model = Transformer(
        ModelConfig(vocab_size=7, block_size=6, d_model=8, n_heads=2, n_layers=n_layers, mask=mask, position=position)
    )
    model.embedding = nn.Identity()
    return model.double()


def inputs():
    return torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_equals_the_jacobian():
    model, x = from_embeddings("none"), inputs()
    full = torch.autograd.functional.jacobian(lambda e: model(e[None])[0], x)  # (t, c, t', m)
    torch.testing.assert_close(leak(model, x), full.square().sum((1, 3)).sqrt())


@pytest.mark.parametrize("position", ["learned", "rotary", "alibi"])
def test_exactly_zero_after_the_diagonal_under_the_causal_mask_only(position):
    x = inputs()
    masked, free = (leak(from_embeddings(mask, position), x) for mask in ("causal", "none"))
    assert future(masked) == 0 and (masked.tril() > 0).sum() == 21
    assert (free > 0).all()


def test_a_window_reaches_as_far_as_its_layers_carry_it():
    for n_layers in (1, 2):
        matrix = leak(from_embeddings({"kind": "window", "size": 2}, n_layers=n_layers), inputs())
        distance = torch.arange(6)[:, None] - torch.arange(6)
        assert torch.equal(matrix > 0, (distance >= 0) & (distance <= n_layers))


def test_leaves_parameters_without_gradients_and_embeddings_alone():
    model, x = from_embeddings("causal"), inputs()
    before = x.clone()
    with torch.no_grad():
        leak(model, x)
    assert all(p.grad is None for p in model.parameters()) and torch.equal(x, before) and not x.requires_grad


def test_outputs_must_pair_with_inputs():
    with pytest.raises(ValueError, match=r"\(1, 6, c\)"):
        leak(lambda e: e.sum(1, keepdim=True), inputs())
