"""Contract tests: every variant of every seam passes, or raises a ValueError that names the variant.

Outputs must be causal. Padding, key/value caches, low precision, copies, checkpoints and recomputation must change
them by no more than rounding. REFUSALS lists the variants that raise ValueError for one of these.

Tests `lab.models.precision`.
"""

import copy
import functools
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from helpers import choice_of, close, differs, kinds_of_models, small_config, tokens

import lab.models
from lab.models import Transformer
from lab.models.encoder_decoder import EncoderDecoder
from lab.models.gpt import SEAMS, Block
from lab.models.padding import Padding, SeesPadding
from lab.models.rotation import rotations

REQUIRED = {  # config fields that a variant needs
    "linformer": {"mask": "none", "position": "none"},
    "gru": {"position": "none"},
    "convolution": {"position": "none"},
    "sliced": {"kv_heads": 4},
    "full-value": {"kv_heads": 4},
    "admin": {"residual": "admin"},
    "deepnorm": {"residual": "deepnorm"},
}


MIXERS = [
    ("linear", "attention"),
    ("gru", "convolution"),
    ("transformer-xl", "gated-delta"),
    ("performer", "delta"),
]  # one per layer


def cases():
    """{name: config fields}: the default, every variant of every seam, and selected pairs."""
    result = {"default": {}}
    for field, seam in SEAMS.items():
        for kind in kinds_of_models(seam):
            result[f"{field} {kind}"] = REQUIRED.get(kind, {}) | {field: choice_of(kind)}
    for mixer in ("linear", "performer", "delta", "gated-delta", "transformer-xl"):
        result[f"mixer {mixer}, position none"] = {"mixer": mixer, "position": "none"}
        result[f"mixer {mixer}, projection primer"] = {"mixer": mixer, "projection": "primer"}
    for score in ("additive", "bilinear", "cosine", "lsh", "offset-gate", "sparsemax", "top-k"):
        result[f"score {score}, position alibi"] = {"score": choice_of(score), "position": "alibi"}
    for encoding in ("rotary", "alibi", "t5"):
        result[f"mask window, position {encoding}"] = {
            "position": encoding,
            "mask": {"kind": "window", "size": 3},
        }
        result[f"position {encoding}, heads by layer"] = {
            "position": encoding,
            "n_heads": [1, 4],
            "kv_heads": 1,
        }
    result["kv_heads 4, position t5"] = {"kv_heads": 4, "position": "t5"}
    for width in (1, 5):
        result[f"projection primer, width {width}"] = {"projection": {"kind": "primer", "width": width}}
    result["mixer convolution, width 2"] = {
        "mixer": {"kind": "convolution", "width": 2},
        "position": "none",
    }
    for encoding in ("rotary", "alibi", "t5"):
        choice = {"kind": "randomized", "encoding": encoding}
        result[f"position randomized, {encoding}"] = {"position": choice}
    result["unlike layers"] = {
        "n_heads": [2, 4],
        "kv_heads": 2,
        "position": "alibi",
        "lm_head": "tied",
    }
    result["shared layers"] = {"unique_layers": 1, "lm_head": "tied"}
    result["linear of both sides"] = {"mask": "none", "mixer": "linear"}
    for one, other in MIXERS:
        result[f"mixers {one} {other}"] = {"mixer": [one, other], "position": "none"}
    return result


CASES = cases()
NOT_CAUSAL = {"mask none", "mask band", "mask global", "score linformer", "linear of both sides"}
RANDOMIZED = {name for name in CASES if "randomized" in name}
REFUSALS = {
    "padding": {"score linformer", "linear of both sides"},
    "cache": NOT_CAUSAL,
    "reversible": {
        "norm batchnorm",
        "qk_norm batchnorm",
        "score offset-gate",
        "score offset-gate, position alibi",
        "ffn mixture",
        "ffn adaptive-width",
        *RANDOMIZED,
    },
}
each_case = pytest.mark.parametrize("name", CASES)


def fields(name):
    """Config fields of a test case."""
    return {"kv_heads": 2} | CASES[name]


