"""What every kind of every seam owes to who uses it, or refuses in words. Of `lab.models.precision`.

No later token is seen. Padding behind a text, caches, low precision, copies, checkpoints and
recomputation change nothing: the result is that of the text by itself, without a cache, in float32.
A kind that cannot honour one of them raises a ValueError that names it. The kinds that do so are
listed in REFUSALS, so that none does unseen.
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

BESIDE = {  # fields that a kind cannot do without
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
]  # one for each layer


def cases():
    """{name: fields of a configuration}: the default, every kind in its seam, and some pairs."""
    found = {"default": {}}
    for field, seam in SEAMS.items():
        for kind in kinds_of_models(seam):
            found[f"{field} {kind}"] = BESIDE.get(kind, {}) | {field: choice_of(kind)}
    for mixer in ("linear", "performer", "delta", "gated-delta", "transformer-xl"):
        found[f"mixer {mixer}, position none"] = {"mixer": mixer, "position": "none"}
        found[f"mixer {mixer}, heads primer"] = {"mixer": mixer, "heads": "primer"}
    for score in ("additive", "bilinear", "cosine", "lsh", "offset-gate", "sparsemax", "top-k"):
        found[f"score {score}, position alibi"] = {"score": choice_of(score), "position": "alibi"}
    for encoding in ("rotary", "alibi", "t5"):
        found[f"mask window, position {encoding}"] = {
            "position": encoding,
            "mask": {"kind": "window", "size": 3},
        }
        found[f"position {encoding}, heads by layer"] = {
            "position": encoding,
            "n_heads": [1, 4],
            "kv_heads": 1,
        }
    found["kv_heads 4, position t5"] = {"kv_heads": 4, "position": "t5"}
    for width in (1, 5):
        found[f"heads primer, width {width}"] = {"heads": {"kind": "primer", "width": width}}
    found["mixer convolution, width 2"] = {
        "mixer": {"kind": "convolution", "width": 2},
        "position": "none",
    }
    for encoding in ("rotary", "alibi", "t5"):
        choice = {"kind": "randomized", "encoding": encoding}
        found[f"position randomized, {encoding}"] = {"position": choice}
    found["unlike layers"] = {
        "n_heads": [2, 4],
        "kv_heads": 2,
        "position": "alibi",
        "lm_head": "tied",
    }
    found["shared layers"] = {"unique_layers": 1, "lm_head": "tied"}
    found["linear of both sides"] = {"mask": "none", "mixer": "linear"}
    for one, other in MIXERS:
        found[f"mixers {one} {other}"] = {"mixer": [one, other], "position": "none"}
    return found


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
    """What a case gives to `small_config`."""
    return {"kv_heads": 2} | CASES[name]


def far_from_start(model):
    """The model in evaluation, none of whose weights is 0 or 1 any more."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn(parameter.shape, generator=generator) / 10
    return model.eval()


@functools.cache
def model_of(name):
    return far_from_start(Transformer(small_config(**fields(name)), seed=0))


def refused(name, what, call):
    """Whether call() raised a ValueError that names a kind of the case, as is listed."""
    try:
        call()
    except ValueError as error:
        words = str(error).lower().replace("-", "").replace("_", "")
        named = [word.strip(",").replace("-", "") for word in name.split() if word not in SEAMS]
        beside = [kind.replace("-", "") for kind in fields(name).values() if isinstance(kind, str)]
        assert len(words.split()) > 5, error
        assert any(word in words for word in [*named, *beside]), error
        assert name in REFUSALS[what], error
        return True
    return False


def test_the_lists_of_refusals_name_cases():
    for what, names in REFUSALS.items():
        assert names <= set(CASES) - {"default"}, (what, names - set(CASES))


# Padding and tokens


BEHIND = torch.tensor([[1] * 12, [1] * 7 + [0] * 5])  # which of 12 places hold a token, of two texts


