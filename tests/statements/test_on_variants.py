"""What the chapter (§1.6) states exactly of variants: it holds, or what holds instead."""

import math

import numpy as np
import pytest
import torch
from helpers import config, normal
from torch.utils.flop_counter import FlopCounterMode

from lab.models import linear, sparse_masks
from lab.models.gpt import Mixer, Position


def exponent(a, b, times):
    """The power by which a quantity grows from a to b where its cause grows so many times."""
    return math.log(b / a) / math.log(times)


def reached(masks):
    """Positions that the last output reaches through layers with these masks (1, 1, n, n)."""
    seen = torch.eye(masks[0].shape[-1])[-1:]
    for mask in reversed(masks):
        seen = (seen @ mask[0, 0].float() > 0).float()
    return int(seen.sum())


def test_dilation_that_doubles_with_depth_reaches_exponentially_far():
    """variants-dilated-field. "A causal dilated pattern has a receptive field growing exponentially
    with layers." (chapter §1.6.1, exercise 1.13)
    It holds where the dilation doubles with depth. One dilation everywhere reaches L + 1 positions.
    """

    def mask(dilation):  # two links: the token itself, and one so far back
        return sparse_masks.Dilated(dilation=dilation, size=2).dense(256, 256)

    for layers in range(1, 8):
        assert reached([mask(2**i) for i in range(layers)]) == 2**layers
        assert reached([mask(2)] * layers) == layers + 1


def test_local_and_strided_links_take_n_root_n_pairs():
    """variants-sparse-sqrt. "Sparse Transformer combines local and strided attention at O(n sqrt
    n)." (chapter §1.6.1)
    """
    pairs = {n: sparse_masks.Strided(stride=int(n**0.5)).edges(n) for n in (256, 1024, 4096)}
    assert exponent(pairs[1024], pairs[4096], 4) == pytest.approx(1.5, abs=0.05)
    two_hops = sparse_masks.Strided(stride=16).reach(256, 2)[0]
    assert two_hops.sum() == 256 * 257 // 2, "two hops connect everything"


@pytest.mark.parametrize(("kind", "refused"), [("linformer", True), ("softmax", False)])
def test_linformer_has_weights_for_its_context_only(kind, refused):
    """variants-linformer-fixed. "Linformer suits fixed-length settings." (chapter §1.6.3)
    It refuses every length above its context.
    """
    score = {"kind": kind, "rank": 8} if kind == "linformer" else kind
    chosen = config(block_size=64, score=score)

    def mix(n):
        return Mixer.build("attention", chosen, Position.build("none", chosen))(torch.zeros(1, n, 128))

    assert mix(16).shape == (1, 16, 128) and mix(64).shape == (1, 64, 128)
    for n in (65, 256):
        if refused:
            with pytest.raises((RuntimeError, ValueError)):
                mix(n)
        else:
            assert mix(n).shape == (1, n, 128)


def test_positive_features_estimate_the_softmax_kernel_without_bias():
    """variants-performer-estimator. "Performer approximates the softmax kernel of attention by
    positive random features, without bias." (chapter §1.6.3)
    So it does not replace the softmax by another kernel, as §1.6.3 also says.
    """
    x, y = 0.2 * normal(2, 8)
    rows = normal(200_000, 8, seed=1)
    fx, fy = (linear.log_positive_features(z * 8**0.25, rows).exp().flatten() for z in (x, y))
    estimates = fx * fy * len(rows)
    error = estimates.std().item() / len(rows) ** 0.5
    assert error < 0.01 and estimates.min() > 0
    assert estimates.mean().item() == pytest.approx((x @ y).exp().item(), abs=4 * error)
    total = (x + y).square().sum()
    formula = (total.exp() * (2 * x @ y).exp() * (1 - (-total).exp())).item()  # Choromanski 2020
    assert estimates.var().item() == pytest.approx(formula, rel=0.1)


def test_a_product_law_in_n_d_and_c_cannot_be_fitted_and_has_no_floor():
    """Loss is proportional to N^-α · D^-β · C^-γ (chapter §1.6.4).
    It fails: with C = 6 N D two exponents can be told apart, not three; and real laws have a floor.
    """
    n, d = (grid.ravel() for grid in np.meshgrid(np.logspace(7, 11, 9), np.logspace(9, 12, 9)))
    logs = np.log(np.stack([np.full_like(n, math.e), n, d, 6 * n * d]))
    assert np.linalg.matrix_rank(logs) == 3, "a constant and two more"

    def loss(n):
        return 1.69 + 406.4 * n**-0.34  # Hoffmann 2022, data without end

    assert exponent(loss(2e7), loss(1e7), 2) > 5 * exponent(loss(2e11), loss(1e11), 2)


@pytest.mark.parametrize(("n", "times"), [(16, 4), (64, 1), (256, 1 / 4)])
def test_linear_attention_costs_less_only_beyond_a_length(n, times):
    """Linear attention trains fastest (chapter, exercise 1.14).
    It fails of the products: linear and softmax attention meet at n = the width of a head, here 64.
    """
    q, k, v = normal(3, n, 64)
    with FlopCounterMode(display=False) as of_linear:
        q @ (k.T @ v)
    with FlopCounterMode(display=False) as of_softmax:
        (q @ k.T) @ v
    assert of_linear.get_total_flops() == times * of_softmax.get_total_flops()
