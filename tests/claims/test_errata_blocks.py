"""Errata of the chapter, §1.4 to §1.6: the statement fails, what experiments/errata.yaml puts in its place holds."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import normal
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lab.measure.cost import feedforward_parameters
from lab.models import ModelConfig, Transformer
from lab.models.gpt import FeedForward


def config(**fields):
    return ModelConfig(**({"vocab_size": 16, "block_size": 16, "d_model": 48, "n_layers": 12, "n_heads": 4} | fields))


def model(**fields):
    return Transformer(config(position="none", **fields)).double().requires_grad_(False)


def stream(net, tokens):
    """Mean square of the stream after every block."""
    x, sizes = net.embedding(tokens) * net.config.d_model**0.5, []
    for block in net.blocks:
        x = block(x, causal=True)
        sizes.append(x.square().mean().item())
    return sizes


TOKENS = torch.randint(16, (8, 16), generator=torch.Generator().manual_seed(0))


# §1.4 feed-forward layers


def test_attention_without_softmax_is_cubic():
    x, w_q, w_k, w_v = normal(4, 6, 6)

    def attend(x):
        return (x @ w_q) @ (x @ w_k).T @ (x @ w_v)

    torch.testing.assert_close(attend(2 * x), 8 * attend(x))
    assert not torch.allclose(attend(2 * x), 2 * attend(x))


def test_keys_are_columns_of_w1_and_values_rows_of_w2():
    x, w1, w2 = normal(4), normal(4, 10, seed=1), normal(10, 3, seed=2)  # rows of tokens: x W1
    assert w1[0].shape != x.shape and w2[:, 0].shape != (3,), "a row of W1 is no key, a column of W2 no value"
    act = torch.relu(x @ w1)
    assert act[act > 0].numel() and torch.equal(act > 0, torch.stack([x @ key for key in w1.T]) > 0)
    for i in range(10):
        silenced = act.clone()
        silenced[i] = 0
        torch.testing.assert_close(act @ w2 - silenced @ w2, act[i] * w2[i])


def test_gelu_is_no_s_curve():
    x = torch.linspace(-6, 6, 12_001, dtype=torch.float64, requires_grad=True)
    y = F.gelu(x)
    slope = torch.autograd.grad(y.sum(), x)[0]
    assert y.min().item() == pytest.approx(-0.16997, abs=1e-4) and x[y.argmin()].item() == pytest.approx(
        -0.752, abs=2e-3
    )
    assert (slope < -0.1).any() and slope.max().item() == pytest.approx(1.1289, abs=1e-4), "falls, and overshoots"
    assert F.gelu(torch.tensor(1e6)) == 1e6, "no upper bound"


def test_an_activation_stands_against_many_products():
    layer, x, activated = FeedForward.build("gelu", config()), torch.randn(10, 48), []
    layer.act.register_forward_hook(lambda *call: activated.append(call[2].numel()))
    with FlopCounterMode(display=False) as counted:
        layer(x)
    products = counted.get_total_flops() / 2
    assert products / activated[0] == 2 * 48, "so the price of the function is a small part of the layer's"


@pytest.mark.parametrize("kind", ["swiglu", "geglu"])
def test_the_gated_unit_is_the_inner_part_of_its_layer(kind):
    torch.manual_seed(0)
    layer, x = FeedForward.build(kind, config()).double(), normal(5, 48)
    unit = layer.up(x) * (F.silu if kind == "swiglu" else F.gelu)(layer.gate(x))  # as the chapter prints it
    assert unit.shape == (5, 128)
    torch.testing.assert_close(layer(x), unit @ layer.down.weight.T)


def test_eight_thirds_matches_the_parameters_of_three_matrices():
    def parameters(kind):
        return sum(p.numel() for p in FeedForward.build(kind, config()).parameters())

    assert parameters("swiglu") == parameters("gelu") == 8 * 48 * 48
    assert feedforward_parameters(3, 8, gated=True) == feedforward_parameters(3, 12), "for any width"


def test_dropout_also_stands_after_the_output_matrix():
    transformers = pytest.importorskip("transformers")
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

    torch.manual_seed(0)
    x = torch.randn(200, 64)
    mlp = GPT2MLP(256, transformers.GPT2Config(n_embd=64, resid_pdrop=0.5)).train()
    assert 0.45 < (mlp(x) == 0).float().mean() < 0.55, "what it drops are outputs of W2"
    layer = nn.TransformerEncoderLayer(64, 4, dropout=0.5, batch_first=True).train()
    layer.dropout.p = layer.dropout1.p = layer.self_attn.dropout = 0.0  # only the one after W2 is left
    assert not torch.allclose(layer(x), layer(x))


# §1.5 norms, residuals, initialisation


def test_epsilon_beside_the_deviation_has_no_gradient_at_a_constant():
    def normed(x, printed):
        centred = x - x.mean()
        variance = centred.square().mean()
        return centred / (variance.sqrt() + 1e-5 if printed else (variance + 1e-5).sqrt())

    weights = normal(8)
    for printed, finite in ((True, False), (False, True)):
        x = torch.ones(8, dtype=torch.float64, requires_grad=True)
        gradient = torch.autograd.grad((normed(x, printed) * weights).sum(), x)[0]
        assert gradient.isfinite().all().item() is finite
    x = normal(8, seed=1)
    torch.testing.assert_close(normed(x, False), F.layer_norm(x, (8,)))
    x = x / x.std(correction=0) * 1e-3
    assert (normed(x, True) / F.layer_norm(x, (8,))).mean() > 3, "another function where the input is small"


def test_rmsnorm_without_epsilon_is_the_published_one():
    x = normal(5, 8)
    published = x / x.square().mean(-1, keepdim=True).sqrt()
    torch.testing.assert_close(published, F.rms_norm(x, (8,), eps=0.0))
    torch.testing.assert_close(published, F.rms_norm(x, (8,), eps=1e-6), rtol=1e-5, atol=1e-5)


def test_the_pre_ln_stream_grows_and_the_post_ln_stream_does_not():
    pre, post = (stream(model(residual=kind, initialization="xavier"), TOKENS) for kind in ("pre", "post"))
    assert pre[-1] > 4 * pre[0] and all(a < b for a, b in zip(pre, pre[1:], strict=False))
    assert pre[11] - pre[5] == pytest.approx(pre[5] * 6 / 5.5, rel=0.5), "about linearly"
    assert all(size == pytest.approx(1, abs=1e-3) for size in post), "nothing accumulates"


@torch.no_grad()
def test_pre_ln_ends_with_a_norm():
    assert isinstance(model(residual="pre").norm.norm, nn.LayerNorm)

    def size(n_layers, final):
        net = model(residual="pre", initialization="xavier", n_layers=n_layers)
        net.norm = net.norm if final else nn.Identity()
        return net.hidden(TOKENS).square().mean().item()

    assert size(32, final=False) > 3 * size(2, final=False), "the blocks alone: what is read grows with depth"
    assert size(32, final=True) == pytest.approx(1, abs=1e-3) == size(2, final=True)


def test_layer_norm_multiplies_gradients_by_one_over_sigma_exactly():
    x = 3 * normal(12)
    jacobian = torch.func.jacrev(lambda x: F.layer_norm(x, (12,), eps=0.0))(x)
    sizes = torch.linalg.svdvals(jacobian) * x.std(correction=0)
    torch.testing.assert_close(sizes, torch.tensor([1.0] * 10 + [0.0] * 2, dtype=torch.float64), rtol=0, atol=1e-9)


def test_the_gradient_of_a_residual_is_a_matrix_not_a_factor():
    x, upstream, map = normal(6), normal(6, seed=1), normal(6, 6, seed=2)
    jacobian = torch.func.jacrev(lambda x: torch.tanh(map @ x))(x)
    true = torch.func.vjp(lambda x: x + torch.tanh(map @ x), x)[1](upstream)[0]
    torch.testing.assert_close(true, upstream @ (torch.eye(6) + jacobian))
    assert not torch.allclose(true, upstream * (1 + jacobian.diagonal())), "read component by component"
    assert not torch.allclose(true, upstream @ (1 + jacobian)), "1 is the identity, not all ones"


def test_depth_scaling_sets_weights_once():
    plain, scaled = (model(initialization=kind).output_projection_weights() for kind in ("normal", "depth-scaled"))
    for before, after in zip(plain, scaled, strict=True):
        torch.testing.assert_close(after, before / 24**0.5)  # two branches a layer
    x, target, factor = normal(8), normal(8, seed=1), 24**-0.5

    def step(weight, times):
        """How far one step of gradient descent moves the output of `times` x weight."""
        weight = weight.clone().requires_grad_()
        gradient = torch.autograd.grad((times * weight @ x - target).square().sum(), weight)[0]
        return -times * gradient @ x

    weight = normal(8, 8, seed=2)
    torch.testing.assert_close(step(weight * factor, 1), 24 * step(weight, factor))  # same output, another training
    adam = {
        times: torch.sign(torch.autograd.grad((times * w @ x - target).square().sum(), w)[0])
        for times, w in ((1, (weight * factor).requires_grad_()), (factor, weight.clone().requires_grad_()))
    }  # its first step has the size of the rate, whatever the gradient's
    torch.testing.assert_close(1 * adam[1] @ x, 24**0.5 * factor * adam[factor] @ x)


def test_forty_eight_layers_train_where_the_norm_is_in_the_branch():
    def losses(residual):
        net = Transformer(config(n_layers=48, d_model=16, residual=residual, initialization="xavier"))
        optimizer, found = torch.optim.Adam(net.parameters(), 2e-3), []
        for _ in range(25):
            loss = F.cross_entropy(net(TOKENS[:, :-1]).flatten(0, 1), TOKENS[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    pre, post = losses("pre"), losses("post")
    assert pre[-1] < math.log(16) - 0.5 and pre[-1] < post[-1] - 0.5


def test_a_weighted_skip_shrinks_with_depth():
    x = torch.ones(1, dtype=torch.float64, requires_grad=True)
    y = x
    for _ in range(24):
        y = 0.5 * y + 0.5 * torch.zeros(1)  # branches that pass no gradient
    assert torch.autograd.grad(y, x)[0].item() == 0.5**24


# §1.6 variants


def test_positions_run_together_at_finite_precision():
    t = torch.arange(1, 5000, dtype=torch.float64)
    assert len((1 / t).unique()) == len(t) and len((1 / t).half().unique()) < len(t) / 1.5


def test_random_features_estimate_the_softmax_kernel():
    q, k, w = *(0.5 * normal(2, 4)), normal(200_000, 4, seed=1)

    def positive(x):
        return torch.exp(w @ x - x.square().sum() / 2)

    estimates = positive(q) * positive(k)
    error = 4 * estimates.std().item() / len(w) ** 0.5
    assert error < 0.02 and estimates.mean().item() == pytest.approx((q @ k).exp().item(), abs=error)


def test_a_product_law_in_n_d_and_c_cannot_be_fitted_and_has_no_floor():
    n, d = np.meshgrid(np.logspace(7, 11, 9), np.logspace(9, 12, 9))
    n, d = n.ravel(), d.ravel()
    logs = np.log(np.stack([np.full_like(n, math.e), n, d, 6 * n * d]))  # C = 6 N D
    assert np.linalg.matrix_rank(logs) == 3, "three exponents, two to be told apart"

    def loss(n):
        return 1.69 + 406.4 * n**-0.34  # Hoffmann 2022, data without end

    def local_exponent(n):
        return math.log(loss(n) / loss(2 * n)) / math.log(2)

    assert local_exponent(1e7) > 5 * local_exponent(1e11), "a power of N would have one exponent"


def test_linear_attention_costs_less_only_beyond_a_length():
    def flops(n, width, linear):
        q, k, v = normal(3, n, width)
        with FlopCounterMode(display=False) as counted:
            q @ (k.T @ v) if linear else (q @ k.T) @ v
        return counted.get_total_flops()

    assert flops(16, 64, linear=True) == 4 * flops(16, 64, linear=False)
    assert flops(64, 64, linear=True) == flops(64, 64, linear=False), "they meet at n = the width of a head"
    assert flops(256, 64, linear=True) == flops(256, 64, linear=False) / 4
