"""Errata of the chapter, §1.1 and §1.2: the statement fails, what experiments/errata.yaml puts in its place holds.

The rest: test_errata_positions.py (§1.3), test_errata_blocks.py (§1.4 to §1.6), test_errata_notes_*.py.
"""

import math
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from helpers import normal
from torch.utils._python_dispatch import TorchDispatchMode

from lab.measure.cost import attention_macs, attention_parameters, cache_elements
from lab.models import ModelConfig, Transformer
from lab.models.encoder_decoder import EncoderDecoder
from lab.models.gpt import AttentionFn, KVCache, QKVProjection
from lab.models.kernels import naive_attention, tiled_attention


def config(**fields):
    return ModelConfig(**({"vocab_size": 16, "block_size": 32, "d_model": 32, "n_layers": 2, "n_heads": 4} | fields))


def of_chapter(kv_heads, h=8):
    """The heads of exercise 1.5: d_model 512."""
    torch.manual_seed(0)
    return QKVProjection.build("full", config(d_model=512, n_heads=h, kv_heads=kv_heads).layer(0))


def parameters(module):
    return sum(p.numel() for p in module.parameters())


# §1.1 attention


def test_scaled_variance_is_one_only_for_independent_zero_mean_components():
    q, k = normal(2, 40_000, 64)
    assert (q * k).sum(-1).div(8).var().item() == pytest.approx(1, abs=0.03)
    assert ((q + 1) * (k + 1)).sum(-1).div(8).var().item() == pytest.approx(3, abs=0.09)
    alike = (q * q).sum(-1).div(8)  # queries that have come to resemble their keys
    assert alike.mean().item() == pytest.approx(8, abs=0.05) and alike.var().item() == pytest.approx(2, abs=0.06)


def test_without_the_scale_most_gradients_vanish_and_the_largest_grow():
    def gradients(d, scaled):
        q, k = normal(400, d), normal(400, 64, d, seed=1)
        scale = d**-0.5 if scaled else 1.0
        p = torch.softmax((k @ q[..., None]).squeeze(-1) * scale, -1)
        jacobian = torch.diag_embed(p) - p[:, :, None] * p[:, None]
        at_query = torch.linalg.matrix_norm(jacobian @ k) * scale  # of the weights with respect to q
        return jacobian.diagonal(dim1=1, dim2=2).sum(-1), at_query

    (trace_16, query_16), (trace_256, query_256) = gradients(16, False), gradients(256, False)
    assert 3 < trace_16.mean() / trace_256.mean() < 5  # the law: 1/√d, here √16
    assert trace_16.median() / trace_256.median() > 3 * trace_16.mean() / trace_256.mean()
    assert query_256.median() < query_16.median() / 2 and query_256.max() > 2 * query_16.max()
    scaled = gradients(256, True)[1]
    assert query_256.mean() > 5 * scaled.mean() and scaled.max() < 2 * scaled.median()


def test_a_dot_product_is_no_cosine():
    q, k = normal(200, 64), normal(128, 64, seed=1)
    best = (q @ k.T).argmax(-1)
    assert (best == (q @ F.normalize(k, dim=-1).T).argmax(-1)).double().mean() < 0.9
    longer = k.clone()
    longer[0] *= 10
    moved = (q @ longer.T).argmax(-1) != best
    assert moved.any() and (q @ k[0])[moved & (best != 0)].gt(0).all(), "a key with a positive score gains by length"
    alike = F.normalize(k, dim=-1)
    assert torch.equal((q @ alike.T).argsort(), (F.normalize(q, dim=-1) @ alike.T).argsort()), "equally long: one order"
    left, right = normal(2, 64, 16, seed=2)
    scores = (k @ left) @ (k @ right).T
    assert (scores - scores.T).abs().max() > 1, "x looks at y otherwise than y at x"


