"""Feed-forward variants: activations, gates, low rank and mixtures of experts match their definitions."""

import math

import pytest
import torch
from helpers import close, randn, small_config

from lab.models import ModelConfig, Transformer
from lab.models.feedforward import balance_loss, load_balance
from lab.models.gpt import FeedForward
from lab.models.initialization import output_projection_weights
from lab.training import TrainConfig, cross_entropy, train


def model(ffn, **fields):
    return Transformer(small_config(ffn=ffn, **({"bias": True} | fields)))


GATES = {
    "glu": torch.sigmoid,
    "reglu": lambda x: x.clamp(min=0),
    "geglu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "swiglu": lambda x: x * torch.sigmoid(x),
    "bilinear": lambda x: x,
}
PLAIN = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "silu": lambda x: x * torch.sigmoid(x),
    "relu2": lambda x: x.clamp(min=0) ** 2,
    "gelu-tanh": lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


@pytest.mark.parametrize("kind", [*GATES, *PLAIN])
def test_activations_and_gates_equal_their_formulas(kind):
    part, x = model(kind).blocks[0].ffn, randn(2, 7, 32)
    with torch.no_grad():
        for i, parameter in enumerate(part.parameters()):
            parameter.copy_(randn(*parameter.shape, seed=i) / 4)
    w1, b1, w2, b2 = part.up.weight.T, part.up.bias, part.down.weight.T, part.down.bias
    if kind in GATES:
        hidden = GATES[kind](x @ part.gate.weight.T + part.gate.bias) * (x @ w1 + b1)
    else:
        hidden = PLAIN[kind](x @ w1 + b1)
    close(part(x), hidden @ w2 + b2)


def test_bilinear_layer_without_bias_is_even():
    part, x = model("bilinear", bias=False).blocks[0].ffn, randn(2, 7, 32)
    close(part(-x), part(x))
    assert part(x).abs().max() > 0.1


@pytest.mark.parametrize("place", ["hidden", "output"])
def test_dropout_acts_in_training_only(place):
    part, plain = (model(kind).blocks[0].ffn for kind in ({"kind": "gelu", place: 0.25}, "gelu"))
    recorded, x = {}, randn(40, 50, 32)
    part.down.register_forward_hook(lambda module, inputs, out: recorded.update(hidden=inputs[0], output=out))
    dropped_out = {"output": part(x), "hidden": recorded["hidden"]}
    reference = {"output": plain(x), "hidden": plain.act(plain.up(x))}
    for where, values in dropped_out.items():
        dropped = (values == 0).float().mean()
        assert abs(dropped - (0.25 if where == place else 0)) < 0.01, where
    rest = dropped_out[place] != 0
    close(dropped_out[place][rest], reference[place][rest] / 0.75)  # inverted dropout rescales the rest
    assert torch.equal(part.eval()(x), plain(x))


def test_low_rank_layer_has_the_specified_rank_and_parameter_count():
    part = model({"kind": "low-rank", "rank": 5, "ratio": 3}, bias=False).blocks[0].ffn
    assert sum(p.numel() for p in part.parameters()) == 2 * 5 * (32 + 96)
    jacobian = torch.func.jacrev(part)(randn(32))
    assert torch.linalg.matrix_rank(jacobian) == 5
    full = FeedForward.build({"kind": "gelu", "ratio": 3}, ModelConfig(vocab_size=2, block_size=2, d_model=32))
    with torch.no_grad():
        for name in ("up", "down"):
            thin = getattr(part, name)
            getattr(full, name).weight.copy_(thin[1].weight @ thin[0].weight)
    close(part(randn(4, 32)), full(randn(4, 32)))


def test_ffn_none_gives_an_attention_only_model():
    attention = model("none")
    x = torch.randint(13, (2, 9), generator=torch.Generator().manual_seed(0))
    stream = attention.embedding(x)
    for block in attention.blocks:
        stream = stream + block.mixer(block.mixer_norm(stream), causal=True)
    close(attention(x), attention.lm_head(attention.norm(stream)))
    assert len(output_projection_weights(attention)) == 2


