"""Sparsemax: definition, optimality condition and numerical gradient."""

import math

import pytest
import torch
from helpers import close, randn

from lab.models.scores import sparsemax


@pytest.mark.parametrize("spread", [0.01, 0.3, 1.0, 30.0])
@pytest.mark.parametrize("k", [1, 2, 17])
def test_sparsemax_is_a_projection_onto_the_simplex(k, spread):
    scores = spread * randn(50, k, dtype=torch.float64)
    p = sparsemax(scores)
    close(p.sum(-1), torch.ones(50, dtype=torch.float64), 1e-12)
    assert (p >= 0).all()
    threshold = torch.where(p > 0, scores - p, math.inf).amin(-1, keepdim=True)
    close(p, (scores - threshold).clamp(min=0), 1e-12)  # optimality condition of the projection
    if k == 17 and spread >= 0.3:
        assert (p == 0).any() and (p.softmax(-1) > 0).all()


def test_sparsemax_of_two_scores_is_a_clipped_ramp():
    t = torch.linspace(-2, 2, 41)
    p = sparsemax(torch.stack([t, torch.zeros(41)], -1))
    close(p[:, 0], ((t + 1) / 2).clamp(0, 1))


def test_sparsemax_gradient_matches_finite_differences():
    assert torch.autograd.gradcheck(sparsemax, (randn(3, 5, dtype=torch.float64).requires_grad_(),))


@pytest.mark.parametrize("size", [1.0, 1e30])
def test_masked_sparsemax_equals_sparsemax_of_unmasked_scores(size):
    scores, mask = size * randn(30, 9), torch.rand(30, 9, generator=torch.Generator().manual_seed(0)) < 0.5
    mask[0] = False
    p = sparsemax(scores, mask)
    assert not p[0].any() and not p[~mask].any()
    for row, kept, got in zip(scores[1:], mask[1:], p[1:], strict=True):
        if kept.any():
            close(got[kept], sparsemax(row[kept]))
