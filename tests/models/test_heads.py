"""Values of low rank, heads that look across, and a head that starts with a role."""

import pytest
import torch

from lab.models import ModelConfig, Transformer
from lab.models.heads import Heads
from lab.models.initialization import preset_previous_token


def config(**fields):
    sizes = {"vocabulary": 13, "context": 24, "d_model": 32, "n_layers": 3, "n_heads": 4}
    return ModelConfig(**(sizes | fields))


def attention_heads(**fields):
    return Transformer(config(**fields)).blocks[0].attention.heads


def close(a, b, tolerance=1e-5):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("rank", [None, 3, 16])
@pytest.mark.parametrize("kv_heads", [4, 2])
@torch.no_grad()
def test_low_rank_values_are_those_of_a_matrix_of_that_rank(kv_heads, rank):
    part = attention_heads(heads={"kind": "low-rank-value", "rank": rank}, kv_heads=kv_heads)
    full = attention_heads(kv_heads=kv_heads)
    full.qkv.weight.copy_(torch.cat([part.qkv.weight, part.value_matrix()]))
    x, memory = torch.randn(2, 2, 5, 32, generator=torch.Generator().manual_seed(0))
    for ours, theirs in zip(
        part.split(x) + part.across(x, memory), full.split(x) + full.across(x, memory), strict=True
    ):
        close(ours, theirs)
    width = 8 * kv_heads
    assert torch.linalg.matrix_rank(part.value_matrix()) == min(rank or width // 4, width)
    saved = 32 * width - (rank or width // 4) * (32 + width)
    assert sum(p.numel() for p in full.parameters()) - sum(p.numel() for p in part.parameters()) == saved


@pytest.mark.parametrize("kind", sorted(Heads.kinds))
@torch.no_grad()
def test_heads_of_the_stream_with_itself_are_heads_across(kind):
    part = attention_heads(heads=kind, bias=True)
    for parameter in part.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel())))
    x, memory = torch.randn(2, 2, 5, 32, generator=torch.Generator().manual_seed(0))
    for ours, theirs in zip(part.split(x), part.across(x, x), strict=True):
        close(ours, theirs)
    q, k, v = part.across(x, memory)
    close(q, part.split(x)[0])
    close(k, part.split(memory)[1])
    close(v, part.split(memory)[2])


@torch.no_grad()
def test_a_preset_head_looks_one_token_back():
    model = Transformer(config(position="t5"))
    before = model.position.bias(9, 9).clone()
    preset_previous_token(model, 6.0)
    change = model.position.bias(9, 9) - before
    back = torch.arange(9)[:, None] - torch.arange(9) == 1
    close(change[0], 6.0 * back, 1e-5)
    assert not change[1:].any()
    with pytest.raises(ValueError, match="these are Rotary"):
        preset_previous_token(Transformer(config()), 6.0)