# Mixtures of experts


def dense_mixture(part, x):
    """Dense reference: every expert on every token, weighted by its renormalised top-k probability."""
    probabilities = part.router(x).softmax(-1)
    bar = probabilities.sort(-1, descending=True).values[..., part.active - 1 : part.active]
    weight = probabilities * (probabilities >= bar)
    weight = weight / weight.sum(-1, keepdim=True) if part.active > 1 else weight
    return sum(weight[..., i : i + 1] * expert(x) for i, expert in enumerate(part.experts))


@pytest.mark.parametrize("active", [1, 2, 5])
def test_mixture_equals_the_weighted_sum_of_top_k_experts(active):
    part = model({"kind": "mixture", "experts": 5, "active": active, "expert": "swiglu"}).blocks[0].ffn
    x = randn(2, 7, 32)
    close(part(x), dense_mixture(part, x))


def test_changing_an_expert_affects_only_its_tokens():
    part, x = model({"kind": "mixture", "experts": 4, "active": 1}).blocks[0].ffn, randn(1, 40, 32)
    before, chosen = part(x), part.router(x).argmax(-1)
    with torch.no_grad():
        part.experts[2].down.weight.mul_(-3)
    changed = (part(x) - before).abs().amax(-1) > 1e-6
    assert 0 < changed.sum() < 40
    assert torch.equal(changed, chosen == 2)


def test_load_balance_loss_matches_known_values():
    n, experts = 100, 4
    uniform = torch.full((n, experts), 1 / experts)
    round_robin = torch.arange(n)[:, None] % experts
    assert load_balance(uniform, round_robin).item() == pytest.approx(1)
    collapsed = torch.eye(experts)[torch.zeros(n, dtype=torch.long)]
    assert load_balance(collapsed, collapsed.argmax(-1, keepdim=True)).item() == pytest.approx(experts)
    crossed = torch.tensor([[0.51, 0.49]] * 51 + [[0.0, 1.0]] * 49)  # top-1 counts and mean probabilities disagree
    assert load_balance(crossed, crossed.argmax(-1, keepdim=True)).item() == pytest.approx(0.9904, abs=1e-4)


def test_balance_loss_spreads_tokens_over_experts():
    def final_balance(weight):
        mixture = model({"kind": "mixture", "experts": 4, "active": 1}, n_layers=1)
        with torch.no_grad():  # start from a router that prefers expert 0
            mixture.blocks[0].ffn.router.weight[0] += mixture.blocks[0].ffn_norm(randn(64, 32)).mean(0)

        def draw(generator, size):
            x = torch.randint(13, (size, 12), generator=generator)
            return x, x

        def loss(model, x, y):
            return cross_entropy(model(x), y) + weight * balance_loss(model)

        train(mixture, draw, TrainConfig(steps=40, batch=16, warmup=0), loss=loss)
        mixture(draw(torch.Generator().manual_seed(9), 64)[0])
        return balance_loss(mixture).item()

    assert final_balance(1.0) < final_balance(0.0) - 0.01
    assert final_balance(1.0) < 1.05


def test_invalid_mixtures_raise():
    with pytest.raises(ValueError, match="active"):
        model({"kind": "mixture", "experts": 2, "active": 3})
    with pytest.raises(ValueError, match="unknown"):
        model({"kind": "mixture", "expert": "rule"})
    with pytest.raises(ValueError, match="no mixture"):
        balance_loss(model("relu"))
    with pytest.raises(ValueError, match="not been called"):
        balance_loss(model("mixture"))


def test_expert_output_projections_are_depth_scaled():
    scaled = model({"kind": "mixture", "experts": 3}, initialization="depth-scaled", n_layers=4)
    plain = model({"kind": "mixture", "experts": 3}, initialization="normal", n_layers=4)
    assert len(output_projection_weights(scaled)) == 4 * (1 + 3)
    close(scaled.blocks[1].ffn.experts[2].down.weight, plain.blocks[1].ffn.experts[2].down.weight / math.sqrt(8))
    assert len(output_projection_weights(model("low-rank"))) == 4
