"""What every mixer must do, stated for all kinds that are registered, and what each kind is named for.

Of `lab.models.mixers` and `lab.models.gpt`.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import close, differs, randn, small_config, tokens

from lab.measure.memory import peak_memory
from lab.models import Transformer
from lab.models.gpt import Mixer, Position

CONTEXT = 32
KINDS = sorted(Mixer.kinds)
WITH_STATE = sorted(set(KINDS) - {"attention"})  # decoding keeps the same, whatever the length
every_kind = pytest.mark.parametrize("kind", KINDS)


def config(**fields):
    return small_config(**({"block_size": CONTEXT, "position": "none"} | fields))


def build(seed=0, **fields):
    return Transformer(config(**fields), seed=seed).eval()


def part(choice, **fields):
    """A mixer by itself, with random weights."""
    layer = config(mixer=choice, **fields).layer(0)
    torch.manual_seed(0)
    return Mixer.build(choice, layer, Position.build(layer.position, layer)).eval()


# All kinds


@pytest.mark.parametrize("position", ["rotary", "learned", "sinusoidal", "by-layer"])
@pytest.mark.parametrize("mixer", ["linear", "performer", "delta", "gated-delta"])
@torch.no_grad()
def test_queries_and_keys_have_the_positions_that_attention_gives_them(mixer, position):
    differs(build(mixer=mixer, position=position)(tokens()), build(mixer=mixer)(tokens()))


@every_kind
@pytest.mark.parametrize("heads", ["full", "primer"])
@torch.no_grad()
def test_decoding_keeps_the_bytes_that_a_mixer_says(kind, heads):
    model = build(mixer=kind, heads=heads)
    for length in (1, 7, CONTEXT):
        caches = model.caches(3, context=length)
        model(tokens(length, batch=3), caches=caches)
        for cache, block in zip(caches, model.blocks, strict=True):
            assert cache.nbytes == 3 * block.mixer.state_bytes(length)


@pytest.mark.parametrize("kind", WITH_STATE)
def test_the_state_has_one_size(kind):
    mixer = part(kind)
    assert mixer.state_bytes(CONTEXT) == mixer.state_bytes(10**6) < part("attention").state_bytes(10**6)


def test_decoding_four_thousand_tokens_keeps_what_forty_keep(monkeypatch):
    model, kept = build(mixer=WITH_STATE, n_layers=len(WITH_STATE)), []
    usual = Transformer.caches
    monkeypatch.setattr(Transformer, "caches", lambda *args: kept.append(usual(*args)) or kept[-1])
    for n in (40, 4000):
        assert model.generate(tokens(n, batch=1), 20).shape == (1, n + 20)
    short, long = ([cache.nbytes for cache in caches] for caches in kept)
    assert short == long == [block.mixer.state_bytes(4000) for block in model.blocks]
    assert kept[1][0].length == 4019


@pytest.mark.parametrize("kind", WITH_STATE)
@torch.no_grad()
def test_decoding_step_by_step_keeps_the_same_bytes_at_every_step(kind):
    model, kept = build(mixer=kind, d_model=8, n_layers=1), []
    caches = model.caches(1, context=400)
    for token in tokens(400, batch=1).T:
        model(token[None], caches=caches)
        kept.append(caches[0].nbytes)
    full = CONTEXT if kind == "transformer-xl" else 8  # steps until the inputs that it keeps are all there
    assert set(kept[full:]) == {model.blocks[0].mixer.state_bytes(400)} and caches[0].length == 400


def decode(kind, steps):
    build(mixer=kind, d_model=256, n_layers=1).generate(tokens(1, batch=1), steps)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linear", "delta", "gated-delta", "gru", "attention"])
def test_the_peak_memory_of_decoding_grows_by_what_attention_keeps_alone(kind):
    thousand, four = peak_memory(decode, [(kind, 1024), (kind, 4096)], warmup_args=(kind, 1024))
    keys_and_values = 2 * 256 * 4 * (4096 - 1024)  # 6 MiB
    if kind == "attention":  # else a measurement that sees nothing would pass
        assert four - thousand > 0.8 * keys_and_values
    else:
        assert four - thousand < 0.1 * keys_and_values


@every_kind
def test_every_weight_is_trained(kind):
    model = build(mixer=kind, bias=True)
    model(tokens(20)).square().sum().backward()
    unmoved = [name for name, p in model.named_parameters() if not p.grad.any()]
    assert not unmoved, unmoved


def test_each_layer_may_have_a_mixer_of_its_own():
    model = build(mixer=["attention", {"kind": "linear", "chunk": 8}])
    assert [type(block.mixer).__name__ for block in model.blocks] == ["Attention", "LinearAttention"]
    assert model.blocks[1].mixer.chunk == 8
    with pytest.raises(ValueError, match="mixer lists 1 layers, n_layers is 2"):
        config(mixer=["linear"])
    with pytest.raises(ValueError, match="shared layers have one mixer"):
        config(mixer=["linear", "gru"], unique_layers=1)


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"mixer": "linear", "position": "alibi"}, "LinearAttention has no scores to add a bias to: position 'alibi'"),
        ({"mixer": "gated-delta", "position": "t5"}, "GatedDeltaRule has no scores to add a bias to: position 't5'"),
        ({"mixer": "gru", "position": "rotary"}, "Gru has no queries and keys to rotate: position 'rotary'"),
        ({"mixer": ["attention", "performer"], "position": "hybrid"}, "Performer has no scores"),
        ({"mixer": "linear", "mask": {"kind": "window", "size": 3}}, "must be causal or none, not window"),
        (
            {"mixer": "delta", "mask": "none"},
            "DeltaRule cannot mask single pairs: the mask must be causal, not everything",
        ),
        ({"mixer": {"kind": "convolution", "width": 0}}, "width of at least 1, got 0"),
    ],
)
def test_what_a_mixer_cannot_honour_is_refused_at_construction(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        build(**fields)


def test_a_layer_of_its_own_position_may_spare_a_mixer():
    build(mixer=["attention", "gru"], position={"kind": "by-layer", "layers": ["alibi", "none"]})(tokens(20))


@pytest.mark.parametrize("kind", sorted(set(WITH_STATE) - {"transformer-xl"}))
def test_a_mask_of_the_batch_is_refused(kind):
    model = build(mixer=kind)
    with pytest.raises(ValueError, match="takes no mask of a batch"):
        model(tokens(20), mask=model.mask)


@pytest.mark.parametrize("kind", ["linear", "performer"])
@torch.no_grad()
def test_without_a_mask_linear_attention_sees_both_sides_and_no_order(kind):
    mixer, x, order = part(kind, mask="none"), randn(1, 9, 32), torch.randperm(9)
    close(mixer(x[:, order]), mixer(x)[:, order])


# The others


@pytest.mark.parametrize("width", [1, 2, 5])
@torch.no_grad()
def test_a_convolution_sees_its_width_and_each_feature_by_itself(width):
    mixer, x = part({"kind": "convolution", "width": width}), randn(1, 12, 32)
    p, gate = mixer.up(x).chunk(2, -1)
    taps, mixed = mixer.conv_weight[:, 0], torch.zeros(1, 12, 32)
    for t in range(12):
        for i in range(min(width, t + 1)):
            mixed[:, t] += taps[:, width - 1 - i] * p[:, t - i]
    close(mixer(x), mixer.out(mixed * gate))
    moved = x.clone()
    moved[:, 3] += 1
    seen = (mixer(moved) - mixer(x)).abs().sum((0, 2)) > 1e-5
    assert seen.nonzero().flatten().tolist() == list(range(3, 3 + width))


def test_a_bit_is_carried_by_a_gru_and_not_by_a_few_neighbours():
    generator, losses = torch.Generator().manual_seed(0), {}
    for kind in ("gru", "convolution"):
        model = Transformer(config(mixer=kind, vocab_size=2, n_layers=1))
        adam = torch.optim.Adam(model.parameters(), 0.01)
        for _ in range(150):
            bits = torch.randint(2, (32, 12), generator=generator)
            loss = F.cross_entropy(model(bits).flatten(0, 1), (bits.cumsum(1) % 2).flatten())
            adam.zero_grad()
            loss.backward()
            adam.step()
        losses[kind] = loss.item()
    assert losses["gru"] < 0.1 < 0.4 < losses["convolution"] < math.log(2) + 0.1, losses
