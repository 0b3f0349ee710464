"""Exact statements of the chapter (§1.2) and its notes about heads: verified, or corrected by a counterexample.

Notes 1 to 4 are the four notes of the chapter, which are not in this repository; experiments/errata.md lists errors.
"""

import math
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from helpers import config, heads, normal
from torch import nn

from lab.measure.attention import attention_maps
from lab.measure.cost import attention_macs, attention_parameters, cache_elements
from lab.models import ModelConfig, Transformer
from lab.models.decoding import KVCache
from lab.models.gpt import QKVProjection
from lab.models.kernels import naive_attention


def chapter_heads(kv_heads, h=8):
    """Heads as in exercise 1.5, with d_model 512."""
    return heads(d_model=512, n_heads=h, kv_heads=kv_heads)


def parameters(module):
    return sum(p.numel() for p in module.parameters())


# Structure


@pytest.mark.parametrize(("kind", "reached"), [("full", 128), ("sliced", 32)])
def test_every_head_projects_the_whole_vector(kind, reached):
    """heads-input-chunks. "Multi-head cuts the input vector into h slices (1-32, 33-64, ...) and
    each head projects and processes only its own slice." (note 1, 多头注意力机制; note 4, §2, §4.2, §4.3)
    False: each head projects the whole vector; the projected vector is split.
    """
    x = normal(1, 1, 128).requires_grad_()
    first = heads(kind).split(x)[0][:, 0]
    assert (torch.autograd.grad(first.sum(), x)[0] != 0).sum() == reached


def test_heads_split_features_not_the_sequence():
    """heads-sequence-chunks. "Multi-head attention splits the input sequence into subsequences,
    attends within each and merges." (note 4, §3.1, §3.2)
    False: every head attends to all tokens.
    """
    part, x = heads(), normal(1, 10, 128).requires_grad_()
    q, k, v = part.split(x)
    assert q.shape == k.shape == v.shape == (1, 4, 10, 32)
    first_half = part.join(naive_attention(q, k, v))[:, :5]
    assert (torch.autograd.grad(first_half.sum(), x)[0][0].abs().amax(-1) > 0).all()


def test_head_split_has_width_d_model_over_h():
    """heads-reshape. "The split reshapes [batch, seq, d_model] to [batch, seq, h, d_model] and
    transposes to [batch, h, seq, d_head]." (note 2, §2.2.2)
    False: the last axis is d_model / h.
    heads-row-stacking. "The final output is the vertical stack of the heads' results (shown as rows
    of a block column)." (note 4, §4.3) False: that would be h n tokens.
    """
    x = normal(2, 5, 128)
    with pytest.raises(RuntimeError):
        x.reshape(2, 5, 4, 128)
    q = heads().split(x)[0]
    assert x.reshape(2, 5, 4, 32).transpose(1, 2).shape == q.shape == (2, 4, 5, 32)
    assert q.flatten(1, 2).shape == (2, 20, 32) and heads().join(q).shape == x.shape


def test_output_is_the_sum_of_head_updates():
    """heads-sum-of-updates. "Each head proposes an update and the updates are summed onto the
    embedding; the stacked value-up matrices are the output matrix." (note 3, multi-head of
    attention, output matrix, 更新嵌入向量)
    heads-literal-sum-formula. "Multi-head causal self-attention equals the sum over h of
    softmax(QK^T/sqrt(d_k)) V." (note 2, §2.1.1) False: each head needs its block of W_O.
    """
    part, mixed = heads(), normal(1, 4, 6, 32)
    blocks = part.out.weight.T.split(32)  # W_O by head, (32, 128) each
    torch.testing.assert_close(sum(mixed[:, i] @ blocks[i] for i in range(4)), part.join(mixed))
    assert mixed.sum(1).shape[-1] == 32 != part.join(mixed).shape[-1]


