"""Sliders that redraw a figure, and a button that runs a trial, by `interact` of ipywidgets.

Where no reader can move them, as under papermill, the first state of the figure is shown: an Output
widget in a kernel that nbclient drives can hang the run.
"""

import itertools
from inspect import signature

import ipywidgets
import pandas as pd

from lab import charts, trials


def play(plot, controls, live):
    """Show plot(**values): with sliders that redraw it if `live`, else in its first state."""

    def redraw(**values):
        with charts.drawn(plot, **values) as figure:
            charts.show(charts.png(figure))

    if live:
        ipywidgets.interact(redraw, **controls)
    else:
        made = {
            name: ipywidgets.interactive.widget_from_abbrev(each) for name, each in controls.items()
        }
        redraw(**{name: widget.value for name, widget in made.items()})


def live(trial, draw, lines, controls, *, point=None, button="", device="auto", live=True):
    """Show draw(rows) of all runs of a trial, with a button that adds one if `live`.

    A run has the parameters that the finished trials `lines` share, those of `point`, and a new
    seed; `lab.study` says more. Raises TypeError where a parameter is missing.
    """
    takes = signature(trial).parameters
    usual = shared([line["at"] for line in lines], takes)
    seeds = itertools.count(1 + max((line["at"].get("seed", -1) for line in lines), default=-1))
    tables = []

    def run(**values):
        chosen = point(**values) if callable(point) else (point or {}) | values
        seed = {"seed": next(seeds)} if "seed" in takes else {}
        (at,) = trials.points_of(trial, [usual | seed | chosen])
        outcome = trials.run(trial, at, device, timing=True)
        tables.append(trials.table(trial, [{"at": at} | outcome]))
        with charts.drawn(draw, pd.concat(tables, ignore_index=True)) as figure:
            charts.show(charts.png(figure))
        print(", ".join(f"{name} {at[name]}" for name in [*chosen, *seed]))

    if live:
        ipywidgets.interact_manual.options(manual_name=button)(run, **controls)
    else:
        with charts.drawn(draw, trials.table(trial, lines)[:0]) as figure:
            charts.show(charts.png(figure))


def shared(points, names):
    """{name: value} of those names that have one value in all points."""
    first = points[0] if points else {}
    return {
        name: value
        for name, value in first.items()
        if name in names and all(each.get(name) == value for each in points)
    }