def perturbed(model):
    """The model in eval mode with noise on every parameter, so that none is still 0 or 1."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn(parameter.shape, generator=generator) / 10
    return model.eval()


@functools.cache
def model_of(name):
    return perturbed(Transformer(small_config(**fields(name)), seed=0))


def refused(name, feature, call):
    """Whether call() raised a ValueError that names the variant; it must be listed in REFUSALS."""
    try:
        call()
    except ValueError as error:
        words = str(error).lower().replace("-", "").replace("_", "")
        named = [word.strip(",").replace("-", "") for word in name.split() if word not in SEAMS]
        required = [kind.replace("-", "") for kind in fields(name).values() if isinstance(kind, str)]
        assert len(words.split()) > 5, error
        assert any(word in words for word in [*named, *required]), error
        assert name in REFUSALS[feature], error
        return True
    return False


# Padding and token validation


PADDING_MASK = torch.tensor([[1] * 12, [1] * 7 + [0] * 5])  # real tokens of two sequences of length 12


@each_case
@torch.no_grad()
def test_padding_does_not_change_outputs(name):
    model, x = model_of(name), tokens()
    if refused(name, "padding", lambda: model(x, padding_mask=PADDING_MASK)):
        return
    got = model(x, padding_mask=PADDING_MASK)
    assert torch.equal(got, model(x, mask=Padding(PADDING_MASK.bool())))
    for i, real in enumerate(PADDING_MASK.bool()):
        close(got[i, real], model(x[i : i + 1, real])[0])


@pytest.mark.parametrize("name", ["default", "norm batchnorm", "ffn mixture", "projection primer"])
@torch.no_grad()
def test_source_padding_does_not_change_decoder_outputs(name):
    model = perturbed(EncoderDecoder(small_config(**fields(name))))
    source, answer = tokens(), tokens(6, seed=1)
    assert model((source, answer), source_padding_mask=torch.zeros_like(source)).isfinite().all()
    got = model((source, answer), source_padding_mask=PADDING_MASK)
    for i, real in enumerate(PADDING_MASK.bool()):
        close(got[i], model((source[i : i + 1, real], answer[i : i + 1]))[0], 1e-4)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("ffn")])
@torch.no_grad()
def test_auxiliary_loss_statistics_ignore_padding(name):
    model, x = model_of(name), tokens()
    real = (torch.arange(12) < 8).expand(2, -1)

    def statistics(*inputs, **options):
        model(*inputs, **options)
        parts = [part for part in model.modules() if isinstance(part, SeesPadding)]
        return [getattr(part, name) for part in parts for name in part.of_call]

    for padded, alone in zip(statistics(x, padding_mask=real), statistics(x[:, :8]), strict=True):
        close(padded, alone)
    assert bool(statistics(x)) == (name in ("ffn mixture", "ffn adaptive-width"))


def test_invalid_padding_masks_raise():
    model, x = model_of("default"), tokens()
    for wrong, words in (
        (torch.ones(2, 11, dtype=torch.long), r"must be \(2, 12\)"),
        (torch.ones(2, 12), "not torch.float32"),
        (torch.full((2, 12), 2), "must contain only 0"),
        (PADDING_MASK.flip(1), "must be on the right"),
    ):
        with pytest.raises(ValueError, match=words):
            model(x, padding_mask=wrong)
    expert = Transformer(small_config(ffn={"kind": "mixture", "expert": "mixture"}))
    with pytest.raises(ValueError, match="Mixture does not support padding when used as an expert"):
        expert(x, padding_mask=torch.ones_like(x))


def test_invalid_token_tensors_raise():
    model, x = model_of("default"), tokens()
    for wrong in (x[0], x[None], x.float(), x.bool(), x + 13, x - 13):
        with pytest.raises(ValueError, match=r"tokens must be integers \(b, t\) from 0 to 12, not"):
            model(wrong)


# Causality, KV caches and generation


@each_case
@torch.no_grad()
def test_causal_variants_ignore_later_tokens(name):
    model, x = model_of(name), tokens()
    later = x.clone()
    later[:, 7:] = (later[:, 7:] + 1) % 13
    before, after = model(x), model(later)
    differs(before[:, 7:], after[:, 7:])
    (differs if name in NOT_CAUSAL else close)(before[:, :7], after[:, :7])


@each_case
@torch.no_grad()
def test_cached_forward_matches_full_forward(name):
    model, x = copy.deepcopy(model_of(name)).double(), tokens()
    if refused(name, "cache", lambda: model(x, caches=model.caches(2))):
        return
    full = model(x)
    for chunks in ([1] * 12, [5, 1, 6]):
        caches = model.caches(2)
        close(torch.cat([model(part, caches=caches) for part in x.split(chunks, 1)], 1), full, 1e-10)
        assert all(cache.length == 12 for cache in caches)


def greedy_uncached(model, x, n=5):
    for _ in range(n):
        x = torch.cat([x, model(x)[:, -1].argmax(-1, keepdim=True)], 1)
    return x


@pytest.mark.parametrize("name", [name for name in CASES if name == "default" or name.startswith("mixer")])
@torch.no_grad()
def test_greedy_generation_matches_uncached_argmax(name):
    """Tested for every mixer, with a key/value cache, a state of constant size, or earlier inputs."""
    model, x = model_of(name), tokens(6)
    slow = greedy_uncached(model, x)
    assert torch.equal(model.generate(x, 5, temperature=0), slow)
    assert name != "default" or len(slow[:, 6:].unique()) > 1, "greedy output is constant"


def test_invalid_generate_arguments_raise():
    model, x = model_of("default"), tokens(6)
    for arguments, options, words in (
        ((x[:, :0], 3), {}, "must have at least one token"),
        ((x, -1), {}, "must be 0 or more, got -1"),
        ((x, 3), {"temperature": -1.0}, "temperature must be 0"),
        ((x, 3), {"temperature": float("nan")}, "temperature must be 0"),
    ):
        with pytest.raises(ValueError, match=words):
            model.generate(*arguments, **options)


# Low precision


SELECTING = {
    "score lsh",
    "score lsh, position alibi",
    "score top-k",
    "score top-k, position alibi",
    "ffn mixture",
    "ffn top-k",
}  # they select discretely, so rounding may change the selection


@each_case
@pytest.mark.parametrize("how", ["bfloat16", "autocast"])
@torch.no_grad()
def test_bfloat16_and_autocast_stay_close_to_float32(how, name):
    reference, x = copy.deepcopy(model_of(name)), tokens()
    model = reference
    if how != "autocast":
        model = reference.bfloat16()
        reference = copy.deepcopy(model).float()
    with torch.autocast("cpu", torch.bfloat16) if how == "autocast" else nullcontext():
        got = model(x).float()
        cached = model.mask.causal
        if cached:
            caches = model.caches(2)
            steps = [model(part, caches=caches) for part in x.split([5, 1, 6], 1)]
    expected = reference(x)

    def relative_error(a, b):
        return ((a - b).norm() / b.norm()).item()

    assert got.isfinite().all()
    limit = 0.3 if name in SELECTING else 0.03
    assert relative_error(got, expected) < limit
    if cached:
        assert relative_error(torch.cat(steps, 1).float(), expected) < limit


@pytest.mark.parametrize("mixer", ["linear", "gated-delta", "gru", "convolution"])
@torch.no_grad()
def test_bfloat16_state_after_1000_steps_matches_full_forward(mixer):
    config = small_config(mixer=mixer, position="none", block_size=1000, n_layers=1)
    model, x = Transformer(config).eval().bfloat16(), tokens(1000, batch=1)
    caches = model.caches(1)
    steps = torch.cat([model(token, caches=caches) for token in x.split(1, 1)], 1)[:, -50:].float()
    full = model(x)[:, -50:].float()
    assert (steps - full).norm() / full.norm() < 0.01


# Copies and checkpoints


def backward_once(model):
    model.train()
    model(tokens()).square().mean().backward()
    return model


@each_case
def test_forward_creates_no_tensor_on_another_device(name):
    """Like a GPU, the meta device rejects CPU tensors."""
    if "delta" in name or "mixture" in name:
        pytest.skip("solve_triangular and bincount have no meta kernels")
    model = copy.deepcopy(model_of(name)).to("meta")
    assert model(tokens().to("meta")).device.type == "meta"


@each_case
def test_copies_and_checkpoints_reproduce_the_model(name):
    original, x, config = copy.deepcopy(model_of(name)), tokens(), small_config(**fields(name))
    expected, weights, seed = original(x).detach(), original.state_dict(), 5
    with torch.device("meta"):
        empty = Transformer(config, seed=seed)
    models = {
        "copied": copy.deepcopy(backward_once(copy.deepcopy(original))),
        "loaded": Transformer(config, seed=seed),
        "copied, then assigned": copy.deepcopy(Transformer(config, seed=seed)),
        "meta, assigned": empty.to_empty(device="cpu"),
    }
    if "batchnorm" in name:  # a training step updates running statistics
        del models["copied"]
    for how, model in models.items():
        if how != "copied":
            model.load_state_dict(copy.deepcopy(weights), assign="assigned" in how)
        close(model.eval()(x), expected, 0)
        sizes = [sum(p.numel() for p in each.parameters()) for each in (model, original)]
        assert sizes[0] == sizes[1], how
        assert model.state_dict().keys() == weights.keys()
        assert len({tensor.data_ptr() for tensor in model.state_dict().values()}) == len(weights)
        backward_once(model)


@pytest.mark.parametrize("kind", [Transformer, EncoderDecoder])
def test_tied_lm_head_survives_copy_and_load(kind):
    config = small_config(lm_head="tied", position="alibi")
    weights = kind(config).state_dict()
    assert len({tensor.data_ptr() for tensor in weights.values()}) == len(weights)
    with torch.device("meta"):
        empty = kind(config)
    for model in (
        kind(config),
        copy.deepcopy(kind(config)),
        empty.to_empty(device="cpu"),
        kind(config).double(),
    ):
        for assign in (False, True):
            model.load_state_dict(weights, assign=assign)
            side = model if kind is Transformer else model.decoder
            assert side.lm_head.weight is side.embedding.weight
            assert isinstance(side.lm_head.weight, torch.nn.Parameter)
            assert kind is Transformer or model.encoder.embedding.weight is side.embedding.weight
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict(dict(list(weights.items())[:-1]))
    with pytest.raises(RuntimeError, match="Unexpected key"):
        model.load_state_dict(weights | {"nonsuch": torch.zeros(1)})


def test_position_tables_match_model_precision():
    alibi = Transformer(small_config(position="alibi", n_heads=16, d_model=64)).double().position
    assert torch.equal(alibi.slope, 2.0 ** (-torch.arange(1, 17, dtype=torch.float64) / 2))
    assert alibi.bfloat16().slope.dtype == torch.float32
    cos, _ = rotations(64, 8, 10000.0, 1.0, 1.0, "cpu", torch.float64)
    frequency = 10000.0 ** -torch.tensor([0, 1, 2, 3, 0, 1, 2, 3], dtype=torch.float64).div(4)
    close(cos[40], (40 * frequency).cos(), 1e-14)


@each_case
def test_model_trains_after_inference_mode(name):
    model, length = copy.deepcopy(model_of(name)), 24
    if name in ("default", "position alibi"):
        length = 60  # beyond block_size, so tables grow
    with torch.inference_mode():
        model(tokens(length))
    model.train()(tokens(length)).square().mean().backward()
    assert model.embedding.weight.grad.abs().max() > 0


# Reversible layers


RESIDUAL_CASES = {"residual", "admin", "deepnorm"}
NON_RESIDUAL_CASES = [name for name in CASES if not RESIDUAL_CASES & set(name.split())]


def without_recomputation(x, layers):
    return sum(Block.stack(torch.cat([x, x], -1), layers).chunk(2, -1)) / 2


@pytest.mark.parametrize("name", NON_RESIDUAL_CASES)
def test_reversible_gradients_equal_those_with_stored_activations(name):
    config = small_config(**fields(name) | {"residual": "reversible"})
    if refused(name, "reversible", lambda: Transformer(config)):
        return
    stored, reversible = (Transformer(config).double().train() for _ in range(2))
    stored.blocks[0].stack = without_recomputation
    gradients = []
    for model in (stored, reversible):
        loss = model(tokens()).square().mean()
        model(tokens(9, seed=1))  # a second forward pass before backward
        loss.backward()
        gradients.append({key: p.grad for key, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for key, gradient in gradients[0].items():
        size = gradient.abs().max().clamp(min=1)
        assert (gradient - gradients[1][key]).abs().max() <= 1e-12 * size, key


@pytest.mark.parametrize("place", ["hidden", "output"])
def test_reversible_layers_reject_dropout(place):
    with pytest.raises(ValueError, match="'reversible' recomputes every branch .* but Gelu"):
        Transformer(small_config(residual="reversible", ffn={"kind": "gelu", place: 0.3}))


def test_reversible_layers_reject_other_random_modules():
    model = Transformer(small_config(residual="reversible")).train()
    model.blocks[1].ffn.act = torch.nn.RReLU()
    with pytest.raises(ValueError, match="none may draw random numbers"):
        model(tokens())


def test_models_readme_lists_every_kind():
    text = Path(lab.models.__file__).with_name("README.md").read_text("utf-8")
    parts = {part.split("`")[0]: part for part in text.split("\n## `")[1:]}
    for field, seam in SEAMS.items():
        if field != "qk_norm":  # shares the variants of norm
            for kind in kinds_of_models(seam):
                assert f"\n| `{kind}` |" in parts[field], (field, kind)
