"""Norms, residual connections and reversible layers: the defining property of each.

Tests `lab.models.norms` and `lab.models.blocks`.
"""

import math

import pytest
import torch
from helpers import close, differs, loss_of, randn, small_config, small_model, tokens
from torch import nn

from lab.measure.hooks import tap
from lab.models.gpt import Block, Norm, Position
from lab.models.initialization import output_projection_weights
from lab.recipes.timed_calls import saved_bytes

# Norms


@pytest.mark.parametrize("kind, zeros", [("layernorm", 2), ("rmsnorm", 1)])
def test_norm_jacobian_is_a_projection_divided_by_the_scale(kind, zeros):
    norm = Norm.build({"kind": kind, "affine": False, "eps": 0.0}, small_config())
    x = 3 * randn(32, dtype=torch.float64) + 1
    size = (x - x.mean() if kind == "layernorm" else x).square().mean().sqrt()
    values = torch.linalg.svdvals(torch.autograd.functional.jacobian(norm, x))
    close(values[: 32 - zeros], (1 / size).expand(32 - zeros), 1e-10)
    assert values[32 - zeros :].max() < 1e-12


def test_batchnorm_excludes_padding_and_tracks_running_statistics():
    x, real = 3 * randn(4, 12, 32) + 1, torch.arange(12) < torch.tensor([[12], [7], [3], [1]])
    aware, blind = (Norm.build({"kind": "batchnorm", "padding_aware": flag}, small_config()) for flag in (True, False))
    aware.padding_mask = real
    changed = torch.where(real[..., None], x, 100.0)
    close(aware(x), aware(changed), 0)
    differs(blind(x)[real], blind(changed)[real], 0.1)
    close(aware(x)[real].mean(0), torch.zeros(32))
    close(aware(x)[real].var(0, unbiased=False), torch.ones(32), 1e-4)
    for _ in range(200):
        aware(x)
    differs(aware(x)[:1], aware(x[:1].expand(4, 12, 32))[:1], 0.1)  # training mode uses batch statistics
    for _ in range(200):
        aware(x)
    aware.eval()
    mean, variance = x[real].mean(0), x[real].var(0)
    close(aware(x)[real], (x[real] - mean) / (variance + 1e-5).sqrt(), 1e-3)
    aware.padding_mask = real[:1]
    close(aware(x[:1]), aware(x[:1].clone()), 0)


def test_model_passes_padding_mask_to_batchnorm():
    real = torch.arange(12) < torch.tensor([[12], [5]])
    before = tokens()
    after = torch.where(real, before, (before + 1) % 13)
    for aware in (True, False):
        model = small_model(mask="none", norm={"kind": "batchnorm", "padding_aware": aware}).train()
        change = (model(before, padding_mask=real)[real] - model(after, padding_mask=real)[real]).abs().max()
        assert (change < 1e-5) == aware
        assert model(before).shape == (2, 12, 13), "the padding mask of an earlier call was kept"


def test_qk_norm_is_invariant_to_weight_scale():
    for qk_norm, invariant in (("none", False), ("layernorm", True), ("rmsnorm", True)):
        small, large = (small_model(qk_norm=qk_norm, d_model=64) for _ in range(2))
        with torch.no_grad():
            for block in large.blocks:
                block.mixer.heads.qkv.weight[:128] *= 20
        change = (small(tokens()) - large(tokens())).abs().max()
        assert (change < 1e-3) == invariant, qk_norm
        with tap(large, {"*.query_norm": lambda x: x.norm(dim=-1).max()}) as table:
            large(tokens())
        assert (table().value <= 4 + 1e-4).all() == invariant, "a normed query has norm √16 at most"


# Residuals


def block(kind, **fields):
    """A block of width 32, to test its residual connection."""
    layer = small_config(**fields).layer(0)
    return Block.build(kind, layer, Position.build("none", layer))


