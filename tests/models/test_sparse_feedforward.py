"""Sparse feed-forward variants: top-k, block-sparse and adaptive width."""

import copy

import pytest
import torch
import torch.nn.functional as F
from helpers import close, randn, small_model

from lab.models import ModelConfig, Transformer
from lab.models.feedforward import balance_loss
from lab.models.initialization import output_projection_weights
from lab.models.sparse_feedforward import BlockMap, width_loss


def ffn(choice, **fields):
    return small_model(1, ffn=choice, **({"bias": True} | fields)).blocks[0].ffn


@pytest.mark.parametrize("k", [1, 5, 128])
def test_top_k_keeps_the_k_largest_activations(k):
    part, x = ffn({"kind": "top-k", "k": k}), randn(2, 7, 32)
    inner = part.up(x).clamp(min=0)
    kept = part.act(part.up(x))
    assert ((kept > 0).sum(-1) == (inner > 0).sum(-1).clamp(max=k)).all()
    least = inner.topk(k, -1).values[..., -1:]
    close(kept, inner.where(inner >= least, 0))
    close(part(x), part.down(kept))
    if k == 128:
        close(part(x), part.down(F.relu(part.up(x))))
    with pytest.raises(ValueError, match="k must be in 1..128, got 129"):
        ffn({"kind": "top-k", "k": 129})


@pytest.mark.parametrize("links", [1, 2, 4])
def test_block_map_equals_a_block_sparse_matrix(links):
    torch.manual_seed(0)
    part, x = BlockMap(12, 20, 4, links, True), randn(3, 5, 12)
    close(part(x), x @ part.dense().T + part.map.bias)
    blocks = part.dense().unflatten(0, (4, 5)).unflatten(2, (4, 3)).abs().sum((1, 3)) > 0
    assert blocks.sum(1).tolist() == blocks.sum(0).tolist() == [links] * 4 and blocks.diag().all()
    assert part.map.weight.numel() == 12 * 20 * links // 4
    for wrong in ((5, 1), (4, 0), (4, 5)):
        with pytest.raises(ValueError, match="must divide 12 and 20"):
            BlockMap(12, 20, *wrong, True)


def test_block_sparse_layer_weight_count_and_initialization():
    dense, sparse = ffn("gelu", d_model=64), ffn({"kind": "block-sparse", "blocks": 8, "links": 2}, d_model=64)
    sizes = [sum(p.numel() for n, p in part.named_parameters() if n.endswith("weight")) for part in (dense, sparse)]
    assert sizes[0] == 4 * sizes[1]
    x = randn(2, 5, 64)
    close(sparse(x), F.gelu(x @ sparse.up.dense().T) @ sparse.down.dense().T)
    ratio = sparse.up.map.weight.std() / (0.8 * 16**-0.5)
    assert 0.9 < ratio < 1.1, "fan-in must count connected inputs only"
    scaled = Transformer(ModelConfig(vocab_size=13, block_size=8, ffn="block-sparse", initialization="depth-scaled"))
    assert any(w is scaled.blocks[0].ffn.down.map.weight for w in output_projection_weights(scaled))


@torch.no_grad()
def test_adaptive_width_ignores_units_beyond_the_requested_width():
    part, x = ffn("adaptive-width"), randn(2, 9, 32)
    share = part.share(x)
    assert (share.diff(dim=-1) <= 0).all() and (share[..., 0] == 1).all()
    used = (share > 0).sum(-1)
    requested = 128 * (torch.sigmoid(part.ask(x)[..., 0] + 2) + part.ramp)
    assert ((used - requested.clamp(max=128)).abs() <= 1).all() and len(used.unique()) > 3, (
        "width does not vary by token"
    )
    part.ask.weight.copy_(randn(1, 32, seed=3))
    out, new_share = part(x), part.share(x)
    for b, t in ((0, 0), (1, 8)):
        n = int((new_share[b, t] > 0).sum())
        inner = F.gelu(x[b, t] @ part.up.weight[:n].T) * new_share[b, t, :n]
        close(out[b, t], inner @ part.down.weight[:, :n].T + part.down.bias)
    part.ask.weight.zero_()
    part.ramp = 1.0  # sigmoid(2) + 1 - i / d_ff > 1 for most
    assert part.share(x)[..., :100].eq(1).all()


@pytest.mark.parametrize("kind, loss", [("adaptive-width", width_loss), ("mixture", balance_loss)])
def test_copied_model_carries_no_loss_statistics(kind, loss):
    model, x = Transformer(ModelConfig(vocab_size=13, block_size=24, d_model=32, ffn=kind)), torch.randint(13, (4, 20))
    model(x)
    (model(x).square().mean() + loss(model)).backward()
    twin = copy.deepcopy(model)
    with pytest.raises(ValueError, match="called"):
        loss(twin)
    assert torch.equal(twin(x), model(x)) and loss(twin) == loss(model)


@pytest.mark.parametrize("blocks, links", [(4, 1), (4, 2), (8, 2), (4, 4)])
def test_xavier_uses_sparse_fan_in_and_fan_out(blocks, links):
    part = ffn({"kind": "block-sparse", "blocks": blocks, "links": links}, d_model=128, initialization="xavier")
    for m in (part.up, part.down):
        dense = m.dense() != 0
        fan_in, fan_out = dense.sum(1).unique().item(), dense.sum(0).unique().item()
        assert m.map.weight.std().item() == pytest.approx((2 / (fan_in + fan_out)) ** 0.5, rel=0.03)
