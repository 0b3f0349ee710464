"""The decoder-only model, and requirements on every registered variant.

Tests `lab.models.gpt` and `lab.models.masks`.
"""

import ast
import inspect
import itertools
import math
import sys
import zlib
from collections import Counter
from pathlib import Path

import pytest
import torch
from helpers import choice_of, close, differs, kinds_of_models, randn, small_model, tokens
from pydantic import ValidationError
from torch import nn

import lab
from lab.measure import cost
from lab.models import ModelConfig
from lab.models.blocks import SameAround
from lab.models.gpt import (
    SEAMS,
    Block,
    FeedForward,
    Initialization,
    Mixer,
    Norm,
    Position,
    Visibility,
)
from lab.models.masks import Causal, Mask, Window
from lab.models.padding import Padding
from lab.models.positions import alibi_slopes, t5_bucket
from lab.models.registry import Seam
from lab.models.sparse_masks import Seen

VOCABULARY, CONTEXT = 13, 24
EXCLUDED = {"linformer", "transformer-xl"}  # Linformer is not causal; Transformer-XL without a cache is plain attention


def choices(seam):
    """All variants of a seam in lab.models, with their required options."""
    return [choice_of(kind) for kind in kinds_of_models(seam) if kind not in EXCLUDED]


def each(seam):
    field = seam.__name__.lower()
    field = "ffn" if seam is FeedForward else field
    return pytest.mark.parametrize(field, choices(seam), ids=str)


# Attention


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_attention_equals_torch_multihead_attention(bias, causal):
    model = small_model(position="none", mask="causal" if causal else "none", bias=bias)
    ours, reference = model.blocks[0].mixer, nn.MultiheadAttention(32, 4, bias=bias, batch_first=True)
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(randn(*parameter.shape))
        reference.in_proj_weight.copy_(ours.heads.qkv.weight)
        reference.out_proj.weight.copy_(ours.heads.out.weight)
        if bias:
            reference.in_proj_bias.copy_(ours.heads.qkv.bias)
            reference.out_proj.bias.copy_(ours.heads.out.bias)
        x = randn(3, 12, 32) / 10
        forbidden = torch.ones(12, 12, dtype=torch.bool).triu(1) if causal else None
        close(ours(x, causal=causal), reference(x, x, x, attn_mask=forbidden, need_weights=False)[0])


