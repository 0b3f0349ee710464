"""Every state of a figure with controls, as data that a page draws without Python.

A figure is drawn once for each combination of its controls' values, and what matplotlib would paint is read off in the
axes' own coordinates: lines, areas, pictures, words. Where the combinations are many, controls keep fewer of their
values, evenly spaced, their ends and the first state among them.
"""

import base64
import io
import itertools
import json
import re

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import colors
from matplotlib.category import StrCategoryLocator
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.ticker import FixedLocator, NullLocator
from PIL import Image

TYPE = "application/vnd.transformer-lab.states+json"
MOST = 160  # states of a figure
LARGEST = 400_000  # characters of all its states
POINTS = 160  # of a line, evenly spaced among those that it has


def states(draw, widgets, most=MOST):
    """{"controls", "pool", "states"} of the figure that draw(**values) returns, closed afterwards; {} where no control
    has two values. A state that draw refuses by a ValueError or has nothing to say on (None) is {"error": its words}.
    """
    controls = {name: values_of(widget) for name, widget in widgets.items()}
    kept = thinned({name: len(values) for name, (values, _) in controls.items()},
                   {name: at for name, (_, at) in controls.items()}, most)  # fmt: skip
    if all(len(places) < 2 for places in kept.values()):
        return {}
    found = {}
    for places in itertools.product(*kept.values()):
        chosen = {name: controls[name][0][place][1] for name, place in zip(kept, places, strict=True)}
        found[places] = _state(draw, chosen)
    while len(json.dumps(made := packed([found[places] for places in itertools.product(*kept.values())]))) > LARGEST:
        counts = {name: len(places) for name, places in kept.items()}
        first = {name: places.index(controls[name][1]) for name, places in kept.items()}
        fewer = thinned(counts, first, 0.8 * len(made["states"]))
        if fewer == {name: list(range(count)) for name, count in counts.items()}:
            break
        kept = {name: [kept[name][place] for place in places] for name, places in fewer.items()}
    made["controls"] = []
    for name, places in kept.items():
        labels, at = [controls[name][0][place][0] for place in places], places.index(controls[name][1])
        words = (widgets[name].description or name).replace("_", " ")
        listed = type(widgets[name]).__name__ in ("Dropdown", "Select", "RadioButtons", "ToggleButtons")
        made["controls"].append({"name": words, "values": labels, "at": at, "list": listed})
    return made


def packed(found):
    """States whose marks, and these marks' numbers, are places in one pool: what many share is kept once."""
    pool, places = [], {}

    def keep(value):
        key = json.dumps(value)
        if key not in places:
            places[key] = len(pool)
            pool.append(value)
        return places[key]

    def pooled(mark):
        return keep(mark | {side: keep(mark[side]) for side in "xy" if side in mark})

    def axes(each):
        return each | {"marks": [pooled(mark) for mark in each["marks"]]}

    kept = [state if "error" in state else state | {"axes": [axes(each) for each in state["axes"]]} for state in found]
    return {"pool": pool, "states": kept}


def values_of(widget):
    """([(label, value)] of a control, the place of its present one); a control of free text has the one it shows."""
    if hasattr(widget, "options"):
        found = [option if isinstance(option, tuple) else (str(option), option) for option in widget.options]
        return found, widget.index
    if isinstance(widget.value, bool):
        return [("no", False), ("yes", True)], int(widget.value)
    if isinstance(widget.value, str) or not hasattr(widget, "min"):
        return [(str(widget.value), widget.value)], 0
    steps = round((widget.max - widget.min) / (widget.step or 1))
    values = [widget.min + i * (widget.step or 1) for i in range(steps + 1)]
    if hasattr(widget, "base"):
        values = [widget.base**exponent for exponent in values]
    at = min(range(len(values)), key=lambda i: abs(values[i] - widget.value))
    values[at] = widget.value
    return [(f"{value:.4g}", value) for value in values], at


