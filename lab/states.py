"""Pre-rendered states of a figure with controls: what a page without Python shows.

A figure is drawn once for each combination of its controls' values. Where these are more than
`MOST`, the control with most values gives some up, evenly, until the combinations are that few.
"""

import base64
import itertools
import math

import numpy as np

TYPE = "application/vnd.transformer-lab.pictures+json"
MOST = 40  # states of a figure, over all its controls


def prerendered(draw, widgets, most=MOST):
    """The states of a figure with `widgets`, {name: ipywidget}, as {TYPE: states} for a notebook.

    draw(**values) returns the bytes of a PNG, or None where there is nothing to show. The states
    are {"controls": [{"name", "values", "at"}], "states": [{"png"} or {"error"}]}: every
    combination of the controls' values, the last control fastest; "at" is the place of a control's
    present value. A ValueError of draw is the error of its state. Fewer than two pictures are no
    states: {}.
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
    """(labels, values, place of the present one) of a control; free text has the one it shows."""
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
    if hasattr(widget, "base"):  # a logarithmic slider counts in exponents
        values = [widget.base**exponent for exponent in values]
    at = min(range(count), key=lambda i: abs(values[i] - widget.value))
    values[at] = widget.value
    return [f"{value:.4g}" for value in values], values, at


def thinned(counts, first, most):
    """{control: places kept} of {control: number of values}, at most `most` combinations.

    The places are evenly spaced; `first`, {control: place}, stays.
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
