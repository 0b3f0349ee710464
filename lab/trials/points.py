"""The points of a sweep: the full parameter dicts of a grid."""

import inspect
import itertools
import json
from collections.abc import Mapping
from inspect import Parameter, isfunction, signature

from lab.trials.rows import LABELS, plain_or_error

NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def points_of(trial, grid):
    """The parameter dicts of a grid, defaults included, after a round trip through JSON.

    `grid` is a mapping of parameters to lists of values, or a list of parameter dicts. Raises
    TypeError where a parameter is missing, unknown, reserved or no JSON value, and ValueError for
    an empty grid.
    """
    if not isfunction(trial) or trial.__name__ == "<lambda>":
        raise TypeError(f"a trial is a function written with def, not {trial!r}")
    if isinstance(grid, Mapping):
        axes = {name: _values(values) for name, values in grid.items()}
        points = [
            dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
        ]
        if empty := [name for name, values in axes.items() if not len(values)]:
            raise ValueError(
                f"the grid of {trial.__name__} has no value for {', '.join(map(repr, empty))}"
            )
    else:
        points = [dict(point) for point in grid]
    if not points:
        raise ValueError(f"the grid of {trial.__name__} is empty")
    return [_complete(trial, point) for point in points]


def _values(values):
    """The list of values of one parameter, where a single value is a list of one."""
    listed = isinstance(values, (list, tuple, range)) or type(values).__name__ == "ndarray"
    return list(values) if listed else [values]


def _complete(trial, point):
    takes = signature(trial).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    missing = [
        name
        for name, p in takes.items()
        if p.default is p.empty and p.kind in NAMED and name not in point
    ]
    unknown = [name for name in point if name not in takes and not open_ended]
    wrong = [f"{name!r} is missing" for name in missing] + [
        f"{name!r} is unknown" for name in unknown
    ]
    if wrong:
        raise TypeError(f"{trial.__name__}{signature(trial)}: parameter {', '.join(wrong)}")
    if taken := [name for name in takes if name in LABELS]:
        raise TypeError(
            f"{trial.__name__}: {', '.join(taken)} is a column that the sweep adds; "
            "give the parameter another name"
        )
    defaults = {
        name: p.default for name, p in takes.items() if p.kind in NAMED and name not in point
    }
    try:
        values = json.loads(json.dumps(point | defaults, default=plain_or_error))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the parameters of {trial.__name__} must be JSON values: {error}"
        ) from None
    numbers = {
        name: kind
        for name, kind in inspect.get_annotations(trial, eval_str=True).items()
        if kind in (int, float)
    }
    for name, kind in numbers.items():  # so that 1 and 1.0 are one trial
        if isinstance(values.get(name), (int, float)) and kind(values[name]) == values[name]:
            values[name] = kind(values[name])
    return values
