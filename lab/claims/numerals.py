"""Numbers as they are printed: an effect with its interval in the words of its unit."""

from math import floor, inf, isfinite, log10

SHARES = {
    "relative change": "+",
    "share of heads": "",
    "share": "",
    "difference of shares": "+",
}  # units told in per cent, with their sign
SMALLEST, LARGEST = (
    1e-3,
    1e6,
)  # below the one, and from the other on, numbers are printed as 2.67e-15
DIGITS, MOST_DIGITS = 3, 6  # of the largest number; more than DIGITS where an interval is narrow


def effect_of(verdict):
    """The effect with its interval, in words; "" where nothing was measured."""
    return "" if verdict.effect != verdict.effect else in_words(verdict, verdict.unit)


def in_words(interval, unit=""):
    """An effect with its ends, if they are apart: "+3.46 % [+2.46 %, +4.46 %]", "0.12 [0.10,
    0.14]", "2.67e-15".
    """
    ends = (interval.low, interval.high) if interval.low == interval.low else ()
    effect, *ends = in_unit(interval.effect, *ends, unit=unit)
    return effect if set(ends) <= {effect} else f"{effect} [{', '.join(ends)}]"


def in_unit(*numbers, unit=""):
    """Numbers that are read together, of which the unit may be told in per cent."""
    if unit not in SHARES:
        return printed(numbers)
    return [f"{number} %" for number in printed([100 * x for x in numbers], SHARES[unit])]


def printed(numbers, sign=""):
    """Numbers that are read together, with as many decimals each, without the zeros at the end of
    all.

    Three digits of the largest, and no fewer than stand before the point; after an effect, two of
    half the interval where that is more. `sign` as in a format.
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
