"""Intervals for small numbers of seeds.

Averages over seeds use Student's t, since bootstrap intervals are far too narrow below ten seeds.
Shares of runs that did something have intervals of their own, Wilson's and Newcombe's: of five runs
that all learn, t would say that all runs do. Non-finite input is an error: a diverged run is
counted, never averaged.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from math import inf, nan, sqrt

import numpy as np
import pandas as pd
from scipy import optimize, stats


class NotFinite(ValueError):
    """Some numbers are infinite or none."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval, in the unit of what was measured.

    `n` counts the repetitions behind it; `mde` is the smallest true effect that this design finds
    with power .8 (two-sided t test at 5 %, the observed spread taken as true); shares have none.
    """

    effect: float
    low: float
    high: float
    n: int
    mde: float = nan


def mean(values, level=0.95) -> Interval:
    """Mean of independent repetitions, Student t. One value alone has an infinite interval."""
    values = _numbers(values, "values")
    error = values.std(ddof=1) / sqrt(len(values)) if len(values) > 1 else inf
    return _student(values.mean(), error, len(values) - 1, len(values), level)


def paired(a, b, level=0.95) -> Interval:
    """Mean of a - b over seeds, Student t. Of `outcomes` it is `share_difference`.

    Two Series are aligned on their index, the seed; two plain sequences are taken as aligned
    already. ValueError if seeds or lengths differ, if a seed occurs twice, or if only one of the
    two is a Series.
    """
    yes_or_no = outcomes(a, b)
    a, b = _pairs(a, b, "a", "b")
    return share_difference(a, b, level=level) if yes_or_no else mean(a - b, level)


def change(a, b, level=0.95) -> Interval:
    """Relative change a / b - 1: geometric mean over seeds, Student t of the logarithms.

    a and b as in `paired`. NotFinite where a value is not positive.
    """
    a, b = _pairs(a, b, "a", "b")
    with np.errstate(divide="ignore", invalid="ignore"):  # mean() refuses what is not finite
        logs = mean(np.log(a) - np.log(b), level)
    with np.errstate(over="ignore"):
        ends = np.expm1([logs.effect, logs.low, logs.high, logs.mde])
    return Interval(*ends[:3].tolist(), logs.n, float(ends[3]))


def noise_floor(table, value, repeat, seed="seed") -> Interval:
    """How far runs of one arm lie apart that differ in `repeat` alone, as in the order of data.

    The mean over seeds of |difference| of `value` between two such runs (of more, between all
    pairs), Student t. Between arms a difference of this size is nothing. ValueError without two
    values of `repeat`, with seeds that lack one, and with two rows of the same run.
    """
    runs = table.pivot(index=seed, columns=repeat, values=value)
    if runs.shape[1] < 2 or runs.isna().any(axis=None):
        found = runs.to_dict()
        raise ValueError(f"every {seed} needs the same runs, two or more of {repeat!r}: {found}")
    return mean(np.mean([(runs[a] - runs[b]).abs() for a, b in combinations(runs, 2)], axis=0))


def ratio(a, b) -> Interval:
    """Geometric mean of a / b over seeds, Student t of the logarithms.

    Its null value is 1, and `mde` is a factor above 1.
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
    """How many repetitions would tell the mean from the bar with power .8, or None.

    Mean and spread are taken to stay as they are. None where not even `most` would, or where the
    interval, of shares or of one repetition, says nothing of the spread.
    """
    apart = abs(interval.effect - bar)
    if (
        interval.n < 2
        or np.isnan(interval.mde)
        or not np.isfinite(interval.high - interval.low)
        or apart == 0
    ):
        return None
    sd = (interval.high - interval.low) / 2 / stats.t.ppf(0.975, interval.n - 1) * sqrt(interval.n)
    return next(
        (n for n in range(2, most + 1) if _quantiles(n - 1)[1] * sd / sqrt(n) < apart), None
    )


def outcomes(*arms) -> bool:
    """Whether the values say yes or no: booleans, or numbers of which some are 0, all others 1.

    Where all are 1, or all 0, numbers do not tell: each may be a measure that came out so.
    """
    arms = [np.asarray(values) for values in arms]
    if any(values.dtype == bool for values in arms):
        return True
    return set(np.unique(np.concatenate([values.astype(float) for values in arms]))) == {0.0, 1.0}


def within(interval: Interval, least: float, most: float) -> Interval:
    """The interval, cut where its values must end."""
    return replace(interval, low=max(interval.low, least), high=min(interval.high, most))


def widened(interval: Interval, level: float, logarithmic=False) -> Interval:
    """The 95 % interval at another level; `logarithmic` that of a change, averaged on logarithms.

    Student t with n - 1 degrees of freedom.
    """
    if interval.n < 2:
        return interval
    bounds = stats.t.ppf([1 - (1 - level) / 2, 0.975], interval.n - 1)
    ends = np.array([interval.effect, interval.low, interval.high])
    middle, low, high = np.log1p(ends) if logarithmic else ends
    low = middle - (middle - low) * bounds[0] / bounds[1]
    high = middle + (high - middle) * bounds[0] / bounds[1]
    if logarithmic:
        low, high = np.expm1([low, high])
    return replace(interval, low=float(low), high=float(high))


