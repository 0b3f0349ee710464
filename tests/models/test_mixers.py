"""Mixers: requirements on every registered variant, then properties of single variants.

Tests `lab.models.mixers` and `lab.models.gpt`.
"""

import pytest
import torch
from helpers import close, randn, small_config, tokens

from lab.models import Transformer
from lab.models.gpt import Mixer, Position

CONTEXT = 32
KINDS = sorted(Mixer.kinds)
WITH_STATE = sorted(set(KINDS) - {"attention"})  # constant-size decoding state
every_kind = pytest.mark.parametrize("kind", KINDS)


def config(**fields):
    return small_config(**({"block_size": CONTEXT, "position": "none"} | fields))


def build(seed=0, **fields):
    return Transformer(config(**fields), seed=seed).eval()


def part(choice, **fields):
    """A stand-alone mixer with random weights."""
    layer = config(mixer=choice, **fields).layer(0)
    torch.manual_seed(0)
    return Mixer.build(choice, layer, Position.build(layer.position, layer)).eval()


# All variants


@every_kind
@pytest.mark.parametrize("heads", ["full", "primer"])
@torch.no_grad()
def test_cache_bytes_equal_state_bytes(kind, heads):
    model = build(mixer=kind, projection=heads)
    for length in (1, 7, CONTEXT):
        caches = model.caches(3, context=length)
        model(tokens(length, batch=3), caches=caches)
        for cache, block in zip(caches, model.blocks, strict=True):
            assert cache.nbytes == 3 * block.mixer.state_bytes(length)


@pytest.mark.parametrize("kind", WITH_STATE)
def test_recurrent_state_size_is_independent_of_length(kind):
    mixer = part(kind)
    assert mixer.state_bytes(CONTEXT) == mixer.state_bytes(10**6) < part("attention").state_bytes(10**6)


@every_kind
def test_every_parameter_receives_a_gradient(kind):
    model = build(mixer=kind, bias=True)
    model(tokens(20)).square().sum().backward()
    without_gradient = [name for name, p in model.named_parameters() if not p.grad.any()]
    assert not without_gradient, without_gradient


def test_mixer_can_differ_per_layer():
    model = build(mixer=["attention", {"kind": "linear", "chunk": 8}])
    assert [type(block.mixer).__name__ for block in model.blocks] == ["Attention", "LinearAttention"]
    assert model.blocks[1].mixer.chunk == 8
    with pytest.raises(ValueError, match="mixer has 1 entries, n_layers is 2"):
        config(mixer=["linear"])
    with pytest.raises(ValueError, match="mixer cannot be a list if unique_layers is set"):
        config(mixer=["linear", "gru"], unique_layers=1)


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"mixer": "linear", "position": "alibi"}, "LinearAttention has no scores to add a bias to: position 'alibi'"),
        ({"mixer": "gated-delta", "position": "t5"}, "GatedDeltaRule has no scores to add a bias to: position 't5'"),
        ({"mixer": "gru", "position": "rotary"}, "Gru has no queries and keys to rotate: position 'rotary'"),
        ({"mixer": ["attention", "performer"], "position": "hybrid"}, "Performer has no scores"),
        ({"mixer": "linear", "mask": {"kind": "window", "size": 3}}, "must be causal or none, not {'kind': 'window'"),
        (
            {"mixer": "delta", "mask": "none"},
            "DeltaRule cannot mask individual query-key pairs: the mask must be causal, not 'none'",
        ),
        ({"mixer": {"kind": "convolution", "width": 0}}, "width of at least 1, got 0"),
    ],
)
def test_incompatible_mixer_options_raise_at_construction(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        build(**fields)


def test_by_layer_positions_allow_a_gru_in_a_layer_without_positions():
    build(mixer=["attention", "gru"], position={"kind": "by-layer", "layers": ["alibi", "none"]})(tokens(20))


@pytest.mark.parametrize("kind", sorted(set(WITH_STATE) - {"transformer-xl"}))
def test_recurrent_mixers_reject_batch_masks(kind):
    model = build(mixer=kind)
    with pytest.raises(ValueError, match="does not accept a per-batch mask"):
        model(tokens(20), mask=model.mask)


@pytest.mark.parametrize("kind", ["linear", "performer"])
@torch.no_grad()
def test_unmasked_linear_attention_is_permutation_equivariant(kind):
    mixer, x, order = part(kind, mask="none"), randn(1, 9, 32), torch.randperm(9)
    close(mixer(x[:, order]), mixer(x)[:, order])


# Single variants


@pytest.mark.parametrize("width", [1, 2, 5])
@torch.no_grad()
def test_convolution_is_depthwise_and_causal_with_its_width(width):
    mixer, x = part({"kind": "convolution", "width": width}), randn(1, 12, 32)
    p, gate = mixer.up(x).chunk(2, -1)
    taps, mixed = mixer.conv_weight[:, 0], torch.zeros(1, 12, 32)
    for t in range(12):
        for i in range(min(width, t + 1)):
            mixed[:, t] += taps[:, width - 1 - i] * p[:, t - i]
    close(mixer(x), mixer.out(mixed * gate))
    moved = x.clone()
    moved[:, 3] += 1
    changed = (mixer(moved) - mixer(x)).abs().sum((0, 2)) > 1e-5
    assert changed.nonzero().flatten().tolist() == list(range(3, 3 + width))
