"""Exact statements of the chapter (§1.6) about variants: verified, or corrected by a counterexample."""

import math

import numpy as np
import pytest
import torch
from helpers import config, normal
from torch.utils.flop_counter import FlopCounterMode

from lab.models import linear, sparse_masks
from lab.models.gpt import Mixer, Position


def exponent(a, b, times):
    """Scaling exponent of a quantity that grows from a to b when its argument grows by a factor of `times`."""
    return math.log(b / a) / math.log(times)


def receptive_field(masks):
    """Receptive field of the last output through layers with these masks (1, 1, n, n)."""
    visible = torch.eye(masks[0].shape[-1])[-1:]
    for mask in reversed(masks):
        visible = (visible @ mask[0, 0].float() > 0).float()
    return int(visible.sum())


def test_doubling_dilation_gives_an_exponential_receptive_field():
    """variants-dilated-field. "A causal dilated pattern has a receptive field growing exponentially
    with layers." (chapter §1.6.1, exercise 1.13)
    True if the dilation doubles per layer. With one dilation, L layers reach L + 1 positions.
    """

    def mask(dilation):  # two links: the token itself, and one `dilation` back
        return sparse_masks.Dilated(dilation=dilation, size=2).dense(256, 256)

    for layers in range(1, 8):
        assert receptive_field([mask(2**i) for i in range(layers)]) == 2**layers
        assert receptive_field([mask(2)] * layers) == layers + 1


def test_local_plus_strided_attention_has_n_sqrt_n_pairs():
    """variants-sparse-sqrt. "Sparse Transformer combines local and strided attention at O(n sqrt
    n)." (chapter §1.6.1)
    """
    pairs = {n: sparse_masks.Strided(stride=int(n**0.5)).edges(n) for n in (256, 1024, 4096)}
    assert exponent(pairs[1024], pairs[4096], 4) == pytest.approx(1.5, abs=0.05)
    two_hops = sparse_masks.Strided(stride=16).reach(256, 2)[0]
    assert two_hops.sum() == 256 * 257 // 2, "two hops must connect all causal pairs"


@pytest.mark.parametrize(("kind", "refused"), [("linformer", True), ("softmax", False)])
def test_linformer_rejects_lengths_above_its_context(kind, refused):
    """variants-linformer-fixed. "Linformer suits fixed-length settings." (chapter §1.6.3)
    It raises for lengths above its context.
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


def test_positive_features_are_unbiased_for_the_softmax_kernel():
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


def test_product_scaling_law_is_not_identifiable_and_lacks_irreducible_loss():
    """The chapter: loss is proportional to N^-α · D^-β · C^-γ (§1.6.4).
    False: with C = 6 N D only two exponents are identifiable, and real laws have an irreducible loss.
    """
    n, d = (grid.ravel() for grid in np.meshgrid(np.logspace(7, 11, 9), np.logspace(9, 12, 9)))
    logs = np.log(np.stack([np.full_like(n, math.e), n, d, 6 * n * d]))
    assert np.linalg.matrix_rank(logs) == 3, "a constant and two exponents"

    def loss(n):
        return 1.69 + 406.4 * n**-0.34  # Hoffmann 2022, infinite data

    assert exponent(loss(2e7), loss(1e7), 2) > 5 * exponent(loss(2e11), loss(1e11), 2)


@pytest.mark.parametrize(("n", "times"), [(16, 4), (64, 1), (256, 1 / 4)])
def test_linear_attention_is_cheaper_only_beyond_head_width(n, times):
    """The chapter: linear attention trains fastest (exercise 1.14).
    False for matmul FLOPs: linear and softmax attention break even at n = head width, here 64.
    """
    q, k, v = normal(3, n, 64)
    with FlopCounterMode(display=False) as of_linear:
        q @ (k.T @ v)
    with FlopCounterMode(display=False) as of_softmax:
        (q @ k.T) @ v
    assert of_linear.get_total_flops() == times * of_softmax.get_total_flops()
