"""Position encodings that are stretched, combined, randomized or two-dimensional: the defining property of each.

Tests `lab.models.composed_positions`.
"""

import copy

import pytest
import torch
from helpers import close, differs, randn, small_model, tokens
from pydantic import ValidationError

from lab.models.gpt import Position
from lab.models.initialization import preset_position_counter
from lab.models.kernels import naive_attention
from lab.models.positions import sinusoids
from lab.models.rotation import rotations
from lab.models.sparse_masks import Seen

VOCABULARY, CONTEXT = 13, 24


def build(position, seed=0, **fields):
    return small_model(seed, position=position, **fields)


# Rotary: interpolation and a larger base


def rotated(position, x, at):
    """x (d,) rotated to position `at`."""
    x = x[None, None, None]
    return position.at_query_key(x, x, start=at)[0].flatten()


@pytest.mark.parametrize("factor", [2, 4, 2.5])
def test_interpolation_divides_positions_by_its_factor(factor):
    plain, interpolated = (build({"kind": "rotary", "interpolation": f}).position for f in (1, factor))
    x = randn(8)
    for at in (0, 10, 20):
        if at % factor == 0:
            close(rotated(interpolated, x, at), rotated(plain, x, int(at / factor)))
    differs(rotated(interpolated, x, 10), rotated(plain, x, 10))


