"""Exact statements of the chapter (§1.4) and its notes about feed-forward layers: verified, or corrected.

Notes 1 to 4 are the four notes of the chapter, which are not in this repository; experiments/errata.md lists errors.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers import config, normal
from scipy import integrate
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lab.measure.cost import attention_parameters, feedforward_parameters
from lab.models import Transformer
from lab.models.encoder_decoder import DecoderBlock
from lab.models.gpt import FeedForward, Position


def layer(kind, **fields):
    torch.manual_seed(0)
    return FeedForward.build(kind, config(**fields)).double().requires_grad_(False)


def activation(kind):
    return FeedForward.kinds[kind].activation()


def parameters(module):
    return sum(p.numel() for p in module.parameters())


# Structure


def test_attention_without_softmax_is_a_degree_3_polynomial_of_x():
    """ffn-attention-linear. "Apart from softmax, attention is a linear operation, so the FFN has to
    supply the non-linearity." (chapter §1.4.2)
    False: without softmax, attention is cubic in x; doubling x multiplies the output by 8.
    """
    x, w_q, w_k, w_v = normal(4, 6, 6)

    def attend(x):
        return (x @ w_q) @ (x @ w_k).T @ (x @ w_v)

    torch.testing.assert_close(attend(2 * x), 8 * attend(x))


def test_ffn_acts_on_each_position_separately():
    """ffn-tokenwise. "The FFN acts on every position separately (channel mixing) while attention
    exchanges information between positions." (chapter §1.4.2; note 2, §2.2, §2.2.4)
    """
    block, x = Transformer(config(position="none")).blocks[0].double(), normal(1, 6, 128).requires_grad_()
    for part, reached in ((block.ffn, [2]), (block.mixer, [0, 1, 2, 3, 4, 5])):
        (gradient,) = torch.autograd.grad(part(x)[0, 2].sum(), x)
        assert gradient[0].abs().amax(-1).nonzero().flatten().tolist() == reached


def test_ffn_keys_are_columns_of_w1_and_values_rows_of_w2():
    """ffn-key-value-layout. "An FFN is a key-value memory whose keys are the rows of W_1 and values
    the columns of W_2, with the activation selecting memories." (chapter §1.4.2)
    False: for x W_1, keys are the columns of W_1 and values the rows of W_2.
    """
    part, x = layer("relu"), normal(128)
    w1, w2 = part.up.weight.T, part.down.weight.T  # nn.Linear stores the transpose
    act = torch.relu(x @ w1)
    torch.testing.assert_close(act, torch.stack([torch.relu(x @ key) for key in w1.T]))
    torch.testing.assert_close(part(x), sum(a * value for a, value in zip(act, w2, strict=True)))
    assert w1[0].shape != x.shape and w2[:, 0].shape != x.shape, (
        "rows of W_1 and columns of W_2 must not have width d_model"
    )


def test_ffn_formula_of_note_2_has_mismatched_shapes():
    """ffn-note-ffn. "The classic FFN is max(0, W_1 x + b_1) + W_2 x + b_2." (note 2, §2.2.4)
    False: W_2 takes the d_ff hidden units as input, not x.
    """
    part, x = layer("relu"), normal(128)
    with pytest.raises(RuntimeError):
        torch.relu(part.up(x)) + part.down(x)
    torch.testing.assert_close(part(x), part.down(torch.relu(part.up(x))))


def test_swiglu_formula_of_note_2_is_affine():
    """ffn-note-swiglu. "SwiGLU is two linear layers with Swish in between, W_1 x + b_1 + W_2 x +
    b_2." (note 2, §2.2.4)
    False: that is affine; SwiGLU has three matrices and an elementwise product.
    """
    part, x, y = layer("swiglu"), normal(128), normal(128, seed=1)

    def nonlinearity(function):
        return (function(x + y) - function(x) - function(y) + function(0 * x)).abs().max()

    assert nonlinearity(lambda x: part.up(x) + 1 + part.gate(x) + 2) < 1e-12 and nonlinearity(part) > 1e-3
    torch.testing.assert_close(part(x), part.down(F.silu(part.gate(x)) * part.up(x)))


def test_ffn_holds_two_thirds_of_block_parameters():
    """ffn-parameter-share. "The FFN holds the larger part of the parameters." (chapter §1.4.6)
    stack-all-attention. "Compared with CNNs the whole network architecture is the attention
    mechanism (built entirely on self-attention)." (note 1, Transformer架构; note 3, 为什么需要Transformer)
    The second is false: attention holds 4 d² of a block's 12 d² parameters, with cross-attention 8 d² of 16 d².
    """
    block = Transformer(config()).blocks[0]
    assert parameters(block.ffn) == feedforward_parameters(128, 512) == 8 * 128**2
    assert parameters(block.mixer) == attention_parameters(128, 4, 4, 32) == 4 * 128**2
    decoder = DecoderBlock(config(), Position.build("none", config()))
    assert parameters(decoder.mixer) + parameters(decoder.cross) == parameters(decoder.ffn)


def test_attention_and_feed_forward_share_no_weights():
    """stack-sharing-parameters. "In the Transformer attention and FFN layers reuse the same weight
    matrices, which reduces the number of parameters." (note 4, §2, §3.1, §3.2)
    False: they share no weights, and their matrices differ in shape.
    """
    block = Transformer(config()).blocks[0]
    attention, ffn = ({p.data_ptr() for p in part.parameters()} for part in (block.mixer, block.ffn))
    assert attention and ffn and not attention & ffn
    assert not {p.shape for p in block.mixer.parameters()} & {p.shape for p in block.ffn.parameters()}


def test_ffn_dropout_is_also_applied_after_w2():
    """The chapter: dropout in the feed-forward layer is usually applied before W_2 only (§1.4.6).
    False: GPT-2 applies it after W_2, torch's encoder layer in both places.
    """
    transformers = pytest.importorskip("transformers")
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

    torch.manual_seed(0)
    x = torch.randn(200, 64)
    mlp = GPT2MLP(256, transformers.GPT2Config(n_embd=64, resid_pdrop=0.5)).train()
    assert 0.45 < (mlp(x) == 0).float().mean() < 0.55, "dropout must act on the outputs of W_2"
    whole = nn.TransformerEncoderLayer(64, 4, dropout=0.5, batch_first=True).train()
    whole.dropout.p = whole.dropout1.p = whole.self_attn.dropout = 0.0  # keep only dropout2, after W_2
    assert not torch.allclose(whole(x), whole(x))


# Activations


def slope(f):
    """The derivative of an elementwise function."""
    return torch.func.grad(lambda x: f(x).sum())


def test_gelu_is_not_s_shaped():
    """ffn-gelu-s-shape. "On [-3, 3] ReLU is piecewise linear, GELU a smooth S-shaped curve with
    non-zero negative part." (chapter §1.4.3, exercise 1.9)
    False: GELU falls to -0.170 before it rises, its slope exceeds 1, and it is unbounded above.
    """
    x = torch.linspace(-3, 3, 60001, dtype=torch.float64)
    smallest, place = activation("gelu")(x).min(0)
    assert (x[place], smallest) == pytest.approx((-0.752, -0.16997), abs=2e-3)
    slopes = slope(activation("gelu"))(torch.linspace(-3, 3, 6001, dtype=torch.float64))
    assert slopes.min() < -0.1 and slopes.max().item() == pytest.approx(1.1289, abs=1e-4)
    assert activation("gelu")(torch.tensor(1e6)) == 1e6


def test_silu_is_bounded_below_and_unbounded_above():
    """ffn-silu-bounds. "SiLU is a smooth variant of ReLU, unbounded above and bounded below."
    (chapter §1.4.3)
    """
    x = torch.linspace(-1000, 1000, 2_000_001, dtype=torch.float64)
    smallest, place = activation("silu")(x).min(0)
    assert (x[place], smallest) == pytest.approx((-1.2785, -0.27846), abs=1e-3)
    assert activation("silu")(torch.tensor(1e6)) == 1e6


def test_gelu_is_the_expectation_of_a_random_mask():
    """ffn-gelu-stochastic. "GELU has a probabilistic reading as the expectation of a random 0/1
    mask on the input." (chapter §1.4.3)
    """

    def density(z):
        return math.exp(-z * z / 2) / math.sqrt(2 * math.pi)

    for x in (-4.0, -1.0, 0.5, 3.0):
        passes, _ = integrate.quad(density, -12, x)  # Φ(x), up to a negligible tail
        gelu = activation("gelu")(torch.tensor(x, dtype=torch.float64)).item()
        assert gelu == pytest.approx(x * passes, abs=1e-9)


def test_tanh_approximation_of_gelu_has_error_below_1e_3():
    """ffn-gelu-approximation. "GELU is x*Phi(x), approximated by
    0.5x(1+tanh(sqrt(2/pi)(x+0.044715x^3)))." (chapter §1.4.3)
    """
    x = torch.linspace(-8, 8, 16001, dtype=torch.float64)
    printed = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    torch.testing.assert_close(activation("gelu-tanh")(x), printed)
    assert 1e-5 < (printed - activation("gelu")(x)).abs().max() < 1e-3
    by_sigmoid = x * torch.sigmoid(1.702 * x)
    assert (by_sigmoid - activation("gelu")(x)).abs().max() > 0.01


@pytest.mark.parametrize(("kind", "jump"), [("relu", 1), ("gelu", 0), ("silu", 0)])
def test_only_the_derivative_of_relu_jumps(kind, jump):
    """ffn-derivative-jumps. "ReLU's derivative is a 0/1 step whereas GELU's and SiLU's are smooth
    and avoid sudden gradient changes." (chapter §1.4.3, exercise 1.9)
    """
    h = 1e-6
    x = torch.linspace(-6, 6, 12001, dtype=torch.float64) - h / 2
    change = slope(activation(kind))(x + h) - slope(activation(kind))(x)
    assert change.abs().max().item() == pytest.approx(jump, abs=1e-5)


def test_activations_cost_little_next_to_matmuls():
    """The chapter: relative to ReLU, SiLU costs about 1.5 and GELU about 2 times as much (exercise 1.9).
    It hardly matters: there are 2 d_model multiply-adds per activation.
    """
    part, activated = layer("gelu"), []
    part.act.register_forward_hook(lambda *call: activated.append(call[2].numel()))
    with FlopCounterMode(display=False) as counted:
        part(normal(10, 128))
    assert counted.get_total_flops() / 2 / activated[0] == 2 * 128


# Gated layers and mixtures of experts


@pytest.mark.parametrize("d", [48, 96, 384])
def test_gated_ffn_with_two_thirds_width_keeps_the_parameter_count(d):
    """ffn-glu-two-thirds. "The extra gate matrix adds parameters; keeping the total constant
    requires shrinking the hidden width to 2/3." (chapter §1.4.4; note 2, §2.2.4)
    So the ratio 8/3 follows from the gate, not from model size (chapter §1.4.5).
    """
    assert parameters(layer("swiglu", d_model=d)) == parameters(layer("gelu", d_model=d)) == 8 * d * d
    assert feedforward_parameters(d, 8 * d // 3, gated=True) == feedforward_parameters(d, 4 * d)


@pytest.mark.parametrize("experts", [2, 64])
def test_a_token_uses_one_expert_of_a_top_1_mixture(experts):
    """variants-switch. "Sparsely activated models hold very many parameters but each token uses a
    small part." (chapter §1.6.4)
    """
    mixture, x = layer({"kind": "mixture", "experts": experts, "active": 1}), normal(64, 128)
    assert parameters(mixture) == experts * (feedforward_parameters(128, 512) + 128)
    with FlopCounterMode(display=False) as counted:
        mixture(x)
    used = counted.get_total_flops() / 2 / 64  # MACs per token: one expert and the router
    assert used == feedforward_parameters(128, 512) + experts * 128