def thinned(counts, first, most):
    """{name: places kept} of {name: how many values}, at most `most` combinations; `first` are places that stay."""
    kept = dict(counts)
    while np.prod(list(kept.values()), dtype=float) > most and max(kept.values()) > 2:
        name = max(kept, key=kept.get)
        kept[name] -= max(1, kept[name] // 8)
    found = {}
    for name, count in counts.items():
        places = np.linspace(0, count - 1, kept[name]).round().astype(int)
        if len(places) > 1:
            inner = places[1:-1] if len(places) > 2 and 0 < first[name] < count - 1 else places
            inner[np.abs(inner - first[name]).argmin()] = first[name]
        found[name] = sorted({int(place) for place in places}) if len(places) > 1 else [first[name]]
    return found


def numbers(values):
    """A list of short numbers."""
    return [short(value) for value in np.asarray(values, dtype=float).ravel()]


def short(value):
    """A number with four digits, None where it is not finite."""
    if not np.isfinite(value):
        return None
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded == int(rounded) else rounded


def _state(draw, chosen):
    try:
        figure = draw(**chosen)
    except ValueError as error:
        return {"error": str(error)}
    try:
        return {"error": ""} if figure is None else read(figure)
    finally:
        plt.close(figure)


def read(figure):
    """The data of a figure."""
    shown = [axes for axes in figure.axes if axes.get_visible() and axes.get_label() != "<colorbar>"]
    columns = max((axes.get_subplotspec().get_gridspec().ncols for axes in shown if axes.get_subplotspec()), default=1)
    title = figure.get_suptitle()
    with np.errstate(over="ignore"):  # what lies far off a logarithmic axis has no number there
        read_axes = [_axes(axes, figure) for axes in shown]
    return {"title": plain(title), "columns": columns, "axes": read_axes}


def _axes(axes, figure):
    axes.get_xlim(), axes.get_ylim()  # settle what is scaled by the data
    drawn = [*axes.images, *axes.collections, *axes.patches, *axes.lines]
    marks = [mark for each in sorted(drawn, key=lambda each: each.get_zorder()) if each.get_visible()
             for mark in _marks(each, axes)]  # fmt: skip
    marks += [mark for text in axes.texts if text.get_text() and (mark := _text(text, axes, figure))]
    box = axes.get_window_extent()
    seen = {
        "title": plain("\n".join(filter(None, (axes.get_title(where) for where in ("left", "center", "right"))))),
        "x": _scale(axes.xaxis, axes.get_xlim()),
        "y": _scale(axes.yaxis, axes.get_ylim()),
        "square": axes.get_aspect() != "auto",
        "frame": axes.get_frame_on() and axes.axison,
        "high": short(box.height / box.width),
        "legend": _legend(axes.get_legend()),
    }
    return {**seen, "marks": marks}


def _scale(axis, limits):
    """What there is to say of an axis; ticks only where they were set by hand or are words."""
    made = {"label": plain(axis.get_label_text()), "limits": [short(limit) for limit in limits]}
    if axis.get_scale() == "log":
        made["log"] = int(axis.get_transform().base)
    if isinstance(axis.get_major_locator(), FixedLocator | NullLocator | StrCategoryLocator):
        places = axis.get_majorticklocs()
        inside = [min(limits) <= place <= max(limits) for place in places]
        words = axis.get_major_formatter().format_ticks(places)
        made["ticks"] = [[short(at), plain(word)] for at, word, here in zip(places, words, inside, strict=True) if here]
    return made


def _marks(drawn, axes):
    """The marks of one artist: a line (l), an area (a), dots (d) or a picture (p)."""

    def points(path, transform):
        return axes.transData.inverted().transform(transform.transform(path)).T

    def area(path, transform, face, edge):
        for polygon in path.to_polygons(transform, closed_only=False):
            x, y = axes.transData.inverted().transform(polygon).T
            yield {"k": "a", "x": numbers(x), "y": numbers(y), "c": _hex(face), "e": _hex(edge)}

    if drawn in axes.images:
        left, right, bottom, top = drawn.get_extent()
        yield {"k": "p", "x": numbers([left, right]), "y": numbers([bottom, top]), "p": _picture(drawn)}
    elif drawn in axes.lines:
        x, y = points(np.column_stack(drawn.get_data()).astype(float), drawn.get_transform())
        style, steps = drawn.get_linestyle(), drawn.get_drawstyle()
        if len(x) > POINTS:
            x, y = (values[np.linspace(0, len(x) - 1, POINTS).round().astype(int)] for values in (x, y))
        mark = {"k": "l", "x": numbers(x), "y": numbers(y), "c": _hex(drawn.get_color(), drawn.get_alpha())}
        mark["w"] = short(drawn.get_linewidth()) if style not in ("None", "", " ") else 0
        mark |= {"dash": style} if style in ("--", ":", "-.") else {}
        mark |= {"step": steps} if steps.startswith("steps") else {}
        if drawn.get_marker() not in ("None", "", " ", None):
            mark |= {"m": str(drawn.get_marker()), "s": short(drawn.get_markersize())}
        yield mark
    elif isinstance(drawn, PathCollection):
        x, y = points(np.asarray(drawn.get_offsets(), dtype=float), drawn.get_offset_transform())
        face, size = drawn.get_facecolors(), drawn.get_sizes()
        yield {"k": "l", "x": numbers(x), "y": numbers(y), "c": _hex(face[0] if len(face) else "k"), "w": 0,
               "m": "o", "s": short(np.sqrt(size[0])) if len(size) else 4}  # fmt: skip
    elif isinstance(drawn, LineCollection):
        for segment, color in zip(drawn.get_segments(), itertools.cycle(drawn.get_colors()), strict=False):
            x, y = points(segment, drawn.get_transform())
            yield {"k": "l", "x": numbers(x), "y": numbers(y), "c": _hex(color), "w": 1}
    elif isinstance(drawn, PolyCollection):
        faces = drawn.get_facecolors()
        for path, face in zip(drawn.get_paths(), itertools.cycle(faces), strict=False) if len(faces) else ():
            yield from area(path, drawn.get_transform(), face, "none")
    elif hasattr(drawn, "get_patch_transform"):
        face = drawn.get_facecolor() if drawn.get_fill() else "none"
        yield from area(drawn.get_path(), drawn.get_transform(), face, drawn.get_edgecolor())


def _picture(image):
    """A picture as a PNG of its cells."""
    cells = image.to_rgba(image.get_array(), bytes=True, norm=True)
    if image.origin == "lower":
        cells = cells[::-1]
    file, white = io.BytesIO(), Image.new("RGBA", cells.shape[1::-1], "white")
    shown = Image.alpha_composite(white, Image.fromarray(np.ascontiguousarray(cells))).convert("RGB")
    shown.quantize(24, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _text(text, axes, figure):
    """A word at its middle."""
    box = text.get_window_extent(figure.canvas.get_renderer())
    x, y = axes.transData.inverted().transform(((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2))
    at = [short(x), short(y)]
    mark = {"k": "t", "at": at, "t": plain(text.get_text()), "c": _hex(text.get_color()), "s": short(text.get_size())}
    return None if None in at else mark | ({"turn": short(text.get_rotation())} if text.get_rotation() else {})


def _legend(legend):
    """[[colour, dash or "" or "area", words]] of a legend."""
    found = []
    for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True) if legend else ():
        line = hasattr(handle, "get_linestyle") and hasattr(handle, "get_color")
        face = handle.get_color() if line else np.atleast_2d(handle.get_facecolor())[0]
        style = handle.get_linestyle() if line else "area"
        found.append([_hex(face), style if style in ("--", ":", "-.", "area") else "", plain(text.get_text())])
    return found


def _hex(color, alpha=None):
    """#rrggbbaa, "" for no colour."""
    if isinstance(color, np.ndarray) and not color.size:
        return ""
    r, g, b, a = colors.to_rgba(color, alpha)
    return colors.to_hex((r, g, b, a), keep_alpha=a < 1) if a else ""


def plain(text):
    """A text without the signs of mathematics that matplotlib sets."""
    return re.sub(r"\$([^$]*)\$", lambda found: re.sub(r"[{}]|\\mathrm|\\mathdefault|\\", "", found[1]), text)
