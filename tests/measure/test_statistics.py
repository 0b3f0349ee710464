"""Intervals and effect sizes, compared with simulations, scipy and published values."""

from math import inf, isinf, isnan

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from lab.measure import statistics


def test_minimum_detectable_effect_has_80_percent_power():
    rng = np.random.default_rng(1)
    # Five differences with a sample std of exactly 1, so that the MDE is in units of the std.
    unit = rng.normal(size=5)
    unit = (unit - unit.mean()) / unit.std(ddof=1)
    mde = statistics.mean(unit).mde
    draws = rng.normal(mde, 1, size=(20_000, 5))
    error = draws.std(axis=1, ddof=1) / np.sqrt(5)
    significant = np.abs(draws.mean(axis=1) / error) > stats.t.ppf(0.975, 4)
    assert significant.mean() == pytest.approx(0.8, abs=0.01)


def test_noise_floor_is_the_mean_absolute_difference_of_repeated_runs():
    table = pd.DataFrame({"seed": [1, 1, 2, 2, 3, 3], "order": [0, 1, 1, 0, 0, 1], "loss": [2, 3, 4, 1, 5.0, 3]})
    assert statistics.noise_floor(table, "loss", "order") == statistics.mean([1, 3, 2])
    third = table[table.order == 0].assign(order=2, loss=lambda rows: rows.loss + 3)
    interval = statistics.noise_floor(pd.concat([table, third]), "loss", "order")
    assert interval == statistics.mean([(1 + 3 + 2) / 3, (3 + 3 + 0) / 3, (2 + 3 + 5) / 3])
    for wrong in (table[table.order == 0], table[:-1], pd.concat([table, table[:1]])):
        with pytest.raises(ValueError):
            statistics.noise_floor(wrong, "loss", "order")


@pytest.mark.filterwarnings("ignore:Precision loss")
@given(st.lists(st.tuples(*[st.floats(-1e3, 1e3)] * 2), min_size=3, max_size=12))
def test_paired_equals_scipy(pairs):
    a, b = np.array(pairs).T
    assume(not statistics.outcomes(a, b))
    ours = statistics.paired(a, b)
    theirs = stats.ttest_rel(a, b).confidence_interval()
    if not isnan(theirs.low):  # scipy has no interval for constant differences
        assert (ours.low, ours.high) == pytest.approx(tuple(theirs), rel=1e-7, abs=1e-7)


def test_paired_aligns_by_seed_and_rejects_mismatched_seeds():
    a = pd.Series([1.0, 2.0, 4.0], index=[0, 1, 2])
    b = pd.Series([3.0, 0.0, 1.0], index=[2, 0, 1])
    assert statistics.paired(a, b) == statistics.mean([1.0, 1.0, 1.0])
    for other in (b.rename({2: 0}), b.iloc[:2], b.to_numpy(), b.replace(0, np.nan)):
        with pytest.raises(ValueError):
            statistics.paired(a, other)
    with pytest.raises(ValueError, match="7"):
        statistics.paired(a, b.rename({2: 7}))
    with pytest.raises(ValueError, match="3 values.*2"):
        statistics.paired([1, 2, 3], [1, 2])


def test_one_seed_has_an_infinite_interval():
    for interval in (statistics.mean([2.0]), statistics.paired([3.0], [1.0])):
        assert (interval.effect, interval.low, interval.high, interval.n, interval.mde) == (
            2,
            -inf,
            inf,
            1,
            inf,
        )
    quotient = statistics.ratio([6.0], [3.0])
    assert quotient.effect == pytest.approx(2) and (quotient.low, quotient.high) == (0, inf)


@pytest.mark.parametrize("values", [[], [1, np.nan], [1, inf], [[1, 2], [3, 4]], 3.0])
def test_invalid_values_raise(values):
    with pytest.raises(ValueError, match="values must be"):
        statistics.mean(values)


def test_ratio_is_the_geometric_mean_and_has_reciprocal_interval():
    rng = np.random.default_rng(2)
    b = rng.lognormal(size=8)
    a = b * rng.lognormal(0.5, 0.1, size=8)
    there, back = statistics.ratio(a, b), statistics.ratio(b, a)
    assert there.effect == pytest.approx(stats.gmean(a / b))
    assert (there.low, there.high) == pytest.approx((1 / back.high, 1 / back.low))
    assert there.mde > 1
    with pytest.raises(ValueError, match="b must be positive"):
        statistics.ratio([1, 2], [1, 0])


