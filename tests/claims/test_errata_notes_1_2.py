"""Errata of notes 1 and 2: the statement fails, what experiments/errata.yaml puts in its place holds."""

import pytest
import sympy
import torch
import torch.nn.functional as F
from helpers import config, heads, norm, normal
from torch import nn

from lab.models import Transformer
from lab.models.encoder_decoder import CrossAttention
from lab.models.gpt import AttentionFn, Block, Position
from lab.models.positions import sinusoids

# Note 1


def test_the_weights_of_the_lookup_need_the_scale():
    q, k = normal(2, 128, 64)
    unscaled = torch.softmax(q @ k.T, -1)
    torch.testing.assert_close(unscaled @ k, F.scaled_dot_product_attention(q, k, k, scale=1.0))
    scaled = F.scaled_dot_product_attention(q, k, torch.eye(128, dtype=q.dtype))
    assert unscaled.amax(-1).mean() > 5 * scaled.amax(-1).mean()


def test_values_may_have_a_width_of_their_own():
    q, k, v = normal(1, 3, 8), normal(1, 7, 8), normal(1, 7, 5)
    assert F.scaled_dot_product_attention(q, k, v).shape == (1, 3, 5)
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(q, k[..., :5], v)


@torch.no_grad()
def test_every_decoder_layer_reads_the_final_output_of_the_encoder():
    torch.manual_seed(0)
    net = nn.Transformer(16, 2, num_encoder_layers=3, num_decoder_layers=2, dim_feedforward=16, batch_first=True).eval()
    memories, encoded = [], []
    for layer in net.decoder.layers:
        layer.multihead_attn.register_forward_pre_hook(lambda _, inputs: memories.append(inputs[1]))
    net.encoder.register_forward_hook(lambda *call: encoded.append(call[2]))
    net(torch.randn(1, 5, 16), torch.randn(1, 4, 16))
    assert len(memories) == 2, "there is no layer for layer: three against two"
    assert all(torch.equal(memory, encoded[0]) for memory in memories)


def test_a_decoder_only_block_has_one_attention():
    transformers = pytest.importorskip("transformers")
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention, GPT2Block

    block = GPT2Block(transformers.GPT2Config(n_embd=32, n_head=4))
    assert sum(isinstance(module, GPT2Attention) for module in block.modules()) == 1
    assert sum(p.numel() for p in block.parameters() if p.dim() == 2) == 12 * 32**2, "two would make 16 d²"


@pytest.mark.parametrize(("kind", "reached"), [("full", 128), ("sliced", 32)])
def test_every_head_projects_the_whole_vector(kind, reached):
    x = normal(1, 1, 128).requires_grad_()
    first = heads(kind).split(x)[0][:, 0]
    assert (torch.autograd.grad(first.sum(), x)[0] != 0).sum() == reached


def test_the_output_matrix_stands_on_the_right_and_is_linear():
    part, mixed = heads(), normal(2, 1, 4, 6, 32)
    joined = mixed[0].transpose(1, 2).flatten(2)[0]  # tokens are rows, (6, 128)
    w_o = part.out.weight.T  # (128, 128)
    torch.testing.assert_close(part.join(mixed[0])[0], joined @ w_o)
    with pytest.raises(RuntimeError):
        w_o @ joined
    torch.testing.assert_close(part.join(mixed[0] + 2 * mixed[1]), part.join(mixed[0]) + 2 * part.join(mixed[1]))


def test_additive_scores_are_made_pair_by_pair():
    q, k = normal(1, 1, 3, 8), normal(1, 1, 7, 8)
    torch.manual_seed(0)
    score = AttentionFn.build("additive", config(d_model=8, n_heads=1)).double()
    with pytest.raises(RuntimeError):
        torch.tanh(score.query(q) + score.key(k))  # 3 queries, 7 keys
    weights = score(q, k, torch.eye(7, dtype=q.dtype)[None, None])
    one = score.sum(torch.tanh(score.query(q[0, 0, 2]) + score.key(k[0, 0]))).squeeze(-1)
    assert weights.shape == (1, 1, 3, 7)
    torch.testing.assert_close(weights[0, 0, 2], torch.softmax(one, -1))


def test_the_width_under_the_root_is_that_of_one_head():
    transformers = pytest.importorskip("transformers")
    widths = {
        name: kind().hidden_size // kind().num_attention_heads
        for name, kind in (("BERT", transformers.BertConfig), ("GPT-2", transformers.GPT2Config),
                           ("LLaMA", transformers.LlamaConfig))
    }  # fmt: skip
    assert widths == {"BERT": 64, "GPT-2": 64, "LLaMA": 128} and all(8 <= w**0.5 < 12 for w in widths.values())


def test_softmax_does_not_overflow():
    logits = torch.tensor([100.0, 99.0, -100.0])
    assert logits.exp().isinf().any(), "e^100 is beyond float32"
    torch.testing.assert_close(torch.softmax(logits, 0), torch.softmax(logits - 100, 0))
    assert torch.softmax(1000 * logits, 0).tolist() == [1, 0, 0], "no overflow: saturation"


