"""Heads of Primer: a causal depthwise convolution, exact, and the same with a cache."""

import pytest
import torch
import torch.nn.functional as F
from helpers import small_model, tokens

from lab.models import ModelConfig, Transformer


def build(**fields):
    model = small_model(**({"heads": "primer", "kv_heads": 2} | fields))
    for block in model.blocks:
        taps = block.mixer.heads.conv_weight
        taps.data += torch.randn(taps.shape, generator=torch.Generator().manual_seed(0)) / 2
    return model


@pytest.mark.parametrize("width", [1, 2, 3, 5])
@torch.no_grad()
def test_each_channel_is_convolved_alone_and_looks_back_only(width):
    heads = build(heads={"kind": "primer", "width": width}, bias=True).blocks[0].mixer.heads
    x = torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(1))  # shorter than the widest reach
    plain = F.linear(x, heads.qkv.weight, heads.qkv.bias).transpose(1, 2)
    kernel = heads.conv_weight.flip(1)[:, None]  # torch correlates: its last weight meets the newest input
    expected = F.conv1d(F.pad(plain, (width - 1, 0)), kernel, groups=len(kernel)).unflatten(1, (-1, heads.d)).mT
    torch.testing.assert_close(torch.cat(heads.split(x), 1), expected)


def test_the_taps_start_as_primers_whatever_the_scheme():
    for scheme in ("fan-in", "normal"):
        config = ModelConfig(vocab_size=13, block_size=8, heads="primer", initialization=scheme)
        taps = Transformer(config).blocks[0].mixer.heads.conv_weight
        assert taps.shape == (3 * 64, 3) and (taps[:, 0] == 0.5).all() and (taps[:, 1:] == 0.5 / 3).all()


@pytest.mark.parametrize("width", [1, 2, 3, 5])
@pytest.mark.parametrize("chunks", [[1] * 20, [7, 1, 9, 3], [20]], ids=str)
@torch.no_grad()
def test_decoding_with_a_cache_equals_the_full_forward(chunks, width):
    model, x = build(heads={"kind": "primer", "width": width}), tokens(20)
    caches = model.caches(2)
    out = [model(chunk, caches=caches) for chunk in x.split(chunks, 1)]
    torch.testing.assert_close(torch.cat(out, 1), model(x), atol=1e-5, rtol=1e-5)


def test_no_width_at_all_is_refused():
    with pytest.raises(ValueError, match="width of at least 1, got 0"):
        build(heads={"kind": "primer", "width": 0})
