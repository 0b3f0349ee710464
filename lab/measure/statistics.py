"""Confidence intervals for small numbers of seeds.

Means over seeds have Student t intervals, because bootstrap intervals are far too narrow for fewer
than ten seeds. Proportions have Wilson and Newcombe intervals, because the t interval has width 0
if all of five runs learn. NaN and infinite values are errors: count diverged runs as failures
instead of averaging them.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from math import inf, nan, sqrt

import numpy as np
import pandas as pd
from scipy import special


class NotFinite(ValueError):
    """Raised for NaN and infinite values."""


@dataclass(frozen=True)
class Interval:
    """An estimate `effect` with its 95 % confidence interval low..high, in the unit of the values.

    `n` is the number of repetitions. `mde`, the minimum detectable effect, is the smallest true
    effect that a two-sided t test at 5 % would detect with power 0.8, given the observed spread;
    it is NaN for proportions.
    """

    effect: float
    low: float
    high: float
    n: int
    mde: float = nan


def mean(values, level=0.95) -> Interval:
    """Mean of independent repetitions, Student t interval (infinite for a single value)."""
    values = _numbers(values, "values")
    error = values.std(ddof=1) / sqrt(len(values)) if len(values) > 1 else inf
    return _student(values.mean(), error, len(values) - 1, len(values), level)


def paired(a, b, level=0.95) -> Interval:
    """Mean of a - b over seeds, Student t interval; `share_difference` if values are binary.

    Two Series are aligned by their index, the seed; other sequences must be in the same order.
    Raises ValueError if seeds or lengths differ, if a seed occurs twice, or if only one argument is
    a Series.
    """
    binary = outcomes(a, b)
    a, b = _pairs(a, b, "a", "b")
    return share_difference(a, b, level=level) if binary else mean(a - b, level)


def change(a, b, level=0.95) -> Interval:
    """Relative change a / b - 1: geometric mean over seeds, t interval of the log ratios.

    a and b are paired as in `paired`. Raises NotFinite if a value is not positive.
    """
    a, b = _pairs(a, b, "a", "b")
    with np.errstate(divide="ignore", invalid="ignore"):  # mean() raises NotFinite
        logs = mean(np.log(a) - np.log(b), level)
    with np.errstate(over="ignore"):
        ends = np.expm1([logs.effect, logs.low, logs.high, logs.mde])
    return Interval(*ends[:3].tolist(), logs.n, float(ends[3]))


def noise_floor(table, value, repeat, seed="seed") -> Interval:
    """Mean |difference| between runs of one arm that differ only in `repeat`, such as data order.

    The difference in the column `value` is averaged over all pairs of runs with the same seed, then
    over seeds, with a Student t interval. A difference between arms that is no larger than this is
    noise. Raises ValueError if there are fewer than two values of `repeat`, if a seed lacks one of
    them, or for duplicate runs.
    """
    runs = table.pivot(index=seed, columns=repeat, values=value)
    if runs.shape[1] < 2 or runs.isna().any(axis=None):
        found = runs.to_dict()
        raise ValueError(f"every {seed} needs the same runs, two or more of {repeat!r}: {found}")
    return mean(np.mean([(runs[a] - runs[b]).abs() for a, b in combinations(runs, 2)], axis=0))


def ratio(a, b) -> Interval:
    """Geometric mean of a / b over seeds, t interval of the log ratios.

    a and b are paired as in `paired`. A ratio of 1 means no effect; `mde` is a factor above 1.
    Raises ValueError if a value is not positive.
    """
    a, b = (
        _positive(values, name) for values, name in zip(_pairs(a, b, "a", "b"), "ab", strict=True)
    )
    logs = mean(np.log(a) - np.log(b))
    with np.errstate(over="ignore"):
        effect, low, high, mde = (
            float(np.exp(value)) for value in (logs.effect, logs.low, logs.high, logs.mde)
        )
    return Interval(effect, low, high, logs.n, mde)


def enough(interval: Interval, bar: float, most: int = 10_000) -> int | None:
    """Number of repetitions needed to distinguish the mean from `bar` with power 0.8, or None.

    Assumes that mean and spread stay the same. Returns None if more than `most` are needed, if the
    mean equals `bar`, or if the interval does not determine the spread, as for proportions and
    single repetitions.
    """
    apart = abs(interval.effect - bar)
    if (
        interval.n < 2
        or np.isnan(interval.mde)
        or not np.isfinite(interval.high - interval.low)
        or apart == 0
    ):
        return None
    sd = (
        (interval.high - interval.low)
        / 2
        / special.stdtrit(interval.n - 1, 0.975)
        * sqrt(interval.n)
    )
    return next(
        (n for n in range(2, most + 1) if _quantiles(n - 1)[1] * sd / sqrt(n) < apart), None
    )


def outcomes(*arms) -> bool:
    """Whether the arms are binary: one is boolean, or all values are 0 or 1 and both occur.

    Numbers that are all 0 or all 1 do not count, because any measure may have such values.
    """
    arms = [np.asarray(values) for values in arms]
    if any(values.dtype == bool for values in arms):
        return True
    return set(np.unique(np.concatenate([values.astype(float) for values in arms]))) == {0.0, 1.0}


def within(interval: Interval, least: float, most: float) -> Interval:
    """The interval with its limits clipped to least..most."""
    return replace(interval, low=max(interval.low, least), high=min(interval.high, most))


def share(values, level=0.95) -> Interval:
    """Mean of values in 0..1, one per seed, with Wilson's interval (Wilson 1927).

    A value is the outcome of a seed (0 or 1) or a proportion over its runs. `n` is the number of
    seeds, because runs of one seed are not independent. The interval is conservative for
    proportions, whose variance is at most that of binary outcomes with the same mean. Raises
    ValueError for values outside 0..1.
    """
    values = _numbers(values, "values")
    if values.min() < 0 or values.max() > 1:
        raise ValueError(f"shares lie between 0 and 1, got {values.min():g} to {values.max():g}")
    p = float(values.mean())
    n = len(values)
    z = float(special.ndtri(0.5 + level / 2))
    middle = p + z**2 / (2 * n)
    half = z * sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    low = max(0.0, (middle - half) / (1 + z**2 / n))
    high = min(1.0, (middle + half) / (1 + z**2 / n))
    return Interval(p, min(low, p), max(high, p), n)


def share_difference(a, b, c=None, d=None, level=0.95) -> Interval:
    """Difference a - b of two proportions, or (a - b) - (c - d) of four, with Newcombe's interval.

    Arms are values as in `share`, paired as in `paired`. The distance from the difference to each
    limit is the root of the summed squared distances between a proportion and its Wilson limit
    (Newcombe 1998, method 10; for four arms Newcombe 2001). The method assumes independent arms, so
    it is conservative for arms that share seeds. Raises ValueError for three arms.
    """
    arms = [arm for arm in (a, b, c, d) if arm is not None]
    if len(arms) == 3:
        raise ValueError("a difference of differences needs four arms")
    for name, arm in zip("bcd", arms[1:], strict=False):
        _pairs(a, arm, "a", name)
    signs = (1, -1, -1, 1)[: len(arms)]
    shares = [share(arm, level) for arm in arms]
    effect = sum(sign * each.effect for sign, each in zip(signs, shares, strict=True))
    less = more = 0.0  # squared distances to the lower and the upper limit
    for sign, each in zip(signs, shares, strict=True):
        below, above = (each.effect - each.low) ** 2, (each.high - each.effect) ** 2
        less += below if sign > 0 else above
        more += above if sign > 0 else below
    most = len(arms) / 2
    low = max(-most, effect - sqrt(less))
    high = min(most, effect + sqrt(more))
    return Interval(effect, low, high, shares[0].n)


def slope(x, y) -> Interval:
    """Least-squares slope of y on x (unit of y per unit of x), t interval from the residuals.

    The interval is infinite for two points, which leave no degree of freedom, and has width 0 for a
    constant y. Raises ValueError if there are fewer than two distinct x.
    """
    from scipy.stats import linregress

    x, y = _pairs(x, y, "x", "y")
    if len(np.unique(x)) < 2:
        raise ValueError("a slope needs at least two distinct x")
    fit = linregress(x, y)
    error = 0.0 if np.ptp(y) == 0 else fit.stderr  # stderr is NaN for a constant y
    return _student(fit.slope, error if len(x) > 2 else inf, len(x) - 2, len(x))


def exponent(x, y, seeds=None) -> Interval:
    """Exponent p of y ~ x^p: the slope on log-log axes, with a t interval.

    The interval comes from the residuals or, if `seeds` gives the seed of each point (x, y), from
    one fit per seed. Raises ValueError if a number is not positive, or unless every seed has one y
    at every x.
    """
    x = _positive(_numbers(x, "x"), "x")
    y = _positive(_numbers(y, "y"), "y")
    if seeds is None:
        return slope(np.log(x), np.log(y))
    table = pd.DataFrame({"x": x, "y": y, "seed": np.asarray(seeds)})
    wide = table.pivot(index="seed", columns="x", values="y")
    if wide.isna().any(axis=None):
        missing = wide.isna().sum().sum()
        raise ValueError(f"every seed needs a y at every x, but {missing} are missing")
    logs = np.log(wide.columns.to_numpy())
    return mean([slope(logs, np.log(row)).effect for row in wide.to_numpy()])


@lru_cache
def _quantiles(degrees):
    """(critical value of a two-sided t test at 5 %, noncentrality detected with power 0.8).

    Ignores detections in the wrong direction, whose probability is below 1e-6.
    """
    bound = float(special.stdtrit(degrees, 0.975))
    return bound, float(special.nctdtrinc(degrees, 0.2, bound))


def _student(effect, error, degrees, n, level=0.95):
    """t interval of an effect, given its standard error and the degrees of freedom."""
    effect = float(effect)
    error = float(error)
    if degrees < 1:
        return Interval(effect, -inf, inf, n, inf)
    bound = float(special.stdtrit(degrees, 0.5 + level / 2))
    mde = _quantiles(degrees)[1] * error
    return Interval(effect, effect - bound * error, effect + bound * error, n, mde)


def _numbers(values, name):
    values = np.asarray(values, dtype=float)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        finite = f"{np.isfinite(values).sum()} of {values.size}"
        wrong = NotFinite if values.ndim == 1 and values.size else ValueError
        found = f"shape {values.shape}, {finite} finite"
        raise wrong(f"{name} must be a non-empty list of finite numbers: {found}")
    return values


def _positive(values, name):
    if (values <= 0).any():
        raise ValueError(
            f"{name} must be positive to take logarithms, smallest is {values.min():g}"
        )
    return values


def _pairs(a, b, name_a, name_b):
    if isinstance(a, pd.Series) != isinstance(b, pd.Series):
        raise ValueError(f"{name_a} and {name_b} must both be Series indexed by seed, or neither")
    if isinstance(a, pd.Series):
        odd = list(a.index.symmetric_difference(b.index))
        if odd or not (a.index.is_unique and b.index.is_unique):
            raise ValueError(
                f"index {name_a} and {name_b} by the same seeds, once each; only in one: {odd}"
            )
        b = b.loc[a.index]
    a = _numbers(a, name_a)
    b = _numbers(b, name_b)
    if len(a) != len(b):
        raise ValueError(f"{name_a} has {len(a)} values, {name_b} has {len(b)}")
    return a, b
