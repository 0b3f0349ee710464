"""Constants of activation functions: exact values, with closed forms where there are some."""

import numpy as np
import pytest
import torch
from torch import nn

from lab.measure.functions import gaussian_moments, lowest, slope
from lab.models.gpt import FeedForward


def act(kind):
    return FeedForward.kinds[kind].activation()


@pytest.mark.parametrize(
    ("kind", "square", "slope_square"),
    [("relu", 0.5, 0.5), ("gelu", 0.42522, 0.45585), ("silu", 0.35578, 0.37948), ("relu2", 1.5, 2.0)],
)
def test_moments_under_a_gaussian(kind, square, slope_square):
    found = gaussian_moments(act(kind))
    assert found["square"] == pytest.approx(square, abs=1e-5)
    assert found["slope_square"] == pytest.approx(slope_square, abs=1e-5)


def test_moments_scale_with_the_spread_of_a_homogeneous_function():
    one, three = gaussian_moments(nn.ReLU()), gaussian_moments(nn.ReLU(), std=3.0)
    assert one["mean"] == pytest.approx((2 * np.pi) ** -0.5, abs=1e-8)
    assert three["square"] == pytest.approx(9 * one["square"], rel=1e-8)
    assert three["slope_square"] == pytest.approx(one["slope_square"], rel=1e-8)


@pytest.mark.parametrize(
    ("kind", "x", "least", "x_slope", "largest_slope"),
    [("gelu", -0.75179, -0.169971, 2**0.5, 1.128904), ("silu", -1.27846, -0.278465, 2.39936, 1.099839)],
)
def test_minima_and_steepest_slopes(kind, x, least, x_slope, largest_slope):
    assert lowest(act(kind), -6, 6) == pytest.approx((x, least), abs=1e-5)
    at, negative = lowest(lambda z: -slope(act(kind))(z), -6, 6)
    assert (at, -negative) == pytest.approx((x_slope, largest_slope), abs=1e-4)


def test_slopes_are_derivatives():
    x = torch.linspace(-3, 3, 50, dtype=torch.float64)
    s = torch.sigmoid(x)
    torch.testing.assert_close(slope(nn.SiLU())(x), s * (1 + x * (1 - s)))
    torch.testing.assert_close(slope(slope(torch.sin))(x), -torch.sin(x))
