"""Scores that drop keys: top-k, learned offset gates and local attention."""

import pytest
import torch
from helpers import close, differs, randn, row_sum, small_config, small_model, tokens

from lab.measure.attention import attention_probe
from lab.measure.heads import ablate_heads
from lab.models.gpt import AttentionFn


def score(choice):
    return AttentionFn.build(choice, small_config(score=choice).layer(0)).eval()


def qkv(n=10, seed=0):
    return randn(3, 2, 4, n, 8, seed=seed).unbind(0)


def weights(part, q, k, v, **visible):
    with attention_probe([], keep_maps=True) as probe:
        part(q, k, v, **visible)
    return probe.maps[0]


@pytest.mark.filterwarnings("ignore:a mask hides padding")  # top-k can leave a key unused by all queries
@pytest.mark.parametrize("k", [1, 3, 10, 99])
def test_top_k_equals_softmax_over_the_k_largest_visible_scores(k):
    q, keys, v = qkv()
    scores = (q @ keys.mT / 8**0.5).masked_fill(~torch.ones(10, 10).tril().bool(), -torch.inf)
    least = scores.topk(min(k, 10), -1).values[..., -1:]
    expected = scores.masked_fill(scores < least, -torch.inf).softmax(-1)
    got = weights(score({"kind": "top-k", "k": k}), q, keys, v, causal=True)
    close(got, expected)
    assert ((got > 0).sum(-1) == torch.arange(1, 11).clamp(max=k)).all()
    if k >= 10:
        close(score({"kind": "top-k", "k": k})(q, keys, v), score("softmax")(q, keys, v))


def test_top_k_rejects_zero_keys():
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        score({"kind": "top-k", "k": 0})


def test_closed_offset_gate_removes_its_offset():
    part, (q, k, v) = score({"kind": "offset-gate", "reach": 4}), qkv()
    close(part(q, k, v, causal=True), score("softmax")(q, k, v, causal=True))
    with torch.no_grad():
        part.logit[1, 2] = -9  # head 1: offset 2 closed
        part.logit[2, 3] = -9  # head 2: offsets from 3 closed
        part.logit[3, 1] = 0.0  # head 3: offset 1 half open
    maps, offset = weights(part, q, k, v, causal=True), torch.arange(10)[:, None] - torch.arange(10)
    past = offset >= 0
    assert ((maps[:, 1] > 0) == (past & (offset != 2))).all() and ((maps[:, 2] > 0) == (past & (offset < 3))).all()
    scores = (q @ k.mT / 8**0.5)[:, 3].masked_fill(~past, -torch.inf)
    close(maps[:, 3], (scores + torch.where(offset == 1, 0.5, 1.0).log()).softmax(-1))


def test_hard_concrete_gates_are_sampled_in_training_only():
    part = score({"kind": "offset-gate", "reach": 5000, "start": 0.5}).train()
    torch.manual_seed(0)
    gates = part.gates()
    assert (gates == 0).any() and (gates == 1).any() and ((gates > 0) & (gates < 1)).any()
    assert (gates > 0).float().mean().item() == pytest.approx(part.openness().item(), abs=0.01)
    assert not torch.equal(gates, part.gates()) and torch.equal(part.eval().gates(), part.gates())


@torch.no_grad()
def test_probe_and_head_ablation_work_with_local_attention():
    model, x = small_model(score={"kind": "local", "size": 4}), tokens()
    expected = model(x)
    with attention_probe([row_sum], keep_maps=True) as probe:
        close(model(x), expected)
    assert [tuple(m.shape) for m in probe.maps] == 2 * [(2, 4, 12, 12)]
    with ablate_heads([(0, 0)], calls=2):
        ablated = model(x)
    differs(ablated, expected)
    model.blocks[0].mixer.heads.out.weight[:, :8] = 0  # output of head 0
    close(model(x), ablated)