def test_residuals_equal_their_formulas():
    x, branch = randn(2, 12, 32), nn.Linear(32, 32)
    norm = nn.LayerNorm(32)
    expected = {
        "sandwich": x + norm(branch(norm(x))),
        "deepnorm": norm(12**0.25 * x + branch(x)),
        "none": branch(norm(x)),
        "weighted": 0.5 * x + 0.5 * branch(norm(x)),
        "scaled": x + branch(norm(x)),
        "stochastic-depth": x + 0.8 * branch(norm(x)),
    }
    for kind, value in expected.items():
        close(block(kind, n_layers=6).eval().around(x, branch, "ffn"), value)
    learned = block({"kind": "weighted", "a": 0.9, "learned": True})
    out = learned.around(x, branch, "ffn")
    close(out, 0.9 * x + 0.1 * branch(norm(x)))
    out.square().sum().backward()
    assert learned.ffn_logit.grad.abs() > 0
    assert "ffn_logit" not in dict(block("weighted").named_parameters())
    for wrong in ({"kind": "weighted", "a": 1.0}, {"kind": "stochastic-depth", "keep": 0.0}):
        with pytest.raises(ValueError, match="a must be between|keep must be in"):
            block(wrong)
    assert [small_model(residual=kind).norm.__class__.__name__ for kind in ("sandwich", "deepnorm")] == [
        "LayerNorm",
        "Norm",
    ]


def test_post_norm_dropout_zeroes_stream_or_branch():
    x, branch = randn(2, 12, 32), nn.Linear(32, 32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inside, outside = (block({"kind": "post", "dropout": 0.5, "outside": flag}) for flag in (False, True))
        assert (outside.train().around(x, branch, "ffn") == 0).double().mean().item() == pytest.approx(0.5, abs=0.1)
        assert not (inside.train().around(x, branch, "ffn") == 0).any()
    for each in (inside, outside):
        close(each.eval().around(x, branch, "ffn"), nn.LayerNorm(32)(x + branch(x)))


def test_weighted_residual_shrinks_the_skip_path_geometrically():
    for kind, expected in (("pre", 1.0), ({"kind": "weighted", "a": 0.8}, 0.8**12)):
        model = small_model(residual=kind, n_layers=6, norm="none")
        with torch.no_grad():
            for weight in output_projection_weights(model):
                weight.zero_()
        x = model.embedding(tokens())
        close(model.hidden(tokens()), expected * x)


def test_dense_residual_with_weights_of_one_equals_pre_norm():
    pre, dense = small_model(residual="pre", n_layers=3), small_model(residual="dense", n_layers=3)
    close(dense(tokens()), pre(tokens()))
    dense(tokens()).square().sum().backward()
    for i, layer in enumerate(dense.blocks):
        for j, name in enumerate(("mixer", "ffn")):
            has_gradient = layer.weights[name].grad != 0
            assert has_gradient[: 2 * i + j + 1].all() and not has_gradient[2 * i + j + 1 :].any(), (
                "an output must depend on all earlier sublayers and no later one"
            )
    with torch.no_grad():
        dense.blocks[2].weights["ffn"][0] = 3.0
    differs(dense(tokens()), pre(tokens()))


def test_stochastic_depth_keep_rate_and_eval_expectation():
    layer, x = block({"kind": "stochastic-depth", "keep": 0.7}), randn(1, 3, 32)
    branch = nn.Linear(32, 32)
    with torch.no_grad():
        outputs = torch.stack([layer.train().around(x, branch, "ffn") for _ in range(2000)])
        ran = (outputs != x).flatten(1).any(1)
        assert ran.double().mean().item() == pytest.approx(0.7, abs=5 * math.sqrt(0.21 / 2000))
        not_skipped = x + branch(layer.ffn_norm(x))
        close(outputs[ran], not_skipped.expand_as(outputs[ran]))
        close(layer.eval().around(x, branch, "ffn"), 0.7 * not_skipped + 0.3 * x)
    first, again, other = (small_model(seed, residual="stochastic-depth", n_layers=8).train() for seed in (0, 0, 1))
    runs = [torch.stack([model(tokens()) for _ in range(5)]) for model in (first, again, other)]
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0][0], runs[0][1])
    assert not torch.equal(runs[0], runs[2])


# Reversible layers


def test_reversible_inverse_recovers_inputs():
    model = small_model(residual="reversible", n_layers=12, d_model=64)
    x = model.embedding(tokens())
    before = stream = torch.cat([x, x], -1)
    with torch.no_grad():
        for layer in model.blocks:
            stream = layer(stream, causal=True)
        differs(stream, before, 1.0)
        for layer in reversed(model.blocks):
            stream = layer.inverse(stream, causal=True)
    assert (stream - before).abs().max() < 1e-5


def test_reversible_saved_memory_is_independent_of_depth():
    def saved(residual, n_layers):
        model = small_model(residual=residual, n_layers=n_layers)
        owned = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
        return saved_bytes(lambda: loss_of(model)) - sum(owned.values()) * (residual != "reversible")

    assert saved("reversible", 16) == saved("reversible", 2)
    assert saved("pre", 16) > 6 * saved("pre", 2)
