"""Controls of a notebook: sliders that redraw a figure, and a button that runs a trial.

They are `interact` and `interact_manual` of ipywidgets. Where no reader can move them, as under
papermill, the first state of the figure is shown: an Output widget in a kernel that nbclient
drives can hang the run.
"""

import os
from inspect import signature

import ipywidgets
import pandas as pd

from lab import figures
from lab.trials import sweep
from lab.trials.points import points_of
from lab.trials.rng import preserve_rng
from lab.trials.rows import LABELS

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

    `bodies` are finished trials of sweeps: parameters that they share are the defaults. `seed` is
    the seed of the next run; each run takes a new one.
    """

    def __init__(self, trial, draw, bodies, seed, device="auto"):
        self.trial, self.draw, self.seed, self.device = trial, draw, seed, device
        self.takes = signature(trial).parameters
        stored = [body["parameters"] for body in bodies]
        self.usual = shared(stored, self.takes)
        columns = list(stored[0] if stored else self.takes)
        for body in bodies:
            columns += body["columns"]
        self.rows = pd.DataFrame(columns=list(dict.fromkeys([*columns, *LABELS])))

    def show(self):
        """Show the figure of all runs."""
        figures.show(figures.picture(self.draw, self.rows))

    def run(self, chosen):
        """Run the trial at the chosen parameters, on top of the defaults, and show all runs.

        Raises TypeError where a parameter is missing.
        """
        seed = {"seed": self.seed} if "seed" in self.takes else {}
        (point,) = points_of(self.trial, [self.usual | seed | chosen])
        self.seed += 1
        with preserve_rng():
            row = sweep.run_once(self.trial, point, device=self.device)
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
