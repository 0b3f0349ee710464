"""Rows of trials as JSON: the results that a trial may return, and equal text for equal values."""

import hashlib
import json
import math
from collections.abc import Mapping

LABELS = ("device", "torch", "threads", "seconds")  # columns that a sweep adds to every row
INFINITE = "\x00infinity"  # JSON has no infinity, but 1e999 is read as one


def canonical(value):
    """The JSON text of a value, the same for equal values.

    Raises TypeError where JSON cannot hold the value.
    """
    return json.dumps(value, sort_keys=True, default=plain_or_error)


def key(value):
    """The first 16 hex digits of the sha256 of a value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]


def plain(value):
    """The Python number of a numpy scalar; any other value unchanged."""
    import numpy

    return value.item() if isinstance(value, numpy.generic) else value


def plain_or_error(value):
    """The Python number of a numpy scalar, for `json.dumps(default=...)`.

    Raises TypeError for any other value.
    """
    if (number := plain(value)) is value:
        raise TypeError(f"{value!r} is a {type(value).__name__}")
    return number


def encoded(value):
    """One line of JSON: floats by repr, NaN as null, infinities as ±1e999."""
    text = json.dumps(
        _finite(value), ensure_ascii=False, separators=(",", ":"), default=plain_or_error
    )
    infinite = json.dumps(INFINITE)[1:-1]
    return text.replace(f'"{infinite}"', "1e999").replace(f'"-{infinite}"', "-1e999")


def _finite(x):
    if isinstance(x, dict):
        return {name: _finite(each) for name, each in x.items()}
    if isinstance(x, list):
        return [_finite(each) for each in x]
    if isinstance(x, float) and math.isnan(x):
        return None
    if isinstance(x, float) and math.isinf(x):
        return INFINITE if x > 0 else f"-{INFINITE}"
    return x


def checked(result, parameters):
    """The list of rows, each a dict, that a trial returned.

    Raises TypeError where the result is not made of rows, where a row holds other values than
    numbers, words, booleans and None, or where it has the name of a parameter or label.
    """
    import pandas

    if isinstance(result, pandas.DataFrame):
        result = result.to_dict("records")
    found = [result] if isinstance(result, Mapping) else result
    if not isinstance(found, list) or not all(isinstance(row, Mapping) for row in found):
        raise TypeError(f"a trial returns a dict, a list of dicts or a DataFrame, not {result!r}")
    return [_row(row, parameters) for row in found]


def _row(row, parameters):
    row = {name: plain(value) for name, value in row.items()}
    if taken := [name for name in row if name in parameters or name in LABELS]:
        raise TypeError(
            f"the table has its own column {', '.join(taken)}: give the row's value another name"
        )
    if odd := {
        name: value
        for name, value in row.items()
        if not isinstance(value, (str, int, float, type(None)))
    }:
        raise TypeError(f"a row holds numbers, words, True, False and None, not {odd}")
    return row


def columns(rows):
    """{name: column} of rows; a column is a list where values differ, else the shared value."""
    names = dict.fromkeys(name for row in rows for name in row)
    listed = {name: [row.get(name) for row in rows] for name in names}
    return {
        name: values[0] if len(set(map(repr, values))) == 1 else values
        for name, values in listed.items()
    }


def of_body(body):
    """The rows of a finished trial."""
    filled = {}
    for name, values in body["columns"].items():
        filled[name] = values if isinstance(values, list) else [values] * body["n"]
    if not filled:
        return [{}] * body["n"]
    return [dict(zip(filled, row, strict=True)) for row in zip(*filled.values(), strict=True)]


def table(points, bodies):
    """A DataFrame with the rows of all trials; its columns are parameters, values and labels."""
    import pandas

    found = []
    for point, body in zip(points, bodies, strict=True):
        labels = {name: body[name] for name in LABELS}
        found += [point | row | labels for row in of_body(body)]
    names = dict.fromkeys(name for point in points for name in point)
    names |= dict.fromkeys(name for body in bodies for name in body["columns"])
    made = pandas.DataFrame(found, columns=[*names, *LABELS])
    for name in made.select_dtypes(object):  # columns of numbers may have missing ones
        if all(value is None or isinstance(value, float) for value in made[name]):
            made[name] = made[name].astype(float)
    made.attrs["core_seconds"] = sum(body["seconds"] for body in bodies)
    return made