@pytest.mark.parametrize(
    "n, yes_a, yes_b, low, high",
    [  # Newcombe 1998, table II, method 10
        (10, 9, 3, 0.1705, 0.8090),
        (7, 6, 2, 0.0582, 0.8062),
        (10, 10, 0, 0.6075, 1.0),
        (10, 0, 0, -0.2775, 0.2775),
    ],
)
def test_share_difference_reproduces_newcombe_1998(n, yes_a, yes_b, low, high):
    a, b = (np.arange(n) < yes for yes in (yes_a, yes_b))
    interval = statistics.share_difference(a, b)
    assert (interval.effect, interval.n) == (pytest.approx((yes_a - yes_b) / n), n)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=5e-5)


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_share_has_the_wilson_interval(values):
    interval, test = statistics.share(values), stats.binomtest(sum(values), len(values))
    wilson = test.proportion_ci(method="wilson")
    assert (interval.low, interval.high) == pytest.approx((wilson.low, wilson.high), abs=1e-12)
    assert interval.n == len(values)
    assert 0 <= interval.low <= interval.effect <= interval.high <= 1


def test_paired_outcomes_use_the_share_interval():
    """For 5 of 5 against 0 of 5, a t interval would have width 0."""
    all_, none = [1.0] * 5, [0.0] * 5
    interval = statistics.paired(all_, none)
    assert (interval.effect, interval.low, interval.high) == pytest.approx((1, 0.3855, 1), abs=1e-4)
    assert interval == statistics.share_difference(all_, none) == statistics.paired([True] * 5, [False] * 5)
    assert statistics.paired([True] * 5, [True] * 5).high > 0.4, "equal outcomes must leave an interval"
    assert statistics.paired([0.0] * 5, [0.0] * 5).high == 0, "all-zero measures are not outcomes"
    assert statistics.enough(interval, 0.5) is None, "no t interval to plan from"
    a = pd.Series([1, 0, 1.0], index=[0, 1, 2])
    assert statistics.paired(a, a.iloc[::-1]).effect == 0
    with pytest.raises(ValueError, match="only in one"):
        statistics.paired(a, a.rename({2: 3}))
    for wrong in ([1.2, 0], [-0.1, 0.5]):
        with pytest.raises(ValueError, match="between 0 and 1"):
            statistics.share(wrong)


def simulated_shares(rng, share, runs=1, n=5):
    """Success rates of `n` seeds over `runs` each, with a random effect per seed."""
    rates = np.clip(share + rng.uniform(-1, 1, size=(n, 1)) * min(share, 1 - share), 0, 1)
    return (rng.random((n, runs)) < rates).mean(1)


@pytest.mark.parametrize("shares", [(0.9, 0.1), (0.5, 0.5), (1.0, 0.6)])
@pytest.mark.parametrize("runs", [1, 3])
def test_share_difference_interval_has_95_percent_coverage(shares, runs):
    rng, covered = np.random.default_rng(0), []
    for _ in range(600):
        interval = statistics.share_difference(*(simulated_shares(rng, share, runs) for share in shares))
        covered.append(interval.low <= shares[0] - shares[1] <= interval.high)
    assert np.mean(covered) > 0.93


def test_difference_of_differences_interval_has_95_percent_coverage():
    rng, shares, covered = np.random.default_rng(1), (0.9, 0.3, 0.8, 0.7), []
    for _ in range(600):
        interval = statistics.share_difference(*(simulated_shares(rng, share) for share in shares))
        covered.append(interval.low <= 0.6 - 0.1 <= interval.high)
    assert np.mean(covered) > 0.93
    one, zero = [1] * 5, [0] * 5
    interval, margin = statistics.share_difference(one, zero, one, one), 1 - statistics.share(one).low
    assert (interval.effect, interval.low, interval.high) == pytest.approx((1, 1 - np.sqrt(3) * margin, 1 + margin))
    with pytest.raises(ValueError, match="four"):
        statistics.share_difference(one, zero, one)