@each_case
@torch.no_grad()
def test_a_padded_text_is_read_as_if_it_stood_alone(name):
    model, x = model_of(name), tokens()
    if refused(name, "padding", lambda: model(x, padding_mask=BEHIND)):
        return
    got = model(x, padding_mask=BEHIND)
    assert torch.equal(got, model(x, mask=Padding(BEHIND.bool())))
    for i, real in enumerate(BEHIND.bool()):
        close(got[i, real], model(x[i : i + 1, real])[0])


@pytest.mark.parametrize("name", ["default", "norm batchnorm", "ffn mixture", "heads primer"])
@torch.no_grad()
def test_a_padded_source_is_read_as_if_it_stood_alone(name):
    model = far_from_start(EncoderDecoder(small_config(**fields(name))))
    source, answer = tokens(), tokens(6, seed=1)
    assert model((source, answer), source_padding_mask=torch.zeros_like(source)).isfinite().all()
    got = model((source, answer), source_padding_mask=BEHIND)
    for i, real in enumerate(BEHIND.bool()):
        close(got[i], model((source[i : i + 1, real], answer[i : i + 1]))[0], 1e-4)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("ffn")])
@torch.no_grad()
def test_what_a_call_leaves_for_a_loss_counts_no_padding(name):
    model, x = model_of(name), tokens()
    real = (torch.arange(12) < 8).expand(2, -1)

    def left(*inputs, **options):
        model(*inputs, **options)
        parts = [part for part in model.modules() if isinstance(part, SeesPadding)]
        return [getattr(part, name) for part in parts for name in part.of_call]

    for padded, alone in zip(left(x, padding_mask=real), left(x[:, :8]), strict=True):
        close(padded, alone)
    assert bool(left(x)) == (name in ("ffn mixture", "ffn adaptive-width"))


def test_a_mask_that_is_none_is_refused_in_words():
    model, x = model_of("default"), tokens()
    for wrong, words in (
        (torch.ones(2, 11, dtype=torch.long), r"must be \(2, 12\)"),
        (torch.ones(2, 12), "not torch.float32"),
        (torch.full((2, 12), 2), "besides 0"),
        (BEHIND.flip(1), "must stand behind the text"),
    ):
        with pytest.raises(ValueError, match=words):
            model(x, padding_mask=wrong)
    expert = Transformer(small_config(ffn={"kind": "mixture", "expert": "mixture"}))
    with pytest.raises(ValueError, match="Mixture takes no padding where it is an expert"):
        expert(x, padding_mask=torch.ones_like(x))


@each_case
def test_what_is_no_text_is_refused_in_a_sentence(name):
    model, x = model_of(name), tokens()
    for wrong in (x[0], x[None], x.float(), x.bool(), x + 13, x - 13):
        with pytest.raises(ValueError, match=r"tokens must be integers \(b, t\) from 0 to 12, not"):
            model(wrong)


# The future, caches and generation


@each_case
@torch.no_grad()
def test_the_future_leaves_the_past_alone_unless_it_is_seen(name):
    model, x = model_of(name), tokens()
    later = x.clone()
    later[:, 7:] = (later[:, 7:] + 1) % 13
    before, after = model(x), model(later)
    differs(before[:, 7:], after[:, 7:])
    (differs if name in NOT_CAUSAL else close)(before[:, :7], after[:, :7])


@each_case
@torch.no_grad()
def test_a_cache_changes_nothing(name):
    model, x = copy.deepcopy(model_of(name)).double(), tokens()
    if refused(name, "cache", lambda: model(x, caches=model.caches(2))):
        return
    full = model(x)
    for chunks in ([1] * 12, [5, 1, 6]):
        caches = model.caches(2)
        close(torch.cat([model(part, caches=caches) for part in x.split(chunks, 1)], 1), full, 1e-10)
        assert all(cache.length == 12 for cache in caches)


