"""Cost formulas equal counted FLOPs and parameters."""

import pytest
import sympy
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lab.measure import cost


def block(d, h, g, w, f, gated=False, bias=False):
    """The linear layers of one block, and its forward function."""
    maps = {"q": (d, h * w), "k": (d, g * w), "v": (d, g * w), "out": (h * w, d), "up": (d, f), "down": (f, d)}
    if gated:
        maps["gate"] = (d, f)
    layers = nn.ModuleDict({name: nn.Linear(*size, bias=bias) for name, size in maps.items()})

    def run(x):
        q, k, v = (layers[name](x).unflatten(-1, (-1, w)).transpose(1, 2) for name in "qkv")  # (b, h or g, n, w)
        mixed = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        x = layers["out"](mixed.transpose(1, 2).flatten(2))
        hidden = F.relu(layers["up"](x))
        return layers["down"](hidden * layers["gate"](x) if gated else hidden)

    return layers, run


shapes = st.fixed_dictionaries(
    {"d": st.integers(1, 24), "g": st.integers(1, 3), "w": st.integers(1, 8), "f": st.integers(1, 40)}
)


@settings(deadline=None, max_examples=25)
@given(n=st.integers(1, 20), group=st.integers(1, 3), gated=st.booleans(), batch=st.integers(1, 3), shape=shapes)
def test_block_macs_equal_counted_flops(n, group, gated, batch, shape):
    shape |= {"h": shape["g"] * group}
    _, run = block(**shape, gated=gated)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        run(torch.randn(batch, n, shape["d"]))
    assert counter.get_total_flops() == 2 * batch * sum(cost.block_macs(n, **shape, gated=gated).values())


@pytest.mark.parametrize("bias", [False, True])
@settings(deadline=None, max_examples=25)
@given(group=st.integers(1, 3), gated=st.booleans(), shape=shapes)
def test_parameter_formulas_equal_counted_parameters(bias, group, gated, shape):
    shape |= {"h": shape["g"] * group}
    layers, _ = block(**shape, gated=gated, bias=bias)
    counted = {name: sum(p.numel() for p in layer.parameters()) for name, layer in layers.items()}
    feedforward = sum(counted.pop(name) for name in ("up", "down", "gate") if name in counted)
    d, h, g, w, f = (shape[letter] for letter in "dhgwf")
    assert cost.attention_parameters(d, h, g, w, bias=bias) == sum(counted.values())
    assert cost.feedforward_parameters(d, f, gated=gated, bias=bias) == feedforward


def test_causal_macs_count_visible_pairs_only():
    n = 13
    visible = int(torch.ones(n, n).tril().sum())
    full, causal = (cost.attention_macs(n, 8, 2, 1, 4, causal=flag) for flag in (False, True))
    assert causal["scores"] == causal["mix"] == 2 * 4 * visible
    assert {k: v for k, v in full.items() if k not in ("scores", "mix")}.items() <= causal.items()


def test_symbolic_block_macs_equal_the_textbook_polynomial():
    n, d = sympy.symbols("n d", positive=True)
    total = sum(cost.block_macs(n, d, 1, 1, d, 4 * d).values())
    assert sympy.expand(total - (4 * n * d**2 + 8 * n * d**2 + 2 * n**2 * d)) == 0


@pytest.mark.parametrize("d", [64, 512])
def test_score_cost_crosses_projection_cost_at_known_lengths(d):
    macs = cost.block_macs(2 * d, d, 8, 8, d // 8, 4 * d)
    assert macs["scores"] + macs["mix"] == macs["q"] + macs["k"] + macs["v"] + macs["out"]
    for gated, length in ((False, 6 * d), (True, 8 * d)):
        macs = cost.block_macs(length, d, 8, 8, d // 8, 4 * d, gated=gated)
        assert 2 * (macs["scores"] + macs["mix"]) == sum(macs.values())
