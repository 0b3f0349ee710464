"""Low-rank value projections.

Tests `lab.models.heads`.
"""

import pytest
import torch
from helpers import close, small_model


def attention_heads(**fields):
    return small_model(**fields).blocks[0].mixer.heads


@pytest.mark.parametrize("rank", [None, 3, 16])
@pytest.mark.parametrize("kv_heads", [4, 2])
@torch.no_grad()
def test_low_rank_values_equal_a_factored_value_matrix(kv_heads, rank):
    part = attention_heads(projection={"kind": "low-rank-value", "rank": rank}, kv_heads=kv_heads)
    full = attention_heads(kv_heads=kv_heads)
    values = part.value_up.weight @ part.value_down.weight
    full.qkv.weight.copy_(torch.cat([part.qkv.weight, values]))
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    for ours, theirs in zip(part.split(x), full.split(x), strict=True):
        close(ours, theirs)
    width = 8 * kv_heads
    assert torch.linalg.matrix_rank(values) == min(rank or width // 4, width)
    saved = 32 * width - (rank or width // 4) * (32 + width)
    assert sum(p.numel() for p in full.parameters()) - sum(p.numel() for p in part.parameters()) == saved
