"""What is left of the softmax's gradient: an exact identity, a law for large scales, an expansion for small ones."""

import math

import numpy as np
import pytest
import torch

from lab.measure import statistics
from lab.measure.saturation import expected_maximum, saturated_trace, saturation


def rows(sigma, n, count, seed=0):
    return saturation(torch.full((count,), float(sigma)), n, torch.Generator().manual_seed(seed))


def test_a_row_is_what_autograd_finds():
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(1, 9, generator=torch.Generator().manual_seed(3), dtype=torch.float64)[0]
    (row,) = saturation([2.5], 9, generator).to_dict("records")
    jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(-1), 2.5 * z)
    p = (2.5 * z).softmax(-1)
    assert row["trace"] == pytest.approx(jacobian.trace().item())
    assert row["entropy"] == pytest.approx(torch.distributions.Categorical(p).entropy().item())
    assert (row["largest"], row["stein"]) == pytest.approx((p.max().item(), (p @ z).item() / 2.5))


@pytest.mark.parametrize("sigma", [0.3, 1, 4, 8, 16])
def test_trace_and_its_integral_by_parts_have_one_mean(sigma):
    table = rows(sigma, 128, 40_000)
    assert table.stein.mean() == pytest.approx(table.trace.mean(), rel=0.02)
    unlike = (table.trace - table.stein).std()
    assert unlike > 0.01 * table.trace.mean(), "they are equal in the mean only"


def widths_of(d_k, count, seed=0):
    """Lengths of queries d_k wide: given its query, a row of scores is normal with that standard deviation."""
    return torch.randn(count, d_k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).norm(dim=1)


def test_scores_of_queries_and_keys_are_rows_of_that_scale():
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(4_000, 1, 4, generator=generator), torch.randn(4_000, 4, 64, generator=generator)
    p = (q @ k).squeeze(1).softmax(-1)
    mine = saturation(widths_of(4, 20_000), 64, generator)
    assert mine.largest.mean() == pytest.approx(p.amax(-1).mean().item(), rel=0.03)
    assert mine.trace.mean() == pytest.approx(1 - p.square().sum(-1).mean().item(), rel=0.01)


@pytest.mark.parametrize(
    "d_k, entropy, largest, trace", [(4, 3.374, 0.216, 0.892), (16, 1.630, 0.532, 0.608), (64, 0.646, 0.775, 0.312)]
)
def test_known_values_for_128_keys(d_k, entropy, largest, trace):
    found = saturation(widths_of(d_k, 40_000), 128, torch.Generator().manual_seed(1)).mean()
    assert found[["entropy", "largest", "trace"]].tolist() == pytest.approx([entropy, largest, trace], rel=0.04)


def test_the_largest_of_n_normal_numbers():
    assert expected_maximum(2) == pytest.approx(1 / math.sqrt(math.pi))
    for n, value in ((5, 1.16296), (10, 1.53875), (100, 2.50759)):
        assert expected_maximum(n) == pytest.approx(value, abs=1e-5)


def test_large_scales_follow_the_law_in_the_mean_and_not_in_the_median():
    widths = np.array([64, 128, 256, 512, 1024])
    mean, median = [], []
    for d_k in widths:
        table = saturation(widths_of(int(d_k), 30_000), 128, torch.Generator().manual_seed(1))
        mean.append(table.trace.mean())
        median.append(table.trace.median())
    assert statistics.exponent(widths, mean).effect == pytest.approx(-0.5, abs=0.06)
    assert statistics.exponent(widths, median).effect < -1.5
    assert mean[-1] == pytest.approx(saturated_trace(32, 128), rel=0.08)


def test_small_scales_lose_half_the_variance_in_entropy():
    found = rows(0.1, 1024, 2_000).entropy.mean()
    assert math.log(1024) - found == pytest.approx(0.1**2 / 2, rel=0.02)


def test_blocks_change_nothing():
    one, many = (saturation([1.0] * 50, 8, torch.Generator().manual_seed(0), block=b) for b in (50, 25))
    assert np.allclose(one.trace.mean(), many.trace.mean(), atol=0.1) and len(one) == len(many) == 50