def test_another_scale_is_another_query_matrix():
    x = normal(1, 6, 128)
    q, k, v = heads().split(x)
    by_root, by_half = (AttentionFn.build({"kind": "softmax", "scale": scale}, config()) for scale in ("rsqrt", "half"))
    sharper = heads()
    sharper.qkv.weight[:128] *= 2  # W_Q
    torch.testing.assert_close(by_half(*sharper.split(x)), by_root(q, k, v))
    assert not torch.allclose(by_half(q, k, v), by_root(q, k, v))

    def step(w_q, scale):
        """How far one step of gradient descent on W_Q moves the scores."""
        w_q = w_q.clone().requires_grad_()
        scores = scale * x[0] @ w_q @ k[0, 0].T
        return -scale * x[0] @ torch.autograd.grad(scores.square().sum(), w_q)[0] @ k[0, 0].T

    w_q = normal(128, 32, seed=1)
    torch.testing.assert_close(step(2 * w_q, 0.5), step(w_q, 1.0) / 4)  # the same function, another training


def test_layer_norm_treats_every_token_by_itself():
    x = normal(1, 5, 16)
    other = x.clone()
    other[:, 3] = 7 * normal(16, seed=1)
    assert torch.equal(norm()(x)[:, :3], norm()(other)[:, :3])
    torch.testing.assert_close(norm()(x).mean(-1), torch.zeros(1, 5, dtype=x.dtype), atol=1e-6, rtol=0)
    assert norm()(x).mean(1).abs().max() > 0.1, "not over the sequence"


def test_two_thirds_of_a_block_are_feed_forward():
    block = Transformer(config()).blocks[0]
    ffn, attention = (sum(p.numel() for p in part.parameters()) for part in (block.ffn, block.mixer))
    assert (ffn, attention) == (8 * 128**2, 4 * 128**2)
    with_cross = Block(config(), Position.build("none", config()), CrossAttention)
    assert sum(p.numel() for part in (with_cross.mixer, with_cross.cross) for p in part.parameters()) == ffn


def test_the_index_of_a_position_code_counts_pairs():
    codes = sinusoids(torch.arange(20, dtype=torch.float64), 8)
    for i in range(4):  # d_model / 2 pairs
        torch.testing.assert_close(codes[:, 2 * i].square() + codes[:, 2 * i + 1].square(), torch.ones(20).double())
    assert 2 * 7 + 1 >= codes.shape[1], "i as a dimension, up to 7, would leave the vector"


def test_the_variance_of_a_dot_product_needs_the_mean():
    mu, s = sympy.symbols("mu sigma")
    second = s**2 + mu**2  # E q², E k²
    assert sympy.expand(second**2 - mu**4 - (s**4 + 2 * mu**2 * s**2)) == 0
    q, k = 2 * normal(2, 40_000, 16) + 1  # sigma 2, mu 1
    measured = (q * k).sum(-1).var().item() / 16
    assert measured == pytest.approx(2**4 + 2 * 2**2, rel=0.04) and measured > 1.3 * 2**4


# Note 2


def test_the_split_has_room_for_narrow_heads_only():
    x = normal(2, 5, 128)
    with pytest.raises(RuntimeError):
        x.reshape(2, 5, 4, 128)  # as printed, h = 4 heads as wide as the model
    assert x.reshape(2, 5, 4, 32).transpose(1, 2).shape == heads().split(x)[0].shape == (2, 4, 5, 32)


def test_the_feed_forward_formula_does_not_fit_together():
    w1, b1, w2, b2, x = normal(12, 4), normal(12), normal(4, 12), normal(4), normal(4)
    with pytest.raises(RuntimeError):
        w2 @ x  # as printed, max(0, W1 x + b1) + W2 x + b2
    assert (w2 @ torch.relu(w1 @ x + b1) + b2).shape == x.shape


def test_the_printed_swiglu_is_affine():
    w, v, w2, x, y = normal(4, 4), normal(4, 4, seed=1), normal(4, 4, seed=2), normal(4, seed=3), normal(4, seed=4)

    def bend(function):
        return function(x + y) - function(x) - function(y) + function(0 * x)

    assert bend(lambda x: w @ x + 1 + v @ x + 2).abs().max() < 1e-12, "a sum of two linear layers"
    assert bend(lambda x: w2 @ (F.silu(w @ x) * (v @ x))).abs().max() > 0.1, "three matrices and a product"


def test_a_sum_over_heads_needs_a_matrix_for_each():
    part, mixed = heads(), normal(1, 4, 6, 32)
    assert mixed.sum(1).shape[-1] == 32 != part.join(mixed).shape[-1]
    blocks = part.out.weight.T.split(32)  # W_O by head, (32, 128) each
    torch.testing.assert_close(sum(mixed[:, i] @ blocks[i] for i in range(4)), part.join(mixed))


def test_rms_norm_does_not_divide_by_the_deviation():
    x = normal(5, 16) + 3
    by_deviation = x / x.std(-1, correction=0, keepdim=True)
    assert (norm("rmsnorm")(x) / by_deviation).mean() < 0.5
    centred = x - x.mean(-1, keepdim=True)
    torch.testing.assert_close(norm("rmsnorm")(centred), norm()(x))


def test_a_norm_keeps_the_width_the_readout_changes_it():
    net, tokens = Transformer(config(vocab_size=40)), torch.zeros(1, 3, dtype=torch.long)
    assert net.norm(net.hidden(tokens)).shape == (1, 3, 128) and net(tokens).shape == (1, 3, 40)
