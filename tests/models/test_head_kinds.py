"""Values of low rank, heads that look across, and a head that starts with a role.

Of `lab.models.heads`.
"""

import pytest
import torch
from helpers import close, small_model

from lab.models.gpt import QKVProjection
from lab.models.heads import overlap_loss
from lab.models.initialization import preset_previous_token


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


@torch.no_grad()
def test_a_preset_head_looks_one_token_back():
    model = small_model(position="t5")
    before = model.position.bias(9, 9).clone()
    preset_previous_token(model, 6.0)
    change = model.position.bias(9, 9) - before
    back = torch.arange(9)[:, None] - torch.arange(9) == 1
    close(change[0], 6.0 * back, 1e-5)
    assert not change[1:].any()
    with pytest.raises(ValueError, match="these are Rotary"):
        preset_previous_token(small_model(), 6.0)


def test_the_overlap_penalty_is_zero_for_heads_with_orthogonal_values_and_drives_others_there():
    model = small_model(n_layers=2)
    with torch.no_grad():
        parts = [block.mixer.heads.value_overlap().item() for block in model.blocks]
    assert overlap_loss(model).item() == pytest.approx(sum(parts) / 2) and min(parts) > 0.5, "1: random directions"
    adam = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(200):
        adam.zero_grad()
        overlap_loss(model).backward()
        adam.step()
    assert overlap_loss(model) < 0.01
    d = model.config.d_model
    with torch.no_grad():
        for block in model.blocks:
            block.mixer.heads.qkv.weight[-d:] = torch.linalg.qr(torch.randn(d, d))[0]
    assert overlap_loss(model) < 1e-6