@pytest.mark.parametrize(("kind", "inputs"), [("full", 4), ("concatenated", 1)])
def test_w_o_mixes_heads(kind, inputs):
    """Note 3: multi-head attention only concatenates the results of its heads (softmax).
    False: W_O follows; without it each output feature comes from one head only.
    """
    mixed = normal(1, 4, 1, 32).requires_grad_()
    (gradient,) = torch.autograd.grad(heads(kind).join(mixed)[0, 0, 5], mixed)
    assert (gradient.abs().sum((0, 2, 3)) > 0).sum() == inputs


def test_w_o_multiplies_from_the_right_and_is_linear():
    """Note 1: the output is W_o·Concat(heads), a linear MLP (多头注意力机制).
    False: tokens are rows, so W_O multiplies from the right; and a single linear map is not an MLP.
    """
    part, mixed = heads(), normal(2, 1, 4, 6, 32)
    joined, w_o = mixed[0].transpose(1, 2).flatten(2)[0], part.out.weight.T  # (6, 128), (128, 128)
    torch.testing.assert_close(part.join(mixed[0])[0], joined @ w_o)
    with pytest.raises(RuntimeError):
        w_o @ joined
    torch.testing.assert_close(part.join(mixed[0] + 2 * mixed[1]), part.join(mixed[0]) + 2 * part.join(mixed[1]))


LISTING = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class MultiHeadSelfAttention(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.0):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        assert self.head_dim * num_heads == embed_dim, "Embedding dimension must be divisible by number of heads"

        self.query_key_value = nn.Linear(embed_dim, 3 * embed_dim)
        self.attention_dropout = nn.Dropout(dropout)
        self.out = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, attn_mask=None, key_padding_mask=None):
        batch_size, seq_len, _ = x.size()
        qkv = self.query_key_value(x)
        qkv = qkv.view(batch_size, seq_len, self.num_heads, 3 * self.head_dim).transpose(1, 2)
        queries, keys, values = torch.chunk(qkv, 3, dim=-1)

        scores = torch.matmul(queries, keys.transpose(-1, -2))
        scores = scores / math.sqrt(self.head_dim)
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask == 0, float('-inf'))
        attn_weights = F.softmax(scores, dim=-1)
        attn_weights = self.attention_dropout(attn_weights)

        out = torch.matmul(attn_weights, values)
        out = out.transpose(1, 2).contiguous().view(batch_size, seq_len, self.embed_dim)
        out = self.out(out)
        return out
