"""Weights and activations of few bits."""

import pytest
import torch
from helpers import randn

from lab.models import ModelConfig, Transformer
from lab.models.weights import fake_quantize, fake_quantized


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_rounded_vectors_lie_on_a_symmetric_grid_within_half_a_step(bits):
    x = torch.cat([randn(20, 64), torch.zeros(1, 64)]) * torch.logspace(-3, 3, 21)[:, None]
    top, got = 2 ** (bits - 1) - 1, fake_quantize(x, bits)
    step = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / top
    assert ((got - x).abs() <= step * 0.5001).all()
    integers = got / step
    torch.testing.assert_close(integers, integers.round(), atol=1e-3, rtol=0)
    assert integers.abs().max().round() == top
    torch.testing.assert_close(fake_quantize(got, bits), got), "what lies on the grid stays"


@torch.no_grad()
def test_a_quantised_copy_is_the_integer_product_and_leaves_the_model_alone():
    model = Transformer(ModelConfig(vocab_size=13, block_size=16, d_model=32, bias=True)).eval()
    before, x = {k: v.clone() for k, v in model.state_dict().items()}, randn(3, 5, 32)
    copy = fake_quantized(model, 8)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    up, grid = model.blocks[0].ffn.up, lambda y: y.abs().amax(-1, keepdim=True) / 127
    integers = (x / grid(x)).round().int() @ (up.weight / grid(up.weight)).round().int().T
    wanted = integers.float() * grid(x) * grid(up.weight).T + up.bias
    torch.testing.assert_close(copy.blocks[0].ffn.up(x), wanted, atol=1e-5, rtol=1e-5)
    assert torch.equal(copy.blocks[0].mixer.heads.qkv.weight, model.blocks[0].mixer.heads.qkv.weight)
    tokens = torch.randint(13, (4, 16))
    errors = [(fake_quantized(model, bits)(tokens) - model(tokens)).norm() / model(tokens).norm() for bits in (2, 4, 8)]
    assert errors[0] > 3 * errors[1] > 9 * errors[2] and errors[2] < 0.02, errors
    assert not torch.equal(fake_quantized(model, 8, "*.heads.*").blocks[0].mixer(x), model.blocks[0].mixer(x))


def test_what_cannot_be_rounded_is_named():
    model = Transformer(ModelConfig(vocab_size=13, block_size=16))
    with pytest.raises(LookupError, match="'nonsuch' names no linear map"):
        fake_quantized(model, 8, "nonsuch")
    with pytest.raises(ValueError, match="at least 2 bits"):
        fake_quantized(model, 1)
