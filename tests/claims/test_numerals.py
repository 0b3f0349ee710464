"""Numbers as they are printed: three digits, or those that the width of an interval warrants; shares in per cent."""

from math import inf, nan

import pytest

from lab.claims.numerals import effect_of, in_unit, in_words, printed
from lab.measure.statistics import Interval


@pytest.mark.parametrize("number, said", [
    (0.0, "0"), (-0.0, "0"), (1.0, "1"), (0.5, "0.5"), (0.88376, "0.884"), (-53.419, "-53.4"), (9.996, "10"),
    (1234.6, "1235"), (786432, "786432"), (7864320, "7.86e6"), (0.0012345, "0.00123"),
    (2.665e-15, "2.67e-15"), (1e-9, "1e-9"), (-4.732e-4, "-4.73e-4"), (inf, "inf"),
])  # fmt: skip
def test_an_exact_number_has_three_digits_and_all_before_its_point(number, said):
    assert printed([number]) == [said]
    assert in_words(Interval(number, nan, nan, 1)) == said


@pytest.mark.parametrize("effect, low, high, said", [
    (-0.258146, -0.286537, -0.229755, "-0.258 [-0.287, -0.230]"),
    (4.0, 3.0, 5.0, "4 [3, 5]"),
    (2.0, 1.5, 2.5, "2.0 [1.5, 2.5]"),
    (53.419, 41.2528, 65.5853, "53.4 [41.3, 65.6]"),
    (-0.000935, -0.015396, 0.013526, "-0.0009 [-0.0154, 0.0135]"),
    (0.0, -0.1, 0.1, "0 [-0.1, 0.1]"),
    (1.705, 1.70499, 1.70501, "1.70500 [1.70499, 1.70501]"),
    (6.8951e-05, 3.2352e-07, 1.3758e-4, "6.90e-5 [3.24e-7, 1.38e-4]"),
    (1.47, -inf, 3.0, "1.47 [-inf, 3.00]"),
    (0.0, 0.0, 0.0, "0"),
    (2.0, 2.0, 2.0, "2"),
    (0.5, 0.5 - 1e-12, 0.5 + 1e-12, "0.5"),
])  # fmt: skip
def test_an_interval_has_the_digits_that_its_width_warrants(effect, low, high, said):
    assert in_words(Interval(effect, low, high, 5)) == said


def test_shares_are_told_in_per_cent():
    assert in_words(Interval(0.0346, 0.0246, 0.0446, 5), "relative change") == "+3.46 % [+2.46 %, +4.46 %]"
    assert in_words(Interval(0.15, nan, nan, 1), "share") == "15 %"
    assert in_unit(0.005, unit="relative change") == ["+0.5 %"]


def test_where_nothing_was_measured_nothing_is_told():
    assert effect_of(Interval(nan, nan, nan, 0)) == ""
