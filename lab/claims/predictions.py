"""Predictions typed as text, such as "mine - rotary > 0.05"."""

import re

from lab.names import near

FORM = re.compile(r"(.+?)\s*(>|<|=)\s*([-+]?[\d.]+(?:e[-+]?\d+)?)\s*(?:(?:±|\+-|\+/-)\s*([\d.]+))?")


def read_prediction(text, arms):
    """(first arm, second arm, direction, bar, tolerance) of "mine - rotary > 0.05".

    Raises ValueError where the text has another form or names an unknown arm.
    """
    found = FORM.fullmatch(text.strip())
    pairs = {f"{a} - {b}": (a, b) for a in arms for b in arms if a != b}
    if not found:
        raise ValueError(
            f"predict {text!r}: write such as {next(iter(pairs))!r} > 0.05, < 0 or = 0 ± 0.02"
        )
    said = re.sub(r"\s*[-−–]\s*", " - ", found[1]) if found[1] not in pairs else found[1]
    first, second = pairs[near(said, pairs, "predict: arms")]
    direction = {">": "above", "<": "below", "=": "equal"}[found[2]]
    if (direction == "equal") != bool(found[4]):
        raise ValueError(f"predict {text!r}: a tolerance goes with =, such as = 0 ± 0.02")
    return first, second, direction, float(found[3]), float(found[4] or 0)


def comparison_of(direction, threshold, tolerance=0.0):
    """The fields of a part that say "> threshold", "< threshold" or "= threshold ± tolerance"."""
    if direction == "equal":
        return {"direction": "equal", "value": threshold, "bar": tolerance}
    towards = threshold if direction == "above" else -threshold
    if towards >= 0:
        return {"direction": direction, "bar": towards}
    opposite = {"above": "not below", "below": "not above"}[direction]
    return {"direction": opposite, "bar": -towards}


def asked_in_words(asked):
    """The text of a prediction that `read_prediction` returned."""
    first, second, direction, bar, tolerance = asked
    sign = {"above": ">", "below": "<", "equal": "="}[direction]
    return f"{first} - {second} {sign} {bar:g}" + (f" ± {tolerance:g}" if tolerance else "")