def continued(model, x, n=5):
    for _ in range(n):
        x = torch.cat([x, model(x)[:, -1].argmax(-1, keepdim=True)], 1)
    return x


@each_case
@torch.no_grad()
def test_generation_takes_the_likeliest_of_the_text_computed_anew(name):
    model, x = model_of(name), tokens(6)
    if refused(name, "cache", lambda: model.generate(x, 5, temperature=0)):
        return
    slow = continued(model, x)
    assert torch.equal(model.generate(x, 5, temperature=0), slow)
    assert name != "default" or len(slow[:, 6:].unique()) > 1, "a constant would test nothing"


def test_what_cannot_be_continued_is_named():
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


CHOOSING = {
    "score lsh",
    "score lsh, position alibi",
    "score top-k",
    "score top-k, position alibi",
    "ffn mixture",
    "ffn top-k",
}  # by what is larger


@each_case
@pytest.mark.parametrize("how", ["bfloat16", "autocast"])
@torch.no_grad()
def test_half_of_the_bits_change_little(how, name):
    exact, x = copy.deepcopy(model_of(name)), tokens()
    rough = exact
    if how != "autocast":
        rough = exact.bfloat16()
        exact = copy.deepcopy(rough).float()
    with torch.autocast("cpu", torch.bfloat16) if how == "autocast" else nullcontext():
        got = rough(x).float()
        cached = rough.mask.causal
        if cached:
            caches = rough.caches(2)
            steps = [rough(part, caches=caches) for part in x.split([5, 1, 6], 1)]
    wanted = exact(x)

    def apart(a, b):
        return ((a - b).norm() / b.norm()).item()

    assert got.isfinite().all()
    limit = 0.3 if name in CHOOSING else 0.03
    assert apart(got, wanted) < limit
    if cached:
        assert apart(torch.cat(steps, 1).float(), wanted) < limit


@pytest.mark.parametrize("mixer", ["linear", "performer", "delta", "gated-delta", "gru", "convolution"])
@torch.no_grad()
def test_a_state_of_a_thousand_tokens_is_that_of_one_pass_in_bfloat16(mixer):
    config = small_config(mixer=mixer, position="none", block_size=1000)
    model, x = Transformer(config).eval().bfloat16(), tokens(1000, batch=1)
    caches = model.caches(1)
    steps = torch.cat([model(token, caches=caches) for token in x.split(1, 1)], 1)[:, -50:].float()
    whole = model(x)[:, -50:].float()
    assert (steps - whole).norm() / whole.norm() < 0.01


# Copies and checkpoints


def trained_once(model):
    model.train()
    model(tokens()).square().mean().backward()
    return model


@each_case
def test_a_forward_pass_brings_no_tensor_from_another_device(name):
    """The meta device refuses tensors of the CPU as a GPU does."""
    if "delta" in name or "mixture" in name:
        pytest.skip("torch has no solve_triangular and no bincount on the meta device")
    model = copy.deepcopy(model_of(name)).to("meta")
    assert model(tokens().to("meta")).device.type == "meta"


@each_case
def test_a_checkpoint_and_a_copy_are_the_model(name):
    original, x, config = copy.deepcopy(model_of(name)), tokens(), small_config(**fields(name))
    wanted, weights, seed = original(x).detach(), original.state_dict(), 5
    with torch.device("meta"):
        empty = Transformer(config, seed=seed)
    found = {
        "copied": copy.deepcopy(trained_once(copy.deepcopy(original))),
        "loaded": Transformer(config, seed=seed),
        "assigned": Transformer(config, seed=seed),
        "copied, then assigned": copy.deepcopy(Transformer(config, seed=seed)),
        "from nothing": copy.deepcopy(empty).to_empty(device="cpu"),
        "from nothing, assigned": empty.to_empty(device="cpu"),
    }
    if "batchnorm" in name:  # a step of training moves its statistics
        del found["copied"]
    for how, model in found.items():
        if how != "copied":
            model.load_state_dict(copy.deepcopy(weights), assign="assigned" in how)
        close(model.eval()(x), wanted, 0)
        sizes = [sum(p.numel() for p in each.parameters()) for each in (model, original)]
        assert sizes[0] == sizes[1], how
        assert model.state_dict().keys() == weights.keys()
        assert len({tensor.data_ptr() for tensor in model.state_dict().values()}) == len(weights)
        trained_once(model)


