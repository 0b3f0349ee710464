"""Values of low rank, heads that look across, and a head that starts with a role.

Of `lab.models.heads`.
"""

import pytest
import torch
from helpers import close, small_model

from lab.models.gpt import QKVProjection


def attention_heads(**fields):
    return small_model(**fields).blocks[0].mixer.heads


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


@pytest.mark.parametrize("kind", sorted(QKVProjection.kinds))
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
