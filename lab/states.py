"""Pre-rendered states of a figure with controls, for pages without Python.

A figure is drawn once for each combination of its controls' values. Where there are more than
`MOST` combinations, the controls with the most values keep fewer of them, evenly spaced.
"""

import base64
import itertools
import math

import numpy as np

TYPE = "application/vnd.transformer-lab.pictures+json"
MOST = 40  # the largest number of states of a figure, over all its controls


def prerendered(draw, widgets, most=MOST):
    """The states of a figure with `widgets`, {name: ipywidget}, as {TYPE: states} for a notebook.

    draw(**values) returns the bytes of a PNG, or None where there is nothing to show. The states
    are {"controls": [{"name", "values", "at"}], "states": [{"png"} or {"error"}]}, one for each
    combination of the controls' values; the last control varies fastest. "at" is the index of a
    control's present value. Where draw raises ValueError, its message is the error of the state.
    With fewer than two pictures, {} is returned.
    """
    options = {name: options_of(widget) for name, widget in widgets.items()}
    counts = {name: len(labels) for name, (labels, _, _) in options.items()}
    first = {name: at for name, (_, _, at) in options.items()}
    kept = thinned(counts, first, most)
    controls = []
    for name, places in kept.items():
        labels, _, at = options[name]
        words = (widgets[name].description or name).replace("_", " ")
        shown = [labels[place] for place in places]
        controls.append({"name": words, "values": shown, "at": places.index(at)})
    states = []
    for places in itertools.product(*kept.values()):
        chosen = zip(kept, places, strict=True)
        states.append(_state(draw, {name: options[name][1][place] for name, place in chosen}))
    if sum("png" in state for state in states) < 2:
        return {}
    return {TYPE: {"controls": controls, "states": states}}


def _state(draw, values):
    try:
        picture = draw(**values)
    except ValueError as error:
        return {"error": str(error)}
    if picture is None:
        return {"error": ""}
    return {"png": base64.b64encode(picture).decode()}


def options_of(widget):
    """(labels, values, index of the present value) of a control; free text has one value."""
    if hasattr(widget, "options"):
        pairs = [each if isinstance(each, tuple) else (str(each), each) for each in widget.options]
        return [label for label, _ in pairs], [value for _, value in pairs], widget.index
    if isinstance(widget.value, bool):
        return ["no", "yes"], [False, True], int(widget.value)
    if isinstance(widget.value, str) or not hasattr(widget, "min"):
        return [str(widget.value)], [widget.value], 0
    step = widget.step or 1
    count = round((widget.max - widget.min) / step) + 1
    values = [widget.min + i * step for i in range(count)]
    if hasattr(widget, "base"):  # the range of a logarithmic slider is given in exponents
        values = [widget.base**exponent for exponent in values]
    at = min(range(count), key=lambda i: abs(values[i] - widget.value))
    values[at] = widget.value
    return [f"{value:.4g}" for value in values], values, at


def thinned(counts, first, most):
    """{control: indices kept} of {control: number of values}, for at most `most` combinations.

    The indices are evenly spaced; those in `first`, {control: index}, are kept.
    """
    sizes = dict(counts)
    while math.prod(sizes.values()) > most:
        largest = max(sizes, key=sizes.get)
        sizes[largest] -= 1
    kept = {}
    for name, size in sizes.items():
        places = np.linspace(0, counts[name] - 1, size).round().astype(int)
        inner = places[1:-1] if size > 2 and 0 < first[name] < counts[name] - 1 else places
        inner[np.abs(inner - first[name]).argmin()] = first[name]
        kept[name] = sorted({int(place) for place in places})
    return kept
