"""Initialization schemes: the defining property of each."""

import math

import pytest
import torch
from helpers import close, randn, small_model, tokens

from lab.measure.depth import (
    moments,
    relu_overlap,
)
from lab.measure.hooks import tap
from lab.models.initialization import branch_weights, branches, output_projection_weights


def stream_moments(model, inputs):
    """Mean square of the residual stream after the embedding and after each layer."""
    with (
        torch.no_grad(),
        tap(model, {f"blocks.{i}": lambda x: x.square().mean() for i in range(len(model.blocks))}) as table,
    ):
        model(inputs)
    return [model.embedding(inputs).square().mean().item(), *table().value]


XIONG = {
    "n_heads": 1, "position": "none", "mask": "none", "ffn": {"kind": "relu", "ratio": 1},
    "initialization": "mean-field", "vocab_size": 512, "block_size": 32,
}  # fmt: skip


@pytest.mark.parametrize("n", [1, 32])
@pytest.mark.parametrize("residual", ["pre", "plain"])
def test_stream_growth_matches_the_mean_field_recursion(residual, n):
    expected = moments("pre" if residual == "pre" else "none", n, 6).S
    measured = []
    for seed in range(6):
        model = small_model(seed, residual=residual, n_layers=6, d_model=256, **XIONG)
        order = torch.randperm(512, generator=torch.Generator().manual_seed(seed))
        measured.append(stream_moments(model, order[:32].view(-1, n)))
    ratio = torch.tensor(measured).mean(0) / torch.tensor(expected)
    assert (ratio - 1).abs().max() < (0.05 if residual == "pre" else 0.15), ratio


def test_recursion_reproduces_published_values():
    assert moments("pre", 1, 12).S.tolist() == pytest.approx([1 + 1.5 * layer for layer in range(13)])
    published = [1.53, 2.19, 2.97, 3.86, 4.84, 5.89, 6.99, 8.13, 9.31, 10.51, 11.74, 12.98]
    assert moments("pre", 32, 12).S[1:].tolist() == pytest.approx(published, abs=0.006)
    assert moments("post", 1, 12)["sum"][1:].tolist() == pytest.approx([1.5] * 12)
    assert moments("pre", 1, 48, branch=1 / 96).S.iloc[-1] == pytest.approx(1.75)
    assert relu_overlap(1.0) == pytest.approx(1) and relu_overlap(0.0) == pytest.approx(1 / math.pi)
    assert relu_overlap(-1.0) == pytest.approx(0)
    with pytest.raises(ValueError, match="placement"):
        moments("sandwich", 1, 2)


def test_mean_field_attention_is_uniform():
    model = small_model(**(XIONG | {"d_model": 32}))
    heads, x = model.blocks[0].mixer.heads, randn(1, 8, 32)
    q, k, v = heads.split(x)
    assert not q.any() and not k.any()
    close(model.blocks[0].mixer(x), heads.join(v.mean(2, keepdim=True).expand_as(v)))


def test_fixup_is_exactly_the_identity_at_initialization():
    fields = {"residual": "scaled", "norm": "none", "bias": True, "n_layers": 6}
    model = small_model(initialization="fixup", **fields)
    assert torch.equal(model.hidden(tokens()), model.embedding(tokens())) and not model(tokens()).any()
    for left_out, silent in (("zero_branches", False), ("zero_lm_head", True), ("rescale", True)):
        other = small_model(initialization={"kind": "fixup", left_out: False}, **fields)
        assert torch.equal(other.hidden(tokens()), other.embedding(tokens())) == silent
        assert bool(other(tokens()).any()) == (left_out == "zero_lm_head")
    plain, rescaled = (
        small_model(initialization={"kind": "fixup", "rescale": flag}, **fields) for flag in (False, True)
    )
    up = [model.blocks[0].ffn.up.weight for model in (plain, rescaled)]
    close(up[0] / math.sqrt(12), up[1])
    values = [model.blocks[0].mixer.heads.matrices()[2] for model in (plain, rescaled)]
    close(values[0] / math.sqrt(12), values[1])


def test_deepnorm_uses_published_alpha_and_beta():
    for n, alpha, beta in ((6, 1.861, 0.380), (12, 2.213, 0.319), (24, 2.632, 0.269), (100, 3.761, 0.188)):
        model = small_model(residual="deepnorm", initialization="deepnorm", n_layers=n, n_heads=1)
        xavier = small_model(residual="deepnorm", initialization="xavier", n_layers=n, n_heads=1)
        alpha_of = model.blocks[0].alpha
        ratio = model.blocks[0].ffn.up.weight / xavier.blocks[0].ffn.up.weight
        got = ratio.mean().item()
        assert alpha_of == pytest.approx(alpha, abs=6e-4) and got == pytest.approx(beta, abs=6e-4)
        assert 2 * n * 2 * got**2 / alpha_of**2 == pytest.approx(1, abs=1e-5)
    for part, scaled in (("q", False), ("k", False), ("v", True)):
        a, b = (dict(zip("qkv", m.blocks[3].mixer.heads.matrices(), strict=True))[part] for m in (model, xavier))
        close(a, b * got if scaled else b, 1e-6)
    close(model.blocks[3].mixer.heads.out.weight, xavier.blocks[3].mixer.heads.out.weight * got)


@pytest.mark.parametrize("n_layers", [6, 48])
def test_t_fixup_bounds_stream_growth_without_norm(n_layers):
    fields = {"residual": "plain", "norm": "none", "d_model": 128, "n_layers": n_layers} | {
        k: v for k, v in XIONG.items() if k != "initialization"
    }
    growth = {}
    for scheme in ("t-fixup", "xavier"):
        first, *_, last = stream_moments(small_model(initialization=scheme, **fields), torch.arange(16)[None])
        growth[scheme] = last / first
    assert growth["t-fixup"] < 1.4 and growth["xavier"] > 10
    model, plain = (small_model(initialization=scheme, **fields) for scheme in ("t-fixup", "xavier"))
    close(model.embedding.weight, plain.embedding.weight * (9 * n_layers) ** -0.25)


def test_depth_scaling_affects_output_projections_only():
    for base in ("normal", "xavier", "he"):
        scaled, plain = (
            small_model(initialization=start, n_layers=8) for start in ({"kind": "depth-scaled", "base": base}, base)
        )
        output_projections = {id(w) for w in output_projection_weights(scaled)}
        assert len(output_projections) == 16 and branches(scaled) == 16
        for a, b in zip(scaled.parameters(), plain.parameters(), strict=True):
            close(a, b / 4 if id(a) in output_projections else b, 1e-7)
    default, explicit = (
        small_model(initialization=start) for start in ("depth-scaled", {"kind": "depth-scaled", "base": "normal"})
    )
    assert torch.equal(default(tokens()), explicit(tokens()))


@pytest.mark.parametrize("heads", ["full", "sliced", "low-rank-value", "full-value"])
def test_query_key_and_branch_weights_are_identified_for_four_kinds_of_projection(heads):
    model = small_model(projection=heads, ffn="swiglu", bias=True)
    part = model.blocks[0].mixer.heads
    with torch.no_grad():
        for weight in part.query_key_weights():
            weight.zero_()
        q, k, v = part.split(randn(2, 5, 32))
        assert not q.any() and not k.any() and v.any()
        for weight in branch_weights(model):
            weight.zero_()
        assert torch.equal(model.hidden(tokens()), model.norm(model.embedding(tokens())))
