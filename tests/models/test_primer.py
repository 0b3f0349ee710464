"""Primer heads: causal depthwise convolution of queries, keys and values."""

import pytest
import torch
import torch.nn.functional as F
from helpers import randn, small_model

from lab.models import ModelConfig, Transformer


@pytest.mark.parametrize("width", [1, 2, 3, 5])
@torch.no_grad()
def test_primer_convolution_is_depthwise_and_causal(width):
    model = small_model(projection={"kind": "primer", "width": width}, kv_heads=2, bias=True)
    heads, x = model.blocks[0].mixer.heads, randn(2, 4, 32, seed=1)  # shorter than the widest kernel
    heads.conv_weight += randn(*heads.conv_weight.shape) / 2
    plain = F.linear(x, heads.qkv.weight, heads.qkv.bias).transpose(1, 2)
    kernel = heads.conv_weight.flip(1)[:, None]  # conv1d is a cross-correlation: its last weight meets the newest input
    expected = F.conv1d(F.pad(plain, (width - 1, 0)), kernel, groups=len(kernel)).unflatten(1, (-1, heads.d)).mT
    torch.testing.assert_close(torch.cat(heads.split(x), 1), expected)


def test_primer_convolution_weights_start_at_published_values():
    for scheme in ("fan-in", "normal"):
        config = ModelConfig(vocab_size=13, block_size=8, projection="primer", initialization=scheme)
        taps = Transformer(config).blocks[0].mixer.heads.conv_weight
        assert taps.shape == (3 * 64, 3) and (taps[:, 0] == 0.5).all() and (taps[:, 1:] == 0.5 / 3).all()


def test_zero_width_raises():
    with pytest.raises(ValueError, match="primer: width must be at least 1, got 0"):
        small_model(projection={"kind": "primer", "width": 0})
