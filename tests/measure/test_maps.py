"""Where heads look: targets, baselines and scores equal what they are defined to be, on maps whose answer is known."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import random_maps, uniform_maps
from hypothesis import given
from hypothesis import strategies as st

from lab.measure import maps as patterns
from lab.measure.attention import attention_probe, mass_on
from lab.tasks.code import Code


@given(period=st.integers(1, 6), repeats=st.integers(2, 4), offset=st.sampled_from([-1, 0, 1]))
def test_copies_are_the_tokens_beside_the_earlier_occurrences(period, repeats, offset):
    n, targets = period * repeats, patterns.induction_targets(period * repeats, period, offset)[0]
    for q in range(n):
        earlier = {q - m * period for m in range(1, repeats)}
        wanted = {copy + offset for copy in earlier if copy >= 0 and 0 <= copy + offset}
        assert set(targets[q].nonzero().flatten().tolist()) == wanted, q


def test_an_ideal_induction_head_scores_one_and_nothing_by_the_formula_as_printed():
    n, period = 100, 25
    head = torch.zeros(1, 1, n, n)
    q = torch.arange(period, n)
    head[0, 0, q, q - period + 1] = 1
    head[0, 0, :period, 0] = 1
    scores = {
        offset: patterns.mass(head, patterns.induction_targets(n, period, offset)).item() for offset in (1, 0, -1)
    }
    assert scores == {1: 1, 0: 0, -1: 0}
    baseline = {offset: patterns.uniform_mass(patterns.induction_targets(n, period, offset)) for offset in (1, 0)}
    assert baseline[0] == pytest.approx(0.0313, abs=5e-5) and 0.031 < baseline[1] < 0.0325
    for offset, share in baseline.items():
        found = patterns.mass(uniform_maps(2, 3, n), patterns.induction_targets(n, period, offset))
        assert found.tolist() == pytest.approx([share] * 3)


def test_mass_is_what_the_probe_measures():
    maps, n = random_maps(2, 3, 7), 7
    index = torch.randint(-1, 7, (2, n), generator=torch.Generator().manual_seed(1))
    targets = patterns.one_hot_targets(index)
    assert targets.sum(-1).equal((index >= 0).long())
    query, key = torch.zeros(2, 3, n, 1, dtype=torch.float64), torch.zeros(2, 3, n, 1, dtype=torch.float64)
    with attention_probe({"mass": mass_on(targets)}) as probe:
        F.scaled_dot_product_attention(query, key, key, attn_mask=maps.log())
    assert probe.table().value.tolist() == pytest.approx(patterns.mass(maps, targets).tolist())
    assert patterns.mass(maps, torch.zeros(1, n, n, dtype=torch.bool)).isnan().all(), "nothing to measure is no 0"


def test_distance_sees_how_far_a_head_looks():
    eye, queries = torch.eye(8)[None, None], torch.ones(1, 8, dtype=torch.bool)
    back = torch.zeros(1, 1, 8, 8)
    back[0, 0, range(8), [0, 0, 1, 2, 3, 4, 5, 6]] = 1
    assert patterns.relative_distance(eye, queries).item() == 0
    assert patterns.relative_distance(back, queries).item() == pytest.approx(7 / (sum(range(8)) / 2))


def test_what_counts_may_be_the_same_for_every_input():
    """Queries (1, q) and targets (1, q) or (1, q, k) are those of each of b inputs, no more and no less."""
    maps, queries = random_maps(4, 3, 8), (torch.arange(8) % 3 > 0)[None]
    index = torch.tensor([[-1, 0, 0, 2, 1, 4, -1, 3]])
    targets = patterns.one_hot_targets(index)
    measures = {
        "distance": (patterns.relative_distance, queries),
        "hits": (patterns.hits, index),
        "mass": (patterns.mass, targets),
    }
    for name, (measure, at) in measures.items():
        each = torch.stack([measure(one[None], at) for one in maps]).mean(0)
        for asked in (at, at.expand(4, *at.shape[1:])):
            torch.testing.assert_close(measure(maps, asked), each, msg=name, check_dtype=False)
    assert patterns.uniform_mass(targets) == pytest.approx(patterns.uniform_mass(targets.expand(4, -1, -1)))


def test_divergence_between_heads_is_zero_for_equal_and_one_bit_for_disjoint_patterns():
    maps = torch.eye(4).expand(2, 2, -1, -1).clone()
    maps[:, 1] = maps[:, 1].roll(1, -1)
    assert patterns.divergence(maps, maps).tolist() == [[0, 1], [1, 0]]
    assert patterns.divergence(random_maps(2, 3, 5), random_maps(2, 3, 5)).diagonal().abs().max() < 1e-9


def test_packed_maps_come_back_to_half_a_step():
    maps = random_maps(1, 1, 9)[0, 0]
    assert torch.from_numpy(patterns.unpacked(patterns.packed(maps)).copy()).sub(maps).abs().max() <= 0.5 / 255 + 1e-12


def test_gold_of_code_windows_stays_inside_the_window_and_in_the_past():
    drawn = Code(context=48).annotated(32)
    t, tokens = torch.arange(48), drawn["tokens"]
    for name in ("opener", "last_use"):
        index = drawn[name]
        assert ((index < t) & (index >= -1)).all() and (index >= 0).any(), name
    b, q = (drawn["last_use"] >= 0).nonzero(as_tuple=True)
    assert tokens[b, q].equal(tokens[b, drawn["last_use"][b, q]]), "the same name ends in the same byte"
    assert math.isfinite(patterns.uniform_mass(patterns.one_hot_targets(drawn["last_use"])))


def test_maps_are_made_as_sharp_as_others_and_keep_their_order():
    generator = torch.Generator().manual_seed(0)
    flat, sharp = (torch.softmax(scale * torch.randn(2, 3, 5, 5, generator=generator), -1) for scale in (0.1, 3))
    made = patterns.match_entropy(flat, sharp)

    def entropy(m):
        return -(m * m.log()).sum(-1).mean()

    assert torch.isclose(entropy(made), entropy(sharp), atol=1e-3) and torch.allclose(made.sum(-1), torch.ones(2, 3, 5))
    assert (made.argmax(-1) == flat.argmax(-1)).all() and torch.allclose(
        patterns.match_entropy(sharp, sharp), sharp, atol=1e-4
    )
    masked = flat.tril()
    assert (patterns.match_entropy(masked / masked.sum(-1, keepdim=True), sharp).triu(1) == 0).all()
