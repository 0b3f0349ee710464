"""Controls of a notebook: sliders that redraw a figure, and a button that runs a trial.

They are `interact` and `interact_manual` of ipywidgets. Where no reader can move them, as under
papermill, the first state of the figure is shown: an Output widget in a kernel that nbclient
drives can hang the run.
"""

import os
from inspect import signature

import ipywidgets
import pandas as pd

from lab import figures, trials
from lab.state import preserve_rng

LIVE = ("JPY_SESSION_NAME", "VSCODE_PID")  # JupyterLab and VS Code give their kernels one of these


def is_live():
    """Whether a reader can move a slider of this kernel."""
    return any(name in os.environ for name in LIVE)


def first_values(controls):
    """{name: value} of the first state of controls.

    A control is an ipywidget or an abbreviation of `interact`. Raises TypeError for anything else.
    """
    found = {}
    for name, control in controls.items():
        widget = ipywidgets.interactive.widget_from_abbrev(control)
        if widget is None:
            kinds = "a widget, (low, high, step) or a list of choices"
            raise TypeError(f"{name}={control!r} is no control: {kinds}")
        found[name] = widget.value
    return found


def play(plot, controls, live):
    """Show plot(**values): with sliders that redraw it if `live`, else in its first state."""

    def redraw(**values):
        with preserve_rng():
            figures.show(figures.picture(plot, **values))

    first = first_values(controls)
    if live:
        ipywidgets.interact(redraw, **controls)
    else:
        redraw(**first)


def shared(points, names):
    """{name: value} of those names that have one value in all points."""
    first = points[0] if points else {}
    return {
        name: value
        for name, value in first.items()
        if name in names and all(each.get(name) == value for each in points)
    }


class Runs:
    """The runs of a trial that a button starts: `rows` of all of them, drawn by draw(rows).

    `lines` are finished trials of sweeps: parameters that they share are the defaults. Each run
    takes a new seed.
    """

    def __init__(self, trial, draw, lines, device="auto"):
        self.trial, self.draw, self.device = trial, draw, device
        self.takes = signature(trial).parameters
        self.usual = shared([line["at"] for line in lines], self.takes)
        self.seed = 1 + max((line["at"].get("seed", -1) for line in lines), default=-1)
        self.rows = trials.table(trial, lines)[:0]

    def show(self):
        """Show the figure of all runs."""
        figures.show(figures.picture(self.draw, self.rows))

    def run(self, chosen):
        """Run the trial at the chosen parameters, on top of the defaults, and show all runs.

        Raises TypeError where a parameter is missing.
        """
        seed = {"seed": self.seed} if "seed" in self.takes else {}
        (point,) = trials.points_of(self.trial, [self.usual | seed | chosen])
        self.seed += 1
        with preserve_rng():
            outcome = trials.run(self.trial, point, self.device, timing=True)
            row = trials.table(self.trial, [{"at": point} | outcome])
            self.rows = pd.concat([self.rows, row], ignore_index=True) if len(self.rows) else row
            self.show()
        print(", ".join(f"{name} {point[name]}" for name in [*chosen, *seed]))


def point_of(point, values):
    """The parameters that the values of controls stand for: point(**values), or both dicts."""
    return point(**values) if callable(point) else (point or {}) | values


def live(runs, controls, point, button, live):
    """Show the runs, with controls and a button that adds a run if `live`."""

    def run(**values):
        runs.run(point_of(point, values))

    first_values(controls)
    if live:
        ipywidgets.interact_manual.options(manual_name=button)(run, **controls)
    else:
        runs.show()
