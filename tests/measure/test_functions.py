"""Constants of activation functions: exact values, with closed forms where there are some."""

import pytest
import torch
from torch import nn

from lab.measure.functions import lowest, slope
from lab.models.gpt import FeedForward


def act(kind):
    return FeedForward.kinds[kind].activation()


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
