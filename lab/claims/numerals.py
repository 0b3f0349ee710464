"""Numbers as text: an effect with its interval, in its unit."""

from math import floor, inf, isfinite, log10

SHARES = {  # units printed in percent, with the sign of their format
    "relative change": "+",
    "share of heads": "",
    "share": "",
    "difference of shares": "+",
}
SMALLEST, LARGEST = 1e-3, 1e6  # numbers outside are printed like 2.67e-15
DIGITS, MOST_DIGITS = 3, 6  # of the largest number; more than DIGITS where an interval is narrow


def effect_of(verdict):
    """The effect with its interval, in words; "" where nothing was measured."""
    return "" if verdict.effect != verdict.effect else in_words(verdict, verdict.unit)


def in_words(interval, unit=""):
    """An effect with its interval, such as "+3.46 % [+2.46 %, +4.46 %]" or "0.12 [0.10, 0.14]".

    Where the interval has no width, the effect alone, such as "2.67e-15".
    """
    ends = (interval.low, interval.high) if interval.low == interval.low else ()
    effect, *ends = in_unit(interval.effect, *ends, unit=unit)
    return effect if set(ends) <= {effect} else f"{effect} [{', '.join(ends)}]"


def in_unit(*numbers, unit=""):
    """[text] of numbers shown together, in percent for the units of `SHARES`."""
    if unit not in SHARES:
        return printed(numbers)
    return [f"{number} %" for number in printed([100 * x for x in numbers], SHARES[unit])]


def printed(numbers, sign=""):
    """[text] of numbers shown together: equally many decimals, without trailing zeros of all.

    The largest has three digits, or more where its integer part does. For an effect with its
    interval, half the width also has at least two digits. `sign` is that of a format.
    """
    largest = max((abs(x) for x in numbers if isfinite(x)), default=0) or 1
    head, half = floor(log10(largest)), (numbers[-1] - numbers[1]) / 2 if len(numbers) == 3 else 0
    decimals = max(DIGITS - 1 - head, 1 - floor(log10(half)) if 0 < half < inf else -inf)
    decimals = min(decimals, MOST_DIGITS - 1 - head)
    if SMALLEST <= largest < LARGEST:
        decimals = max(decimals, 0)
        told = [f"{round(x, decimals) + 0.0:{sign}.{decimals}f}" for x in numbers]  # + 0.0: no "-0"
    else:
        told = [f"{x:{sign}.{head + decimals}e}" for x in numbers]
    told = [number.partition("e") for number in told]
    while all("." in digits and digits.endswith(("0", ".")) for digits, *_ in told):
        told = [(digits[:-1], *exponent) for digits, *exponent in told]
    return [
        "0" if x == 0 else f"{digits}{e}{exponent and int(exponent)}"
        for x, (digits, e, exponent) in zip(numbers, told, strict=True)
    ]
