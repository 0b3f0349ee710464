"""Errata of notes 3 and 4: the statement fails, what experiments/errata.yaml puts in its place holds."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import config, heads, norm, normal
from torch import nn

from lab.measure.cost import attention_macs, softmax_operations
from lab.measure.gradients import future, leak
from lab.models import Transformer
from lab.models.gpt import Block, Position

# Note 3


def test_the_masked_corner_follows_from_the_drawing():
    x, w = normal(6, 4), normal(4, 4, seed=1)
    upper, lower = torch.ones(6, 6).triu(1).bool(), torch.ones(6, 6).tril(-1).bool()

    def rows(x, hidden):  # softmax(Q Kᵀ) V: a row for each query
        return torch.softmax((x @ w @ x.mT).masked_fill(hidden, -math.inf), -1) @ x

    def columns(x, hidden):  # the drawing: K Qᵀ, a column for each query
        return torch.softmax((x @ (x @ w).mT).masked_fill(hidden, -math.inf), -2).mT @ x

    torch.testing.assert_close(rows(x, upper), columns(x, lower))
    assert future(leak(lambda x: rows(x, upper), x)) == 0 == future(leak(lambda x: columns(x, lower), x))
    assert future(leak(lambda x: rows(x, lower), x)) > 0.1, "the note's corner in the note's formula shows the future"


def test_the_query_attends_to_the_key():
    scores, v = normal(5, 5), normal(5, 8, seed=1)  # a row for each query, a column for each key
    weights = torch.softmax(scores, -1)
    torch.testing.assert_close(weights.sum(-1), torch.ones(5).double())
    assert (weights.sum(0) - 1).abs().max() > 0.1, "what a key gives to the queries adds up to anything"
    scores[4, 2] += 1  # the product of key 2 with query 4 is larger
    change = (torch.softmax(scores, -1) @ v - weights @ v).abs().amax(-1)
    assert change[4] > 0.01 and change[:4].max() == 0, "the query's place takes up more of the key's"


def test_masked_weights_are_zero():
    weights = torch.softmax(torch.tensor([3.0, -math.inf, 1.0]), 0)
    assert weights[1] == 0 and weights.sum().item() == pytest.approx(1)


def test_the_pattern_is_the_square_not_the_window():
    x = normal(1, 4, 50, 32)
    assert (x @ x.mT).shape[-2:].numel() == 50**2 and x.shape[-2] == 50


def test_a_negative_score_is_not_unrelated():
    scores = torch.tensor([-3.0, -2.0, -9.0])
    torch.testing.assert_close(torch.softmax(scores, 0), torch.softmax(scores + 100, 0))
    assert torch.softmax(scores, 0)[1] > 0.7, "what counts is the difference to the other keys"


@pytest.mark.parametrize(("kind", "inputs"), [("full", 4), ("concatenated", 1)])
def test_without_the_output_matrix_heads_do_not_mix(kind, inputs):
    mixed = normal(1, 4, 1, 32).requires_grad_()
    reached = torch.autograd.grad(heads(kind).join(mixed)[0, 0, 5], mixed)[0].abs().sum((0, 2, 3)) > 0
    assert reached.sum() == inputs


def test_few_long_sequences_make_batch_statistics_fluctuate():
    def fluctuation(sequences, length):
        topic, token = normal(300, sequences, 1), normal(300, sequences, length, seed=1)
        return (topic + token).mean((1, 2)).std().item()

    assert fluctuation(4, 256) > 3 * fluctuation(64, 16), "as many tokens, alike within a sequence"


def test_a_value_map_is_down_then_up():
    part, x = heads(), normal(1, 6, 128)
    v = part.split(x)[2][0, 1]  # (6, 32): a head's own values are narrow
    up = part.out.weight.T[32:64]
    down = part.value_matrix()[32:64].T
    torch.testing.assert_close(v @ up, x[0] @ (down @ up))
    assert v.shape[-1] == 32 and torch.linalg.matrix_rank(down @ up) == 32 and (v @ up).shape == (6, 128)


def test_the_original_drops_the_branch_not_the_stream():
    x = 5 * normal(2, 30, 128) + 1
    drop = nn.Dropout(0.5)
    printed = drop(norm(width=128)(x))  # a silent sublayer
    assert 0.4 < (printed == 0).double().mean() < 0.6, "parts of the stream are lost"
    layer = nn.TransformerEncoderLayer(128, 4, dropout=1.0, batch_first=True).double().train()  # drops all of a branch
    torch.testing.assert_close(layer(x), layer.norm2(layer.norm1(x)))


# Note 4


def test_no_weight_contains_a_value():
    q, k, v, other = normal(4, 1, 6, 8)

    def deviation(attend):
        return (attend(v + other) - attend(v) - attend(other)).abs().max()

    assert deviation(lambda v: F.scaled_dot_product_attention(q, k, v)) < 1e-12, "linear in the values"
    assert deviation(lambda v: torch.softmax(q @ (k * v).mT, -1) @ v) > 0.1, "values in the weights would show"


def test_heads_split_features_not_the_sequence():
    q, k, v = heads().split(normal(1, 10, 128))
    assert q.shape == k.shape == v.shape == (1, 4, 10, 32), "every head sees all ten tokens"


def test_attention_and_feed_forward_share_no_weights():
    block = Transformer(config()).blocks[0]
    attention, ffn = ({p.data_ptr() for p in part.parameters()} for part in (block.mixer, block.ffn))
    assert attention and ffn and not attention & ffn
    assert not {p.shape for p in block.mixer.parameters()} & {p.shape for p in block.ffn.parameters()}


def test_heads_are_joined_side_by_side():
    part, mixed = heads(), normal(1, 4, 6, 32)
    stacked = torch.cat(mixed[0].unbind(0), dim=0)  # one below the other
    assert stacked.shape == (24, 32) and part.join(mixed).shape == (1, 6, 128)


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


def test_the_listing_needs_math_ignores_padding_and_has_an_own_layout():
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
    assert attention(x, attn_mask=visible)[0].isnan().all(-1).tolist() == [False, False, True, False, False]
    part = heads()  # [Q | K | V]; the listing has q, k, v of a head side by side
    part.out.load_state_dict(attention.out.state_dict(), strict=False)
    part.out.bias = attention.out.bias
    part.qkv.weight, part.qkv.bias = attention.query_key_value.weight, attention.query_key_value.bias

    def reference():
        q, k, v = part.split(x)
        return part.join(F.scaled_dot_product_attention(q, k, v))

    assert not torch.allclose(reference(), attention(x)), "the same weights do not fit"
    order = torch.arange(384).unflatten(0, (4, 3, 32)).transpose(0, 1).flatten()
    part.qkv.weight = nn.Parameter(part.qkv.weight[order], requires_grad=False)
    part.qkv.bias = nn.Parameter(part.qkv.bias[order], requires_grad=False)
    torch.testing.assert_close(reference(), attention(x))  # up to the order of rows they do


def test_convolutions_take_any_length():
    convolution = nn.Conv1d(4, 4, 3, padding=1)
    assert [convolution(torch.zeros(1, 4, n)).shape[-1] for n in (5, 50)] == [5, 50]


def test_more_heads_do_the_same_products_and_more_softmax():
    one, many = attention_macs(256, 512, 1, 1, 512), attention_macs(256, 512, 16, 16, 32)
    assert sum(one.values()) == sum(many.values())
    assert softmax_operations(256, 16) == 16 * softmax_operations(256, 1)


def test_attention_alone_is_neither_added_nor_normed():
    x = 5 * normal(1, 4, 128) + 1
    block = Block.build("post", config(), Position.build("none", config())).double()
    torch.testing.assert_close(block.around(x, torch.zeros_like, "mixer"), norm(width=128)(x))
    part = heads()
    assert part.join(torch.zeros(1, 4, 4, 32, dtype=x.dtype)).abs().max() == 0, "a silent attention loses the stream"
