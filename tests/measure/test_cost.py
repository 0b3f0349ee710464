"""Cost formulas against counted operations and parameters."""

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
    """The linear maps of one block and the function that runs them."""
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
def test_multiply_adds_equal_the_counted_ones(n, group, gated, batch, shape):
    shape |= {"h": shape["g"] * group}
    _, run = block(**shape, gated=gated)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        run(torch.randn(batch, n, shape["d"]))
    assert counter.get_total_flops() == 2 * batch * sum(cost.block_macs(n, **shape, gated=gated).values())


@pytest.mark.parametrize("bias", [False, True])
@settings(deadline=None, max_examples=25)
@given(group=st.integers(1, 3), gated=st.booleans(), shape=shapes)
def test_parameters_equal_the_counted_ones(bias, group, gated, shape):
    shape |= {"h": shape["g"] * group}
    layers, _ = block(**shape, gated=gated, bias=bias)
    counted = {name: sum(p.numel() for p in layer.parameters()) for name, layer in layers.items()}
    feedforward = sum(counted.pop(name) for name in ("up", "down", "gate") if name in counted)
    d, h, g, w, f = (shape[letter] for letter in "dhgwf")
    assert cost.attention_parameters(d, h, g, w, bias=bias) == sum(counted.values())
    assert cost.feedforward_parameters(d, f, gated=gated, bias=bias) == feedforward


@pytest.mark.parametrize(
    "g, qkv, with_output, cache, projection_gflop",
    [
        (8, 786_432, 1_048_576, 33_554_432, 68.7),
        (4, 524_288, 786_432, 16_777_216, 51.5),
        (2, 393_216, 655_360, 8_388_608, 42.9),
        (1, 327_680, 589_824, 4_194_304, 38.7),
    ],
)
def test_the_chapters_sizes_to_the_unit(g, qkv, with_output, cache, projection_gflop):
    d, h, w, n, batch = 512, 8, 64, 1024, 32
    assert cost.attention_parameters(d, h, g, w) == with_output == qkv + h * w * d
    assert cost.cache_elements(n, g, w, batch) == cache
    macs = cost.attention_macs(n, d, h, g, w)
    pairs = macs["scores"] + macs["mix"]
    assert 2e-9 * batch * (sum(macs.values()) - pairs) == pytest.approx(projection_gflop, abs=0.05)
    assert 2e-9 * batch * pairs == pytest.approx(68.7, abs=0.05)
    cached = torch.empty(2, batch, g, n, w, device="meta")
    assert cached.numel() == cache


def test_causal_counts_the_pairs_that_are_seen():
    n = 13
    visible = int(torch.ones(n, n).tril().sum())
    full, causal = (cost.attention_macs(n, 8, 2, 1, 4, causal=flag) for flag in (False, True))
    assert causal["scores"] == causal["mix"] == 2 * 4 * visible
    assert {k: v for k, v in full.items() if k not in ("scores", "mix")}.items() <= causal.items()


def test_formulas_take_symbols_and_give_the_textbook_polynomial():
    n, d = sympy.symbols("n d", positive=True)
    total = sum(cost.block_macs(n, d, 1, 1, d, 4 * d).values())
    assert sympy.expand(total - (4 * n * d**2 + 8 * n * d**2 + 2 * n**2 * d)) == 0


@pytest.mark.parametrize("d", [64, 512])
def test_crossings_are_where_the_costs_meet(d):
    macs = cost.block_macs(2 * d, d, 8, 8, d // 8, 4 * d)
    assert macs["scores"] + macs["mix"] == macs["q"] + macs["k"] + macs["v"] + macs["out"]
    for gated, length in ((False, 6 * d), (True, 8 * d)):
        macs = cost.block_macs(length, d, 8, 8, d // 8, 4 * d, gated=gated)
        assert 2 * (macs["scores"] + macs["mix"]) == sum(macs.values())