"""  # of note 4, §5.2


def test_listing_of_note_4_misses_an_import_and_ignores_padding():
    """heads-listing-runs. "The listed PyTorch module implements multi-head self-attention including
    masks." (note 4, §5.2, §5.3)
    False: it lacks an import, ignores the padding mask, and interleaves Q, K, V per head.
    """
    names, x = {}, normal(1, 5, 128)
    exec(LISTING, names)
    torch.manual_seed(0)
    attention = names["MultiHeadSelfAttention"](128, 4).double().requires_grad_(False)
    with pytest.raises(NameError, match="math"):
        attention(x)
    names["math"] = math
    padding = torch.tensor([[False, False, False, True, True]])
    assert torch.equal(attention(x, key_padding_mask=padding), attention(x))
    visible = torch.ones(5, 5)
    visible[2] = 0
    assert attention(x, attn_mask=visible)[0].isnan().all(-1).tolist() == [i == 2 for i in range(5)]
    own = nn.MultiheadAttention(128, 4, batch_first=True).double().requires_grad_(False)
    own.out_proj.load_state_dict(attention.out.state_dict())
    in_order = torch.arange(384).unflatten(0, (4, 3, 32)).transpose(0, 1).flatten()
    for order, same in ((torch.arange(384), False), (in_order, True)):
        own.in_proj_weight.copy_(attention.query_key_value.weight[order])
        own.in_proj_bias.copy_(attention.query_key_value.bias[order])
        assert torch.allclose(own(x, x, x)[0], attention(x)) == same


# Number of heads


def test_head_width_bounds_the_rank_of_logits_not_of_weights():
    """heads-single-rank-limit. "A single head's attention has rank limited by d_k, which is a
    reason for several heads." (chapter §1.2.2)
    False: d_k limits the rank of the logits, d_v that of the output; the weights have full rank.
    attention-qk-shared-space. "Queries and keys are mapped into one common, smaller space where
    similarity is taken, so the score matrix is a bilinear form of rank at most d_k." (chapter
    §1.1.4; note 3, Query matrix, Key matrix)
    """
    q, k, v = (part[0, 0] for part in heads().split(normal(1, 64, 128)))
    logits = q @ k.T / math.sqrt(32)
    weights = torch.softmax(logits, -1)
    ranks = [torch.linalg.matrix_rank(matrix).item() for matrix in (logits, weights, weights @ v)]
    assert ranks == [32, 64, 32]
    basis = normal(32, 32, seed=1)
    torch.testing.assert_close(q @ basis @ (k @ torch.linalg.inv(basis).T).T / math.sqrt(32), logits)


def test_heads_do_not_compensate_for_a_failed_head():
    """The chapter: several heads act as an ensemble; if some fail, others compensate (§1.2.2).
    False: the output is a sum over heads; if one fails, the other terms do not change.
    """
    part, mixed = chapter_heads(8), normal(1, 8, 5, 64)  # output of each head before W_O
    alone = [part.join(F.one_hot(torch.tensor(i), 8)[None, :, None, None] * mixed) for i in range(8)]
    torch.testing.assert_close(sum(alone), part.join(mixed))
    failed = mixed.clone()
    failed[:, 2] = 0
    torch.testing.assert_close(part.join(failed), sum(alone) - alone[2])
    assert not torch.allclose(part.join(mixed), alone[0] * 8), "heads must not be interchangeable"


def test_head_count_does_not_change_the_parameter_count():
    """heads-params-independent. "To compare head counts at fixed d_model the number of layers must
    be adjusted so that total parameters stay roughly equal." (chapter §1.2.1, exercise 1.4)
    False: they are equal at any head count; changing the layers would make them unequal.
    """
    assert {parameters(chapter_heads(h, h)) for h in (1, 2, 4, 8, 16, 32)} == {4 * 512 * 512}


def heads_of(h):
    return Transformer(ModelConfig(vocab_size=8, block_size=16, d_model=64, n_layers=1, n_heads=h, position="none"))


def test_more_heads_take_equal_macs_and_more_softmax():
    """Note 4: more heads raise parallel efficiency (§1.1, §2).
    False: h heads need the MACs of one head and h times the softmax.
    """
    one, many = attention_macs(256, 512, 1, 1, 512), attention_macs(256, 512, 16, 16, 32)
    assert sum(one.values()) == sum(many.values())
    weights = {h: attention_maps(heads_of(h), torch.zeros(1, 16, dtype=torch.long))[0].numel() for h in (1, 16)}
    assert weights[16] == 16 * weights[1]


# Shared keys and values


def test_mqa_keeps_more_than_a_third_of_the_parameters():
    """heads-mqa-third. "Multi-query attention cuts the parameter count to about one third."
    (chapter §1.2.5)
    False: 5/12 with 8 heads, 9/16 with W_O; one third is the limit for many heads without W_O.
    """
    mqa, mha = chapter_heads(1), chapter_heads(8)
    assert Fraction(mqa.qkv.weight.numel(), mha.qkv.weight.numel()) == Fraction(5, 12)
    assert Fraction(parameters(mqa), parameters(mha)) == Fraction(9, 16)
    limit = attention_parameters(1, 10**6, 1, 1) / attention_parameters(1, 10**6, 10**6, 1)
    assert limit == pytest.approx(1 / 2)


def test_parameter_counts_of_mha_gqa_and_mqa():
    """heads-mha-786k. "Standard multi-head attention has 3 h d_model d_k parameters, 786K for
    d_model=512, h=8." (chapter §1.2.5, exercise 1.5) True without W_O, which belongs to it.
    MQA has 512·64 + 2·512·512 = 557K, GQA with 4 groups 393K (chapter, exercise 1.5). False:
    queries and keys are swapped, and fewer groups have fewer parameters.
    """
    counts = {groups: chapter_heads(groups).qkv.weight.numel() for groups in (1, 2, 4, 8)}
    assert counts == {1: 327_680, 2: 393_216, 4: 524_288, 8: 786_432}
    assert counts[1] == 512 * 512 + 2 * 512 * 64 and 557_056 == 512 * 64 + 2 * 512 * 512
    assert counts[8] == 3 * 8 * 512 * 64 and parameters(chapter_heads(8)) == 4 * 8 * 512 * 64


def test_kv_cache_is_proportional_to_the_groups():
    """heads-kv-mha. "Per-layer KV cache of MHA for batch 32, 1024 tokens, 8 heads of width 64 is
    33.6M." (chapter, exercise 1.5)
    heads-kv-gqa. "The GQA(4) cache is also 33.6M." (chapter, exercise 1.5) False: 16.8M.
    heads-cache-shrinks. "At inference MQA reduces the KV cache substantially." (chapter §1.2.5)
    """

    def elements(groups):  # of a batch of 32 sequences
        cache = KVCache(1, groups, 1024, chapter_heads(groups).d)
        return 32 * (cache.keys.numel() + cache.values.numel())

    assert [elements(g) for g in (8, 4, 1)] == [33_554_432, 16_777_216, 4_194_304]
    assert elements(8) == 8 * elements(1) == cache_elements(1024, 8, 64, 32)


def test_gqa_saves_projection_flops_only():
    """heads-variant-flops. "MHA, MQA and GQA differ in FLOPs." (chapter, exercise 1.5)
    They differ in the projections only: 68.7, 51.5 and 38.7 GFLOP.
    """
    macs = {g: attention_macs(1024, 512, 8, g, 64) for g in (8, 4, 1)}
    projections = [sum(macs[g][name] for name in ("q", "k", "v", "out")) for g in macs]
    assert [round(2 * 32 * each / 1e9, 1) for each in projections] == [68.7, 51.5, 38.7]
    assert len({each["scores"] + each["mix"] for each in macs.values()}) == 1


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_gqa_equals_mha_with_tied_keys_and_values(groups):
    """heads-gqa-interpolates. "GQA with one group is MQA and with h groups is MHA; all cost
    measures lie between." (chapter §1.2.5)
    """
    part = chapter_heads(groups)
    q, k, v = part.split(normal(2, 12, 512))
    assert k.shape == v.shape == (2, groups, 12, 64)
    tied = [each.repeat_interleave(8 // groups, 1) for each in (k, v)]
    grouped = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(grouped, naive_attention(q, *tied))
    assert parameters(chapter_heads(1)) <= parameters(part) <= parameters(chapter_heads(8))


def test_value_map_factors_into_down_and_up_projection():
    """attention-value-factorisation. "A full d x d value map would have orders of magnitude more
    parameters than W_Q or W_K; factoring it into down and up matrices makes it as large as W_Q plus
    W_K together." (note 3, 关于参数的一点小小改进)
    """
    part, x = heads(), normal(1, 6, 128)
    down, up = part.value_weights()[0][32:64].T, part.out.weight.T[32:64]  # of head 1
    torch.testing.assert_close(part.split(x)[2][0, 1] @ up, x[0] @ (down @ up))
    w_q, w_k, _ = part.qkv.weight.split(128)
    assert down.numel() + up.numel() == (w_q[:32].numel() + w_k[:32].numel()) == 2 * 128 * 32
    full_size = QKVProjection.build("full-value", config()).out.weight.numel() // 4  # a head's
    assert full_size == 128**2 and full_size / down.numel() == 4, "a full value map has h times the parameters of W_Q"