def exact_p(counts) -> float:
    """Two-sided p value of two shares, [[yes, no], [yes, no]]: Boschloo's exact test (1970)."""
    return float(stats.boschloo_exact(np.transpose(counts)).pvalue)


def share(values, level=0.95) -> Interval:
    """Mean of values between 0 and 1, one for each seed, with Wilson's interval (Wilson 1927).

    A value is the outcome of a seed, 0 or 1, or the share of its runs. `n` counts seeds, since runs
    of one seed are not independent. A seed's share spreads at most as an outcome of the same mean
    does, so its interval is, if anything, too wide.
    """
    values = _numbers(values, "values")
    if values.min() < 0 or values.max() > 1:
        raise ValueError(f"shares lie between 0 and 1, got {values.min():g} to {values.max():g}")
    p, n, z = float(values.mean()), len(values), float(stats.norm.ppf(0.5 + level / 2))
    middle, half = p + z**2 / (2 * n), z * sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    low, high = (
        max(0.0, (middle - half) / (1 + z**2 / n)),
        min(1.0, (middle + half) / (1 + z**2 / n)),
    )
    return Interval(p, min(low, p), max(high, p), n)


def share_difference(a, b, c=None, d=None, level=0.95) -> Interval:
    """Share of a minus that of b, or of four arms (a - b) - (c - d).

    The interval is Newcombe's (1998, method 10).
    Arms are values as in `share`, paired as in `paired`. Each arm's own Wilson interval says how
    far its share may be off; the squares of what speaks for a smaller (larger) difference are added
    (of four arms: Newcombe 2001). Arms count as independent: what their seeds have in common makes
    a difference more certain than this says.
    """
    arms = [arm for arm in (a, b, c, d) if arm is not None]
    if len(arms) == 3:
        raise ValueError("a difference of differences needs four arms")
    for name, arm in zip("bcd", arms[1:], strict=False):
        _pairs(a, arm, "a", name)
    signs = (1, -1, -1, 1)[: len(arms)]
    shares = [share(arm, level) for arm in arms]
    effect = sum(sign * each.effect for sign, each in zip(signs, shares, strict=True))
    less, more = 0.0, 0.0  # squares of what speaks for a smaller and for a larger difference
    for sign, each in zip(signs, shares, strict=True):
        below, above = (each.effect - each.low) ** 2, (each.high - each.effect) ** 2
        less += below if sign > 0 else above
        more += above if sign > 0 else below
    most = len(arms) / 2
    low, high = max(-most, effect - sqrt(less)), min(most, effect + sqrt(more))
    return Interval(effect, low, high, shares[0].n)


def slope(x, y) -> Interval:
    """Least-squares slope of y on x (unit of y per unit of x), t interval from the residuals.

    Two points leave no residual, so their interval is infinite. ValueError without two distinct x.
    """
    x, y = _pairs(x, y, "x", "y")
    if len(np.unique(x)) < 2:
        raise ValueError("a slope needs at least two distinct x")
    fit = stats.linregress(x, y)
    return _student(fit.slope, fit.stderr if len(x) > 2 else inf, len(x) - 2, len(x))


def exponent(x, y, seeds=None) -> Interval:
    """Exponent p of y ~ x^p, the slope on log-log axes.

    With one y for each x the interval comes from the residuals. Given `seeds`, a column beside long
    columns x and y, p is fitted for each seed and the t interval is over seeds. ValueError where a
    number is not positive, where a seed lacks an x, and where it has two y at one x.
    """
    x, y = _positive(_numbers(x, "x"), "x"), _positive(_numbers(y, "y"), "y")
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
    """(two-sided 5 % point of t, noncentrality that is found with power .8).

    The far tail, below 1e-6, is left out.
    """
    bound = float(stats.t.ppf(0.975, degrees))
    return bound, optimize.brentq(
        lambda shift: stats.nct.sf(bound, degrees, shift) - 0.8, 0.5, 2 * bound + 5
    )


def _student(effect, error, degrees, n, level=0.95):
    """The t interval of an effect with this standard error and these degrees of freedom."""
    effect, error = float(effect), float(error)
    if degrees < 1:
        return Interval(effect, -inf, inf, n, inf)
    shift = _quantiles(degrees)[1]
    bound = float(stats.t.ppf(0.5 + level / 2, degrees))
    return Interval(effect, effect - bound * error, effect + bound * error, n, shift * error)


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
    a, b = _numbers(a, name_a), _numbers(b, name_b)
    if len(a) != len(b):
        raise ValueError(f"{name_a} has {len(a)} values, {name_b} has {len(b)}")
    return a, b
