"""Sliders that redraw a figure, and a button that runs a trial (ipywidgets).

Without a frontend, as under papermill, only the initial figure is shown, because an Output widget
can hang a kernel driven by nbclient.
"""

import itertools
from inspect import signature

import ipywidgets
import pandas as pd

from lab import charts, trials


def play(plot, controls, live):
    """Show plot(**values) with sliders if `live`, otherwise only the initial figure."""

    def redraw(**values):
        with charts.drawn(plot, **values) as figure:
            charts.show(charts.png(figure))

    if live:
        ipywidgets.interact(redraw, **controls)
    else:
        widget = ipywidgets.interactive.widget_from_abbrev
        redraw(**{name: widget(control).value for name, control in controls.items()})


def live(trial, draw, lines, controls, *, point=None, button="", device="auto", live=True):
    """If `live`, show a button that runs the trial and then draws all runs started so far.

    Otherwise call `draw` with an empty table. Study.live documents where the parameters of a run
    come from. Raises TypeError if a parameter is missing.
    """
    parameters = signature(trial).parameters
    common = shared([line["at"] for line in lines], parameters)
    seeds = itertools.count(1 + max((line["at"].get("seed", -1) for line in lines), default=-1))
    tables = []

    def run(**values):
        chosen = point(**values) if callable(point) else (point or {}) | values
        seed = {"seed": next(seeds)} if "seed" in parameters else {}
        (at,) = trials.points_of(trial, [common | seed | chosen])
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
    """{name: value} of the names that have the same value in all points."""
    first = points[0] if points else {}
    return {
        name: value
        for name, value in first.items()
        if name in names and all(each.get(name) == value for each in points)
    }