def test_change_is_relative_to_the_second_arm_per_seed():
    a, b = pd.Series([1.0, 3.0], index=[0, 1]), pd.Series([2.0, 2.0], index=[1, 0])
    logs = statistics.mean(np.log([0.5, 1.5]))
    interval = statistics.change(a, b)
    assert (interval.effect, interval.low, interval.high) == pytest.approx(
        tuple(np.expm1([logs.effect, logs.low, logs.high]))
    )
    for wrong in ([1.0, 0.0], [1.0, -1.0]):
        with pytest.raises(statistics.NotFinite):
            statistics.change(wrong, [1.0, 2.0])


def test_higher_confidence_level_widens_intervals():
    values, other = [0.3, 0.5, 0.9, 0.4], [0.4, 0.3, 0.5, 0.2]
    for interval in (statistics.mean, lambda x, level=0.95: statistics.change(x, other, level)):
        usual, strict = interval(values), interval(values, 0.99)
        assert strict.low < usual.low and usual.high < strict.high and strict.effect == usual.effect
    half = stats.t.ppf(0.995, 3) * np.std(values, ddof=1) / 2
    assert statistics.mean(values, 0.99).high == pytest.approx(np.mean(values) + half)
    assert statistics.share([1, 0, 1], 0.99).low < statistics.share([1, 0, 1]).low


def test_enough_repetitions_give_80_percent_power():
    rng = np.random.default_rng(5)
    pilot = statistics.Interval(1.0, *(1 + np.array([-1, 1]) * stats.t.ppf(0.975, 4) / np.sqrt(5)), 5, 1.0)
    n = statistics.enough(pilot, 0.0)  # mean 1, spread 1
    detected = [statistics.mean(rng.normal(1, 1, n)).low > 0 for _ in range(1000)]
    assert 0.76 < np.mean(detected) < 0.92 and n == 10


def test_clipped_interval():
    assert statistics.within(statistics.Interval(0.5, -0.1, 1.1, 3), 0, 1).high == 1


def test_slope_interval_coverage_and_degenerate_x():
    rng, x = np.random.default_rng(3), np.arange(6.0)
    fits = [statistics.slope(x, 2 * x + rng.normal(size=6)) for _ in range(2000)]
    assert np.mean([fit.low <= 2 <= fit.high for fit in fits]) == pytest.approx(0.95, abs=0.015)
    two = statistics.slope([0, 1], [5, 8])
    assert two.effect == pytest.approx(3) and isinf(two.low) and isinf(two.high)
    for x in ([1], [2, 2, 2]):
        with pytest.raises(ValueError, match="distinct"):
            statistics.slope(x, x)


@pytest.mark.parametrize("constant", [8.0, 0.1])
def test_exponent_of_a_constant_is_0_with_a_finite_interval(constant):
    interval = statistics.exponent([16, 32, 64], [constant] * 3)
    assert (interval.effect, interval.low, interval.high) == (0, 0, 0)


def test_exponent_of_a_power_law_over_points_or_seeds():
    rng, x = np.random.default_rng(4), np.array([4.0, 1.0, 2.0, 8.0])
    assert statistics.exponent(x, 3 * x**2).effect == pytest.approx(2)
    y = 3 * x**1.5 * rng.lognormal(0, 0.05, size=(6, 4))
    long = pd.DataFrame(y, columns=x).melt(ignore_index=False, var_name="x", value_name="y").reset_index(names="seed")
    interval, in_order = statistics.exponent(long.x, long.y, long.seed), np.argsort(x)
    slopes = [statistics.slope(np.log(x[in_order]), np.log(row[in_order])).effect for row in y]
    assert interval == statistics.mean(slopes)
    assert interval.n == 6 and interval.low < 1.5 < interval.high
    one = long[long.seed == 0]
    assert isinf(statistics.exponent(one.x, one.y, one.seed).high)
    with pytest.raises(ValueError, match="every seed"):
        statistics.exponent(long.x[1:], long.y[1:], long.seed[1:])
    with pytest.raises(ValueError, match="positive"):
        statistics.exponent([1, 2], [0, 1])
    with pytest.raises(ValueError, match="duplicate"):
        twice = pd.concat([one, one])
        statistics.exponent(twice.x, twice.y, twice.seed)
    with pytest.raises(ValueError, match="shape"):
        statistics.exponent([1, 2], [[1, 2]])
