"""Attention functions: requirements on every registered variant, then properties of single variants."""

import math

import pytest
import torch
from helpers import close, differs, randn, small_model

from lab.measure.attention import attention_probe
from lab.models.gpt import AttentionFn
from lab.models.kernels import factor

KINDS = sorted(set(AttentionFn.kinds) - {"linformer", "local", "offset-gate"})  # need options: see test_linear.py
KINDS.append({"kind": "offset-gate", "reach": 30})


def score(choice, **fields):
    return small_model(score=choice, **fields).blocks[0].mixer.score


def qkv(kv_heads=4, n=10, seed=0):
    return (randn(2, heads, n, 8, seed=seed + i) for i, heads in enumerate((4, kv_heads, kv_heads)))


every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


# All variants


@every_kind
def test_causal_flag_equals_causal_mask(kind):
    part, (q, k, v) = score(kind), qkv()
    past, bias = torch.ones(10, 10, dtype=torch.bool).tril(), randn(4, 10, 10, seed=9)
    with torch.no_grad():
        close(part(q, k, v, causal=True), part(q, k, v, mask=past))
        differs(part(q, k, v, causal=True), part(q, k, v))
        differs(part(q, k, v, bias=bias), part(q, k, v))
        hidden = bias.masked_fill(~past, -1e4)
        if kind != "lsh":  # an LSH bucket may contain masked keys only
            close(part(q, k, v, bias=hidden), part(q, k, v, bias=bias, mask=past))
        if kind in ("additive", "sparsemax"):  # SDPA takes either a mask or is_causal
            near = past & ~past.tril(-3)
            close(part(q, k, v, mask=~past.tril(-3), causal=True), part(q, k, v, mask=near))


@every_kind
def test_weights_sum_to_one_and_masked_values_are_ignored(kind):
    part, (q, k, v) = score(kind), qkv()
    mask = torch.rand(2, 1, 10, 10, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[..., 0] = True
    mask[..., 4] = False
    corrupted = v.clone()
    corrupted[:, :, 4] = 1e3
    with torch.no_grad():
        total = part(q, k, torch.ones_like(v), mask=mask)
        close(total, (total > 0.5).float() if kind == "lsh" else torch.ones_like(v))  # a bucket may be empty
        close(part(q, k, v, mask=mask), part(q, k, corrupted, mask=mask))


@every_kind
@pytest.mark.parametrize("with_bias", [False, True])
def test_fully_masked_query_returns_zero_and_finite_gradients(kind, with_bias):
    part, inputs = score(kind), [x.requires_grad_() for x in qkv()]
    mask = torch.ones(10, 10, dtype=torch.bool)
    mask[3] = False
    mixed = part(*inputs, mask=mask, bias=randn(4, 10, 10) if with_bias else None)
    assert not mixed[:, :, 3].any() and mixed.isfinite().all()
    mixed.square().sum().backward()
    assert all(x.grad.isfinite().all() for x in inputs)
    assert all(p.grad.isfinite().all() for p in part.parameters())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sparsemax"], ids=str)
def test_probe_observes_the_weights(kind):
    part, (q, k, v) = score(kind), qkv()
    with torch.no_grad(), attention_probe({}, keep_maps=True) as probe:
        mixed = part(q, k, v, causal=True)
    assert probe.calls == 1
    close(probe.maps[0] @ v, mixed)


@every_kind
def test_nan_inputs_do_not_crash(kind):
    part, (q, k, v) = score(kind), qkv()
    part(q * math.nan, k, v, causal=True)


# Scales of the dot product


@pytest.mark.parametrize("scale, number", [("none", 1), ("rsqrt", 8**-0.5), ("half", 8**-0.5 / 2), ("inverse", 1 / 8)])
@pytest.mark.parametrize("kind", ["softmax", "sparsemax"])
def test_scale_multiplies_the_queries(kind, scale, number):
    assert factor(scale, 8) == pytest.approx(number)
    q, k, v = qkv()
    close(
        score({"kind": kind, "scale": scale})(q, k, v, causal=True),
        score({"kind": kind, "scale": "none"})(q * number, k, v, causal=True),
    )


def test_unknown_scale_lists_valid_scales():
    with pytest.raises(ValueError, match="'sqrt' is unknown; .* half, inverse, none, rsqrt"):
        small_model(score={"kind": "softmax", "scale": "sqrt"})


# Single variants


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("width", [None, 5])
@torch.no_grad()
def test_additive_score_equals_a_naive_loop(width, kv_heads):
    part, (q, k, v) = score({"kind": "additive", "width": width}, bias=True), qkv(kv_heads, n=5)
    part.query.bias.copy_(randn(*part.query.bias.shape))
    assert part.sum.in_features == (width or 8)
    bias, mixed = randn(4, 5, 5, seed=7), torch.zeros(2, 4, 5, 8)
    for b in range(2):
        for h in range(4):
            for i in range(5):
                keys = range(i + 1)
                scores = [
                    (part.sum.weight[0] * (part.query(q[b, h, i]) + part.key(k[b, h * kv_heads // 4, j])).tanh()).sum()
                    + bias[h, i, j]
                    for j in keys
                ]
                weights = torch.stack(scores).softmax(0)
                mixed[b, h, i] = sum(weights[j] * v[b, h * kv_heads // 4, j] for j in keys)
    close(part(q, k, v, bias=bias, causal=True), mixed)


def test_cosine_score_ignores_key_norm():
    q, k, v = qkv()
    longer = k.clone()
    longer[:, :, 2] *= 5
    close(score("cosine")(q, k, v), score("cosine")(q, longer, v))
    close(score("cosine")(q, k, v), score("cosine")(3 * q, k, v))
    for kind in ("softmax", "bilinear", "additive", "sparsemax"):
        with torch.no_grad():
            differs(score(kind)(q, k, v), score(kind)(q, longer, v))


def test_cosine_score_with_fixed_or_learned_temperature():
    q, k, v = qkv()
    cosine = torch.cosine_similarity(q[:, :, :, None], k[:, :, None], dim=-1)
    fixed, learned = (score({"kind": "cosine", "temperature": 0.25, "learned": x}) for x in (False, True))
    close(fixed(q, k, v), (cosine / 0.25).softmax(-1) @ v)
    close(fixed(q, k, v), learned(q, k, v).detach())
    learned(q, k, v).square().sum().backward()
    (temperature,) = learned.parameters()
    assert temperature.shape == (4,) and (temperature.grad != 0).all()
    assert not list(fixed.parameters())
    with pytest.raises(ValueError, match="temperature must be above 0"):
        score({"kind": "cosine", "temperature": 0.0})


@torch.no_grad()
def test_bilinear_score_equals_its_formula():
    part, (q, k, v) = score("bilinear"), qkv()
    scores = torch.einsum("bhqd,de,bhke->bhqk", q, part.form.weight, k) / math.sqrt(8)
    close(part(q, k, v), scores.softmax(-1) @ v)
    part.form.weight.copy_(torch.eye(8))
    close(part(q, k, v), score("softmax")(q, k, v))