def test_attention_equals_its_formula():
    model = small_model(position="alibi", kv_heads=2, d_head=6)
    attention, x = model.blocks[0].mixer, randn(2, 12, 32)
    q, k, v = (x @ w.T for w in attention.heads.qkv.weight.split([24, 12, 12]))
    q, k, v = q.view(2, 12, 4, 6), k.view(2, 12, 2, 6), v.view(2, 12, 2, 6)
    mixed, slope = [], alibi_slopes(4)
    for h in range(4):
        scores = torch.einsum("bqd,bkd->bqk", q[:, :, h], k[:, :, h // 2]) / math.sqrt(6)
        distance = torch.arange(12)[:, None] - torch.arange(12)
        scores = (scores - slope[h] * distance).masked_fill(distance < 0, -math.inf)
        mixed.append(scores.softmax(-1) @ v[:, :, h // 2])
    got = attention(x, **attention.inputs(Visibility(model.mask, 12, 12, batch=2, device="cpu")))
    close(got, torch.cat(mixed, -1) @ attention.heads.out.weight.T)


def test_sliced_heads_read_one_slice_and_full_heads_read_all_features():
    for heads, reach in (("sliced", torch.eye(4)), ("full", torch.ones(4, 4))):
        part = small_model(projection=heads).blocks[0].mixer.heads
        x = randn(1, 3, 32)
        for out in zip(part.split(x), part.split(x), strict=True):
            assert out[0].shape == (1, 4, 3, 8)
        for i in range(4):
            changed = x.clone()
            changed[..., 8 * i : 8 * (i + 1)] += 1
            for before, after in zip(part.split(x), part.split(changed), strict=True):
                moved = (after - before).abs().amax(dim=(0, 2, 3)) > 1e-6
                assert torch.equal(moved, reach[i].bool())


@pytest.mark.parametrize("wrong", [
    {"projection": "sliced", "kv_heads": 2}, {"projection": "concatenated", "d_head": 4},
])  # fmt: skip
def test_invalid_head_splits_raise(wrong):
    with pytest.raises(ValueError, match="heads"):
        small_model(**wrong)


# Masks and order


def perturbed(model):
    """The model after one batch in training mode, with noise on each weight, seeded by its name."""
    model.train()(tokens(seed=1))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += randn(*parameter.shape, seed=zlib.crc32(name.encode())) / 10
    return model.eval()


@pytest.mark.parametrize(
    "residual, norm", sorted({(kind, "layernorm") for kind in Block.kinds} | {("pre", kind) for kind in Norm.kinds})
)
def test_model_is_permutation_equivariant_only_without_mask_and_position(residual, norm):
    order = torch.tensor([3, 0, 7, 5, 1, 11, 2, 4, 10, 6, 9, 8])
    x = tokens()

    def deviation(**fields):
        model = small_model(residual=residual, norm=norm, **fields)
        with torch.no_grad():
            return (model(x[:, order]) - model(x)[:, order]).abs().max()

    assert deviation(mask="none", position="none") < 1e-5
    assert deviation(mask="causal", position="none") > 1e-3
    for position in choices(Position) if (residual, norm) == ("pre", "layernorm") else ["rotary"]:
        if position != "none":
            assert deviation(mask="none", position=position) > (3e-5 if residual == "none" else 1e-3), position


@each(Position)
@pytest.mark.parametrize("length", [1, 2, 9])
def test_window_as_wide_as_the_sequence_equals_the_causal_mask(length, position):
    wide = small_model(position=position, mask={"kind": "window", "size": length})
    close(wide(tokens(length)), small_model(position=position)(tokens(length)))


@pytest.mark.parametrize("n", [1, 5, 9])
@pytest.mark.parametrize("size", [1, 4, 9, 20])
def test_edge_counts_equal_closed_forms(n, size):
    assert Mask().edges(n) == n * n
    assert Causal().edges(n) == n * (n + 1) // 2
    w = min(n, size)
    assert Window(size=size).edges(n) == n * w - w * (w - 1) // 2
    real = torch.arange(n).expand(3, n) < torch.tensor([[n], [1], [0]])
    assert Padding(real).edges(n, batch=3) == n * (n + 1)
    assert (Causal() & Padding(real)).edges(n, batch=3, heads=2) == 2 * (n * (n + 1) // 2 + n)


def masks():
    real = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0]]).bool()
    return [Mask.build(choice) for choice in choices(Mask)] + [Window(size=2), Padding(real)]


@pytest.mark.parametrize("i, j", itertools.combinations_with_replacement(range(len(masks())), 2))
def test_composed_masks_are_elementwise_and_or(i, j):
    left, right, sizes = masks()[i], masks()[j], {"batch": 2, "heads": 3}
    both, either = left & right, left | right
    assert torch.equal(both.dense(6, 6, **sizes), left.dense(6, 6, **sizes) & right.dense(6, 6, **sizes))
    assert torch.equal(either.dense(6, 6, **sizes), left.dense(6, 6, **sizes) | right.dense(6, 6, **sizes))
    for mask in (left, right, both, either, both | left, either & right):
        full = mask.dense(6, 6, **sizes)
        assert full.shape == (2, 3, 6, 6)
        assert mask.edges(6, **sizes) == full.sum()
        assert torch.equal(mask.dense(2, 6, **sizes), full[:, :, 4:]), "queries must align with the last keys"
        if mask.causal:
            assert not full.triu(1).any(), "declared causal, but a query sees a later key"


@each(Position)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_fully_masked_queries_give_finite_outputs_and_gradients(kv_heads, position):
    model, x = small_model(position=position, kv_heads=kv_heads), tokens(batch=3)
    real = torch.arange(12) >= torch.tensor([[0], [5], [12]])  # the first queries see no key
    logits = model(x, mask=Seen(real[:, None, None].expand(3, 1, 12, 12)))
    assert logits.isfinite().all()
    logits[real].square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


# Generation


def test_sampling_follows_generator_and_temperature():
    model, start = small_model(), tokens(5, batch=64)

    def sample(seed, temperature=1.0):
        return model.generate(start, 8, temperature=temperature, generator=torch.Generator().manual_seed(seed))

    assert torch.equal(sample(1), sample(1)) and not torch.equal(sample(1), sample(2))
    greedy = model.generate(start, 8, temperature=0)
    assert torch.equal(sample(1, temperature=1e-4), greedy)
    hot = sample(1, temperature=1e4)[:, 5:].flatten().bincount(minlength=VOCABULARY)
    assert hot.max() < 2 * 512 / VOCABULARY, "sampling at high temperature is not uniform"


class NoisyResidual(SameAround):
    """Residual connection with dropout on the sublayer output."""

    def around(self, x, f, name):
        return x + nn.functional.dropout(f(x), 0.5, self.training)


def test_generation_disables_dropout_and_restores_module_modes():
    Block.kinds["noisy"] = NoisyResidual
    try:
        model, start = small_model(residual="noisy").train(), tokens(5)
    finally:
        del Block.kinds["noisy"]
    model.blocks[0].eval()
    modes = [module.training for module in model.modules()]
    answers = [model.generate(start, 8, temperature=0) for _ in range(3)]
    assert all(torch.equal(answer, answers[0]) for answer in answers)
    with pytest.raises(ValueError, match="tokens must be"):
        model.generate(start + VOCABULARY, 1)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(model.eval().generate(start, 8, temperature=0), answers[0])


def test_exceeding_context_or_cache_raises():
    model = small_model(position="learned")
    with pytest.raises(ValueError, match=f"up to {CONTEXT} positions, got {CONTEXT + 1}"):
        model(tokens(CONTEXT + 1))
    caches = small_model().caches(2, context=4)
    with pytest.raises(ValueError, match="holds up to 4 positions, got 5"):
        small_model()(tokens(5), caches=caches)


# Positions


def rotated(model, q, k, m, n):
    """Score of query q at position m with key k at position n."""
    turn = model.position.at_query_key
    return (turn(q, q, start=m)[0] * turn(k, k, start=n)[1]).sum(-1)


@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_rotary_scores_are_relative_and_equal_the_complex_form(base):
    model = small_model(position={"kind": "rotary", "base": base}, d_head=16)
    q, k = randn(2, 1, 1, 1, 16)
    theta = base ** (-torch.arange(8, dtype=torch.float64) / 8)
    q_complex, k_complex = (torch.complex(x[0, 0, 0, :8].double(), x[0, 0, 0, 8:].double()) for x in (q, k))
    for distance in (0, 1, 5, 23):
        expected = (q_complex * k_complex.conj() * torch.exp(1j * distance * theta)).sum().real
        for n in (0, 3, 20):
            close(rotated(model, q, k, n + distance, n).double().squeeze(), expected)
    differs(rotated(model, q, k, 5, 0), rotated(model, q, k, 0, 5))
    many = randn(2, 4, 20, 16)
    turned, _ = model.position.at_query_key(many, many)
    close(turned.norm(dim=-1), many.norm(dim=-1))
    differs(turned[:, :, 1:], many[:, :, 1:])


def published_slopes(n):
    """Press 2021, as its authors compute them."""

    def power(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return power(n)
    closest = 2 ** math.floor(math.log2(n))
    return power(closest) + published_slopes(2 * closest)[0::2][: n - closest]


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 20])
def test_alibi_slopes_equal_published_values(heads):
    close(alibi_slopes(heads), torch.tensor(published_slopes(heads)), 1e-7)
    bias = small_model(position="alibi", n_heads=heads, d_head=4).position.bias(5, 5)
    close(bias[:, 4, 1], -3 * alibi_slopes(heads), 1e-7)


@pytest.mark.parametrize("buckets, reach", [(32, 128), (16, 64)])
@pytest.mark.parametrize("causal", [False, True])
def test_t5_buckets_equal_huggingface(causal, buckets, reach):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = torch.arange(-400, 401)
    theirs = t5.T5Attention._relative_position_bucket(-distance, not causal, buckets, reach)
    assert torch.equal(t5_bucket(distance, buckets, reach, causal), theirs)


# Feed-forward options


@pytest.mark.parametrize("kind", ["gelu", "relu", "swiglu"])
def test_ffn_options_override_width_and_bias(kind):
    ffn = small_model(ffn={"kind": kind, "width": 50, "bias": True}).blocks[0].ffn
    assert (ffn.up.out_features, ffn.down.in_features) == (50, 50) and ffn.down.bias is not None
    without = small_model(ffn={"kind": kind, "bias": False}, bias=True).blocks[0]
    assert not any(name.endswith("bias") for name, _ in without.ffn.named_parameters())
    assert without.mixer.heads.qkv.bias is not None
    assert small_model(projection={"kind": "full", "bias": True}).blocks[0].mixer.heads.out.bias is not None
    with pytest.raises(ValueError, match="ratio or width, not both"):
        small_model(ffn={"kind": kind, "width": 50, "ratio": 2.0})


# Sizes


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("ffn", ["gelu", {"kind": "relu", "ratio": 2.5}, "swiglu"], ids=str)
def test_parameter_counts_equal_closed_forms(ffn, kv_heads, norm, bias):
    model = small_model(ffn=ffn, kv_heads=kv_heads, norm=norm, bias=bias, d_head=6, position="none")
    gated = ffn == "swiglu"
    d, f = 32, 85 if gated else 80 if isinstance(ffn, dict) else 128
    attention = cost.attention_parameters(d, 4, kv_heads, 6, bias=bias)
    feedforward = cost.feedforward_parameters(d, f, gated=gated, bias=bias)
    one_norm = 2 * d if bias and norm == "layernorm" else d

    def count(module):
        return sum(p.numel() for p in module.parameters())

    for block in model.blocks:
        assert count(block.mixer) == attention
        assert count(block.ffn) == feedforward
    assert count(model) == 2 * VOCABULARY * d + 2 * (attention + feedforward + 2 * one_norm) + one_norm
    caches = model.caches(3, context=10)
    assert caches[0].keys.numel() + caches[0].values.numel() == cost.cache_elements(10, kv_heads, 6, B=3)


REFUSED = {
    "unknown field": ({"layers": 2}, "layers"),
    "heads do not divide": ({"n_heads": 5}, "n_heads 5 does not divide d_model 32"),
    "heads of one layer do not divide": ({"n_heads": [4, 3]}, "n_heads 3 does not divide d_model 32"),
    "key-value heads do not divide": ({"kv_heads": 3}, "kv_heads 3 does not divide n_heads 4"),
    "key-value heads of one layer": ({"n_heads": [4, 1], "kv_heads": 2}, "kv_heads 2 does not divide n_heads 1"),
    "too few layers listed": ({"n_heads": [4]}, "n_heads has 1 entries, n_layers is 2"),
    "zero width": ({"d_model": 0}, "d_model\n"),
    "zero layers": ({"n_layers": 0}, "n_layers\n"),
    "zero heads": ({"n_heads": 0}, "n_heads.constrained-int\n"),
    "zero heads in one layer": ({"n_heads": [4, 0]}, ".1\n  Input should be greater than or equal to 1"),
    "zero key-value heads": ({"kv_heads": 0}, "kv_heads\n"),
    "negative context": ({"block_size": -1}, "block_size\n"),
    "zero vocabulary": ({"vocab_size": 0}, "vocab_size\n"),
    "true for a number": ({"n_layers": True}, "n_layers"),
    "text for a number": ({"d_model": "32"}, "d_model"),
    "fraction": ({"d_model": 32.0}, "d_model"),
    "list for a kind": ({"mask": ["causal"]}, "mask"),
}


@pytest.mark.parametrize("fields, message", REFUSED.values(), ids=REFUSED)
def test_invalid_model_configs_raise(fields, message):
    with pytest.raises(ValidationError) as error:
        small_model(**fields)
    assert message in str(error.value)


def test_misspelt_field_error_suggests_the_correct_name():
    with pytest.raises(ValidationError, match="'positon' is unknown; did you mean 'position'"):
        ModelConfig(vocab_size=3, block_size=3, positon="rotary")


# Seams


@pytest.mark.parametrize("field, seam", SEAMS.items(), ids=SEAMS)
def test_unknown_variant_error_lists_valid_variants(field, seam):
    with pytest.raises(ValidationError) as error:
        small_model(**{field: "nonsuch"})
    for kind in ("nonsuch", *seam.kinds):
        assert kind in str(error.value)


@pytest.mark.parametrize("field, seam", SEAMS.items(), ids=SEAMS)
def test_unknown_option_error_lists_valid_options(field, seam):
    for kind, variant in seam.kinds.items():
        with pytest.raises(ValidationError) as error:
            small_model(**{field: {"kind": kind, "nonsuch": 1}})
        parameters = inspect.signature(variant.__init__).parameters.values()
        options = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        assert f"has no option 'nonsuch'; it has {', '.join(options) or 'none'}" in str(error.value)


@pytest.fixture
def bent():
    """A variant as a notebook would define it; unregistered after the test."""

    class Bent(FeedForward, kind="bent"):
        activation = nn.Tanh

        def __init__(self, config, *, bend=1.0):
            super().__init__(config)
            self.bend = bend

        def forward(self, x):
            return self.bend * super().forward(x)

    yield Bent
    del FeedForward.kinds["bent"]


def test_registered_variant_is_selectable_by_name(bent):
    assert isinstance(small_model(ffn="bent").blocks[0].ffn, bent)
    assert small_model(ffn={"kind": "bent", "bend": 3}).blocks[1].ffn.bend == 3
    with pytest.raises(ValidationError, match="it has bend"):
        small_model(ffn={"kind": "bent", "bnd": 3})
    assert "bent" not in Position.kinds, "a variant leaked into another seam"


def test_new_package_file_is_discovered(tmp_path, monkeypatch):
    (tmp_path / "fading.py").write_text(
        "from lab.models.positions import Position\nclass Fading(Position, kind='fading from a file'): pass\n", "utf-8"
    )
    monkeypatch.setattr(lab.models, "__path__", [*lab.models.__path__, str(tmp_path)])
    lab.models.import_files()
    try:
        assert small_model(position="fading from a file")(tokens()).shape == (2, 12, VOCABULARY)
    finally:
        del Position.kinds["fading from a file"], lab.models.fading
        del sys.modules["lab.models.fading"]


def test_variant_names_are_unique_per_seam():
    parents, declared = {}, []
    for path in Path(lab.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                parents[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
                declared += [(node.name, k.value.value) for k in node.keywords if k.arg == "kind"]

    def seams(name):
        result = [seams(parent) for parent in parents[name] if parent in parents]
        return {name} if "Seam" in parents[name] else set().union(*result)

    counts = Counter((seam, kind) for name, kind in declared for seam in seams(name))
    assert [pair for pair, n in counts.items() if n > 1] == []
    registered = {
        (cls.__name__, kind)
        for cls in Seam.__subclasses__()
        if cls.__module__.startswith("lab.models.")  # tasks join Problem as objects
        for kind in cls.kinds
    }
    assert registered <= set(counts), "the source scan missed a registration"


@pytest.mark.parametrize("field, seam", SEAMS.items(), ids=SEAMS)
def test_variants_of_a_seam_give_different_outputs(field, seam):
    """In a comparison, a variant that does nothing would look like a tie."""
    defaults = {"bias": True}
    defaults |= {"position": "none"} if seam is Mixer else {}  # not every mixer supports rotary
    defaults |= {"residual": "admin"} if seam is Initialization else {}  # otherwise "admin" equals Xavier
    outputs = [perturbed(small_model(**{field: choice}, **defaults))(tokens()).detach() for choice in choices(seam)]
    for a, b in itertools.combinations(outputs, 2):
        differs(a, b, 1e-6)


# Seeds and initial weights


def test_seed_determines_the_weights():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = small_model(seed=3).state_dict()
    assert torch.equal(torch.get_rng_state(), before), "construction changed the global RNG state"
    torch.manual_seed(2)
    again, other = small_model(seed=3).state_dict(), small_model(seed=4).state_dict()
    for name, weight in first.items():
        assert torch.equal(weight, again[name])
        if weight.ndim > 1:
            assert not torch.equal(weight, other[name]), name


def matrices(model):
    """{name: (matrix, fan_in, fan_out)}, with query, key and value matrices separated."""
    weights = {"lm_head": model.lm_head.weight}
    for i, block in enumerate(model.blocks):
        heads = block.mixer.heads
        if isinstance(heads.qkv, nn.Linear):
            sizes = [n * heads.d for n in (heads.n, heads.kv, heads.kv)]
            weights |= {f"{i}.{name}": w for name, w in zip("qkv", heads.qkv.weight.split(sizes), strict=True)}
        else:  # sliced: a small matrix for each head
            parts = heads.qkv.weight.squeeze(-1).unflatten(0, (heads.n, 3, heads.d))
            weights |= {f"{i}.{name}{h}": parts[h, j] for h in range(heads.n) for j, name in enumerate("qkv")}
        if isinstance(heads.out, nn.Linear):
            weights[f"{i}.out"] = heads.out.weight
        weights |= {f"{i}.{name}": m.weight for name, m in block.ffn.named_children() if isinstance(m, nn.Linear)}
    return {name: (w, w.shape[1], w.shape[0]) for name, w in weights.items()}


WIDE = {"d_model": 128, "n_heads": 2, "vocab_size": 128, "bias": True}
SCHEMES = {
    "normal": lambda fan_in, fan_out: 0.02,
    "xavier": lambda fan_in, fan_out: math.sqrt(2 / (fan_in + fan_out)),
    "fan-in": lambda fan_in, fan_out: 0.8 / math.sqrt(fan_in),
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("arm", [{}, {"kv_heads": 1}, {"ffn": "swiglu"}, {"projection": "sliced"}], ids=str)
def test_initial_weights_have_the_std_of_the_scheme(arm, scheme):
    model = small_model(initialization=scheme, position="learned", **WIDE, **arm)
    for name, (weight, fan_in, fan_out) in matrices(model).items():
        expected = SCHEMES[scheme](fan_in, fan_out)
        spread = 5 / math.sqrt(2 * weight.numel())
        assert weight.std().item() == pytest.approx(expected, rel=spread), name
        assert abs(weight.mean().item()) < 5 * expected / math.sqrt(weight.numel()), name
    expected = {"normal": 0.02, "xavier": 128**-0.5, "fan-in": 1.0}[scheme]
    for table in (model.embedding.weight, model.position.embedding.weight):
        assert table.std().item() == pytest.approx(expected, rel=5 / math.sqrt(2 * table.numel()))