@pytest.mark.parametrize("kind", [Transformer, EncoderDecoder])
def test_a_tied_lm_head_stays_tied(kind):
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


def test_tables_are_as_exact_as_the_type_of_the_model():
    alibi = Transformer(small_config(position="alibi", n_heads=16, d_model=64)).double().position
    assert torch.equal(alibi.slope, 2.0 ** (-torch.arange(1, 17, dtype=torch.float64) / 2))
    assert alibi.bfloat16().slope.dtype == torch.float32
    cos, _ = rotations(64, 8, 10000.0, 1.0, 1.0, "cpu", torch.float64)
    frequency = 10000.0 ** -torch.tensor([0, 1, 2, 3, 0, 1, 2, 3], dtype=torch.float64).div(4)
    close(cos[40], (40 * frequency).cos(), 1e-14)


@each_case
def test_a_model_asked_under_inference_mode_can_be_trained_afterwards(name):
    model, longer = copy.deepcopy(model_of(name)), 24
    if name in ("default", "position alibi"):
        longer = 60  # beyond its tables
    with torch.inference_mode():
        model(tokens(longer))
    model.train()(tokens(longer)).square().mean().backward()
    assert model.embedding.weight.grad.abs().max() > 0


# Recomputation


OF_RESIDUALS = {"residual", "admin", "deepnorm"}
WITHOUT_RESIDUAL = [name for name in CASES if not OF_RESIDUALS & set(name.split())]


def without_recomputation(x, layers):
    return sum(Block.stack(torch.cat([x, x], -1), layers).chunk(2, -1)) / 2


@pytest.mark.parametrize("name", WITHOUT_RESIDUAL)
def test_reversible_layers_have_the_gradients_of_layers_that_keep_all(name):
    config = small_config(**fields(name) | {"residual": "reversible"})
    if refused(name, "reversible", lambda: Transformer(config)):
        return
    kept, undone = (Transformer(config).double().train() for _ in range(2))
    kept.blocks[0].stack = without_recomputation
    gradients = []
    for model in (kept, undone):
        loss = model(tokens()).square().mean()
        model(tokens(9, seed=1))  # another pass in between
        loss.backward()
        gradients.append({key: p.grad for key, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for key, gradient in gradients[0].items():
        size = gradient.abs().max().clamp(min=1)
        assert (gradient - gradients[1][key]).abs().max() <= 1e-12 * size, key


@pytest.mark.parametrize("place", ["hidden", "output"])
def test_reversible_layers_refuse_dropout(place):
    with pytest.raises(ValueError, match="'reversible' computes every branch again .* and Gelu"):
        Transformer(small_config(residual="reversible", ffn={"kind": "gelu", place: 0.3}))


def test_reversible_layers_refuse_random_numbers_of_a_kind_they_do_not_know():
    model = Transformer(small_config(residual="reversible")).train()
    model.blocks[1].ffn.act = torch.nn.RReLU()
    with pytest.raises(ValueError, match="none may draw random numbers"):
        model(tokens())


def test_the_readme_of_the_package_names_every_kind():
    text = Path(lab.models.__file__).with_name("README.md").read_text("utf-8")
    parts = {part.split("`")[0]: part for part in text.split("\n## `")[1:]}
    for field, seam in SEAMS.items():
        if field != "qk_norm":  # its kinds are those of norm
            for kind in kinds_of_models(seam):
                assert f"\n| `{kind}` |" in parts[field], (field, kind)