def test_an_additive_score_is_no_weight():
    torch.manual_seed(0)
    part = AttentionFn.build("additive", config(d_model=8, n_heads=1).layer(0)).double()
    q, k = normal(1, 1, 1, 8), normal(1, 1, 7, 8, seed=1)
    scores = part.sum(torch.tanh(part.query(q) + part.key(k))).squeeze(-1)  # as printed, of one query and seven keys
    assert scores.min() < 0 and abs(scores.sum().item() - 1) > 0.1, "no weights"
    weights = part(q, k, torch.eye(7, dtype=q.dtype)[None, None])[0, 0, 0]
    torch.testing.assert_close(weights, torch.softmax(scores.flatten(), -1))


def test_projections_are_most_of_attention_until_the_sequence_is_long():
    d = 512
    long = attention_macs(2 * d, d, 8, 8, d // 8)
    assert 2 * (long["scores"] + long["mix"]) == sum(long.values()), "half of the work at n = 2 d"
    short = attention_macs(d // 8, d, 8, 8, d // 8)
    pairs = short["scores"] + short["mix"]
    assert pairs == 2 * (d // 8) ** 2 * d
    assert pairs / sum(short.values()) < 0.06, "with d far above n the cost is n d², not n² d"


class Largest(TorchDispatchMode):
    """The most elements that one tensor made inside has."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        made = [r for r in (result if isinstance(result, tuple | list) else [result]) if isinstance(r, torch.Tensor)]
        self.elements = max([self.elements, *(r.numel() for r in made)])
        return result


def test_exact_attention_needs_no_square_matrix():
    heads, n, width = 4, 512, 8
    q, k, v = normal(3, 1, heads, n, width)
    with Largest() as stored:
        whole = naive_attention(q, k, v)
    with Largest() as tiled:
        parts = tiled_attention(q, k, v, block=32)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-12)
    assert stored.elements == heads * n * n, "n² for each head where it is stored"
    assert tiled.elements == heads * n * width, "and nothing larger than the output where it is not"


def test_sorting_counting_and_brackets_reach_across_the_sequence():
    x = list(range(1, 101))
    near, far = sorted([*x[:-1], 0]), [*x[:-1], 0].count(0)
    assert near[0] == 0 != sorted(x)[0] and far == 1 != x.count(0), "the last element decides the first, and the count"

    def partners(brackets):
        opened, distances = [], []
        for at, bracket in enumerate(brackets):
            distances.append(at - opened.pop()) if bracket == ")" else opened.append(at)
        return distances

    assert partners("((()))") == [1, 3, 5], "only the innermost pair is local"
    assert max(partners("(" * 50 + ")" * 50)) == 99


def test_n_queries_give_n_outputs_that_depend_on_the_values_beyond_the_weights():
    weights, values = torch.softmax(normal(24, 24), -1), normal(24, 24, seed=1)
    assert torch.linalg.matrix_rank(weights @ values) == 24, "nothing is pressed into one vector"
    other = values.clone()
    other[3] += 1
    assert ((weights @ other - weights @ values).abs() > 1e-6).all(), "same weights, other inputs: other outputs"


def test_an_encoder_may_look_ahead_and_infilling_needs_it():
    answers = torch.arange(1, 9)
    tokens = torch.stack([torch.zeros_like(answers), answers], 1)  # a hidden token, then what it was

    def accuracy(mask):
        net = Transformer(config(vocab_size=9, d_model=16, n_layers=1, mask=mask))
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        for _ in range(60):
            optimizer.zero_grad()
            F.cross_entropy(net(tokens)[:, 0], answers).backward()
            optimizer.step()
        return (net(tokens)[:, 0].argmax(-1) == answers).double().mean().item()

    assert accuracy("none") == 1 and accuracy("causal") <= 1 / 8


@torch.no_grad()
def test_cross_attention_needs_a_padding_mask():
    net = EncoderDecoder(config()).double()
    source, target = torch.tensor([[3, 4, 5, 0, 0]]), torch.tensor([[1, 2]])
    real = source != 0

    def outputs():
        return net((source, target)), net((source, target), source_padding_mask=real)

    open_before, masked_before = outputs()
    net.encoder.embedding.weight[0] *= -1  # the padding token means something else
    open_after, masked_after = outputs()
    assert (open_after - open_before).abs().max() > 1e-2
    assert torch.equal(masked_after, masked_before)


# §1.2 heads


def test_the_width_of_a_head_bounds_the_rank_of_logits_but_not_of_weights():
    q, k = normal(2, 64, 8)
    logits = q @ k.T / math.sqrt(8)
    assert torch.linalg.matrix_rank(logits) == 8 and torch.linalg.matrix_rank(torch.softmax(logits, -1)) == 64


def test_the_number_of_heads_does_not_change_the_parameters():
    counts = {h: parameters(of_chapter(h, h)) for h in (1, 2, 4, 8, 16, 32)}
    assert set(counts.values()) == {4 * 512 * 512}, "there is nothing to make equal by adding layers"


def test_the_output_matrix_belongs_to_the_parameters():
    heads = of_chapter(8)
    assert heads.qkv.weight.numel() == 3 * 8 * 512 * 64 == 786_432
    assert parameters(heads) == 1_048_576 == 4 * 8 * 512 * 64


def test_multi_query_keeps_more_than_a_third():
    few, many = of_chapter(1), of_chapter(8)
    assert Fraction(few.qkv.weight.numel(), many.qkv.weight.numel()) == Fraction(5, 12)
    assert Fraction(parameters(few), parameters(many)) == Fraction(9, 16)
    assert attention_parameters(1, 10**6, 1, 1) / attention_parameters(1, 10**6, 10**6, 1) == pytest.approx(1 / 2)


def test_multi_query_has_all_queries_and_one_key_and_value():
    assert of_chapter(1).qkv.weight.numel() == 8 * 512 * 64 + 2 * 512 * 64 == 327_680
    assert 512 * 64 + 2 * 512 * 512 == 557_056, "one query and eight keys and values: the roles are swapped"


def test_four_groups_keep_eight_query_heads():
    assert of_chapter(4).qkv.weight.numel() == 524_288, "a third less than 786,432, not half"
    assert of_chapter(2).qkv.weight.numel() == 393_216, "what the chapter prints is the count for two groups"


def test_fewer_groups_have_fewer_parameters():
    assert of_chapter(1).qkv.weight.numel() < of_chapter(4).qkv.weight.numel() < of_chapter(8).qkv.weight.numel()
    one_group, four_groups = 512 * 64 + 2 * 512 * 512, 4 * 512 * 64 + 2 * 4 * 512 * 64
    assert one_group > four_groups, "as printed: the wrong way round"


def test_the_cache_shrinks_with_the_groups():
    def elements(groups):  # one sequence; the batch of 32 only multiplies
        cache = KVCache(1, groups, 1024, of_chapter(groups).d)
        return 32 * (cache.keys.numel() + cache.values.numel())

    assert [elements(g) for g in (8, 4, 1)] == [33_554_432, 16_777_216, 4_194_304]
    assert elements(8) == 8 * elements(1) == cache_elements(1024, 8, 64, 32), "reduced eightfold, as §1.2.5 says"


def test_groups_save_projections_and_no_work_over_pairs():
    macs = {g: attention_macs(1024, 512, 8, g, 64) for g in (8, 4, 1)}
    gigaflop = {g: 2 * 32 * sum(macs[g][name] for name in ("q", "k", "v", "out")) / 1e9 for g in macs}
    assert [round(gigaflop[g], 1) for g in (8, 4, 1)] == [68.7, 51.5, 38.7]
    assert len({m["scores"] + m["mix"] for m in macs.values()}) == 1
    cache = KVCache(1, 8, 1024, 64)
    assert 32 * (cache.keys.nbytes + cache.values.nbytes) == 128 * 2**20, "33.6M elements, 128 MiB in float32"


def test_heads_do_not_react_when_one_of_them_fails():
    heads, mixed = of_chapter(8).double(), normal(1, 8, 5, 64)  # what each head has gathered
    alone = [heads.join(F.one_hot(torch.tensor(i), 8)[None, :, None, None] * mixed) for i in range(8)]
    torch.testing.assert_close(sum(alone), heads.join(mixed))
    failed = mixed.clone()
    failed[:, 2] = 0
    torch.testing.assert_close(heads.join(failed), sum(alone) - alone[2])
    assert not torch.allclose(heads.join(mixed), alone[0] * 8), "a sum of different parts, not a mean of alike ones"