@pytest.mark.parametrize("d_head", [4, 8, 32])
@pytest.mark.parametrize("factor", [2, 8])
def test_ntk_scales_the_lowest_frequency_and_keeps_the_highest(factor, d_head):
    plain, scaled = (build({"kind": "rotary", "ntk": f}, d_head=d_head).position for f in (1, factor))

    def angle(position, pair):  # at position 1
        cos, sin = rotations(2, d_head, *position.options, "cpu", torch.float32)
        return torch.atan2(sin[1, pair + d_head // 2], cos[1, pair]).item()

    slowest = d_head // 2 - 1
    assert angle(scaled, 0) == pytest.approx(angle(plain, 0), rel=1e-6)
    assert angle(scaled, slowest) == pytest.approx(angle(plain, slowest) / factor, rel=1e-5)
    between = [angle(plain, i) / angle(scaled, i) for i in range(slowest + 1)]
    assert between == sorted(between)


def test_rotary_options_change_angles_only():
    plain = build("rotary")
    for option in ({"interpolation": 2.0}, {"ntk": 2.0}, {"base": 100.0}):
        other = build({"kind": "rotary"} | option)
        assert other.state_dict().keys() == plain.state_dict().keys()
        other.load_state_dict(plain.state_dict())
        differs(other(tokens()), plain(tokens()))
        close(other(tokens(1)), plain(tokens(1)))  # position 0 is not rotated
    for wrong in ({"interpolation": 0}, {"ntk": -1.0}, {"base": 0.0}):
        with pytest.raises(ValueError, match="must be above 0"):
            build({"kind": "rotary"} | wrong)
    with pytest.raises(ValueError, match="d_head 2"):
        build({"kind": "rotary", "ntk": 2.0}, d_head=2)


# Two-dimensional codes


def test_2d_codes_encode_row_and_column_in_separate_halves():
    position = build({"kind": "sinusoidal-2d", "columns": 4}).position
    codes = position.at_input(torch.zeros(1, 12, 32))[0].unflatten(0, (3, 4))  # (row, column, m)
    row, column = codes.split(16, -1)
    close(row, row[:, :1].expand_as(row), 0)
    close(column, column[:1].expand_as(column), 0)
    close(row[:, 0], sinusoids(torch.arange(3.0), 16))
    close(column[0], sinusoids(torch.arange(4.0), 16))
    close(position.at_input(torch.zeros(1, 5, 32), start=7)[0], codes.flatten(0, 1)[7:])
    assert len(torch.unique(codes.flatten(0, 1), dim=0)) == 12
    with pytest.raises(ValueError, match="at least 1, got 0"):
        build({"kind": "sinusoidal-2d", "columns": 0})


# Composed encodings


@pytest.mark.parametrize("one, other", [("sinusoidal", "alibi"), ("learned", "rotary"), ("rotary", "t5")])
def test_hybrid_encoding_composes_its_parts(one, other):
    model, x = build({"kind": "hybrid", "parts": [one, other]}), randn(2, 12, 32)
    first, second = model.position.parts
    close(model.position.at_input(x), second.at_input(first.at_input(x)), 0)
    q, k = randn(2, 2, 4, 12, 8)
    expected = second.at_query_key(*first.at_query_key(q, k))
    assert all(torch.equal(a, b) for a, b in zip(model.position.at_query_key(q, k), expected, strict=True))
    biases = [bias for part in (first, second) if (bias := part.bias(12, 12)) is not None]
    bias = model.position.bias(12, 12)
    assert bias is None if not biases else torch.equal(bias, sum(biases))


def test_by_layer_assigns_an_encoding_per_layer():
    model = build({"kind": "by-layer", "layers": ["none", "alibi"]}, n_layers=3)
    kinds = [type(block.mixer.position) for block in model.blocks]
    assert kinds == [Position, Position.kinds["alibi"], Position]
    all_rotary = build({"kind": "by-layer", "layers": ["rotary", "rotary"]})
    assert torch.equal(all_rotary(tokens()), build("rotary")(tokens()))
    for layers in (["none", "rotary"], ["rotary", "none"], ["sinusoidal", "alibi"]):
        differs(build({"kind": "by-layer", "layers": layers})(tokens()), all_rotary(tokens()))
    with pytest.raises(ValueError, match="'learned' adds to the embeddings.*not entry 1"):
        build({"kind": "by-layer", "layers": ["none", "learned"]})


SINGLE = [{"kind": k, **({"unit": 5} if k == "hierarchical" else {})} for k in sorted(Position.kinds)]
WRAPPED = {  # wrappers that behave like the encoding they wrap
    "hybrid": lambda one: {"kind": "hybrid", "parts": [one]},
    "by-layer": lambda one: {"kind": "by-layer", "layers": [one]},
    "randomized": lambda one: {"kind": "randomized", "encoding": one, "reach": CONTEXT},  # as many positions as tokens
}


@pytest.mark.parametrize("outer, inner", [("hybrid", "by-layer"), ("by-layer", "randomized"), ("randomized", "hybrid")])
@pytest.mark.parametrize("one", SINGLE, ids=lambda choice: choice["kind"])
@torch.no_grad()
def test_wrapping_one_encoding_does_not_change_it(one, outer, inner):
    if one["kind"] == "randomized":
        one = one | {"reach": CONTEXT}
    x, wrapped = tokens(CONTEXT), build(WRAPPED[outer](WRAPPED[inner](one)))
    if one["kind"] != "none":
        differs(wrapped(x), build("none")(x))
    close(wrapped(x), build(one)(x))


@pytest.mark.parametrize("n_heads", [[4, 2], [2, 4], [1, 4]], ids=str)
@pytest.mark.parametrize("position", SINGLE, ids=lambda choice: choice["kind"])
def test_layers_with_different_head_counts_share_tables_and_random_positions(position, n_heads):
    model = build(position, n_heads=n_heads).train()
    model(tokens()).square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())
    own = {id(p) for p in model.position.parameters()}
    assert all(id(p) in own for block in model.blocks for p in block.mixer.position.parameters()), (
        "layers do not share one table"
    )
    randomized = position["kind"] == "randomized"
    assert torch.equal(model(tokens()), model(tokens())) != randomized
    rotary = build({"kind": "randomized", "encoding": "rotary"}, n_heads=n_heads).train()
    differs(rotary(tokens()), rotary(tokens()))


@pytest.mark.parametrize("mask", ["causal", "none"])
@pytest.mark.parametrize(
    "buckets, reach", [(2, 1), (4, 1), (32, 8), (32, 16), (32, 17), (8, 2), (8, 4), (3, 2), (1, 9)]
)
def test_t5_accepts_every_distance_or_raises_at_construction(buckets, reach, mask):
    single = buckets // (2 if mask == "causal" else 4)  # distances with their own bucket
    if 0 < single < reach:
        build({"kind": "t5", "buckets": buckets, "max_distance": reach}, mask=mask, block_size=300)(tokens(300))
    else:
        with pytest.raises(ValueError, match="max_distance must exceed that, got" if single else "at least . buckets"):
            build({"kind": "t5", "buckets": buckets, "max_distance": reach}, mask=mask)


def test_invalid_hybrid_parts_raise_at_construction():
    with pytest.raises(ValueError, match="'rotory' is unknown"):
        build({"kind": "hybrid", "parts": ["rotory"]})
    with pytest.raises(ValidationError, match="no option 'part'"):
        build({"kind": "hybrid", "part": []})


# Randomized positions


@pytest.mark.parametrize("encoding", ["sinusoidal", "learned", "rotary", "alibi", "t5", "none"])
def test_randomized_positions_give_the_outputs_of_a_longer_sequence_with_masked_gaps(encoding):
    """Equal to a longer sequence whose gaps are masked as keys and dropped as queries."""
    model = build({"kind": "randomized", "encoding": encoding, "reach": 40})
    places = model.position.places(12)
    assert len(places.unique()) == 12 and (places.diff() > 0).all() and places.max() < 40
    long = build(encoding, block_size=40)
    weights = {k.replace("position.encoding.", "position."): v for k, v in model.state_dict().items()}
    assert weights.pop("position.fixed").equal(model.position.places(CONTEXT))
    long.load_state_dict(weights)
    padded = torch.zeros(2, 40, dtype=torch.long)
    padded[:, places] = tokens()
    real = torch.zeros(1, 1, 40, 40, dtype=torch.bool)
    real[..., places] = True
    close(model(tokens()), long(padded, mask=Seen(real))[:, places])


def test_positions_are_drawn_in_training_and_fixed_in_eval():
    model, twin, other = (build({"kind": "randomized", "encoding": "rotary"}, seed=s) for s in (0, 0, 1))
    x = tokens()
    assert torch.equal(model(x), model(x)) and torch.equal(model(x), twin(x))
    assert not torch.equal(model.position.fixed, other.position.fixed)
    model.train()
    first, second = model(x), model(x)
    differs(first, second)
    assert torch.equal(first, twin.train()(x)) and torch.equal(second, twin(x)), "draws depend on more than the seed"
    before = torch.get_rng_state()
    model(x)
    assert torch.equal(torch.get_rng_state(), before)
    counts = torch.zeros(48)
    for _ in range(300):
        model(x)
        counts[model.position.places(12)] += 1
    assert (counts > 0).all() and counts.max() < 4 * counts.mean(), "positions are not drawn uniformly"
    model.eval()
    assert torch.equal(model(x), copy.deepcopy(model)(x))


def test_without_gaps_only_the_offset_is_drawn():
    model = build({"kind": "randomized", "encoding": "sinusoidal", "gaps": False}).train()
    firsts = set()
    for _ in range(300):
        model(tokens())
        places = model.position.places(12)
        assert (places.diff() == 1).all()
        firsts.add(places[0].item())
    assert firsts == set(range(2 * CONTEXT - 12 + 1))
    relative = build({"kind": "randomized", "encoding": "alibi", "gaps": False})
    close(relative(tokens()), build("alibi")(tokens()))  # a relative encoding is shift invariant


def test_randomized_positions_reject_lengths_beyond_context():
    with pytest.raises(ValueError, match="up to 24 positions, got 25"):
        build("randomized")(tokens(25))
    with pytest.raises(ValueError, match="at least context 24, got 20"):
        build({"kind": "randomized", "reach": 20})


# No position encoding


@pytest.mark.parametrize("head, sizes", [(0, {}), (3, {}), (3, {"kv_heads": 2}), (1, {"d_model": 64, "n_layers": 1})])
def test_head_without_position_encoding_can_compute_one_over_position(head, sizes):
    model, n, marker = build("none", **sizes), CONTEXT, 5
    preset_position_counter(model, marker, head=head)
    x = tokens(n).where(tokens(n) != marker, 0)
    x[:, 0] = marker
    block = model.blocks[0]
    q, k, v = block.mixer.heads.split(block.mixer_norm(model.embedding(x)))
    k, v = (y.repeat_interleave(q.shape[1] // y.shape[1], 1) for y in (k, v))
    mixed = naive_attention(q, k, v, causal=True)
    t = torch.arange(1, n + 1)
    assert (mixed[:, head, :, 0] - 1 / t).abs().max() < 1e-6
    assert torch.equal((1 / mixed[:, head, :, 0]).round().long(), t.expand(2, n))


def test_position_counter_requires_pre_norm_and_enough_features():
    with pytest.raises(ValueError, match="40 tokens.*32 features"):
        preset_position_counter(build("none", vocab_size=40), 0)
    with pytest.raises(ValueError, match="must be pre, not post"):
        preset_position_counter(build("none", residual="post"), 0)
