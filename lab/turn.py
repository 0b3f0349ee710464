"""A lesson's "Your turn": a figure with controls that redraw it, or a button that runs a trial.

The rows of such a run equal those of a sweep of the same point. They are drawn and not stored: no
table, verdict or record holds them.
"""

import html
import re
import time
from functools import partial
from inspect import signature

import matplotlib.pyplot as plt
import pandas as pd

from lab import figures, states, trace
from lab.language import tr
from lab.trials import sweep
from lab.trials.points import points_of
from lab.trials.rng import preserve_rng
from lab.trials.rows import LABELS, of_body

prerendered = preserve_rng()(states.prerendered)


def play(plot, controls, *, headless=False, most=states.MOST):
    """(PNG of plot(**values) in the first state, output of sliders that redraw it).

    With `headless`, no sliders run: the output holds at most `most` states for the book.
    """
    draw = partial(picture, plot)
    widgets = widgets_of(controls)
    first = draw(**values_of(widgets))
    if headless:
        return first, prerendered(draw, widgets, most)
    return first, panel(lambda **values: (draw(**values), ""), widgets, first)._repr_mimebundle_()


def live(trial, draw, controls, *, button="", headless=False, most=states.MOST, **about):
    """(PNG of the first state, output of a panel whose button runs the trial); see Study.live.

    With `headless`, the output holds at most `most` states, drawn from stored trials. `about` are
    options of `Turn`.
    """
    turn = Turn(trial, draw, **about)
    widgets = widgets_of(controls)
    if headless:
        return turn.shown, prerendered(turn.stored, widgets, most)
    button = button or tr("Train now")
    return turn.shown, panel(turn.run, widgets, turn.shown, button)._repr_mimebundle_()


def panel(answer, widgets, first, button=""):
    """A VBox of controls above a PNG and a line of text.

    answer(**values) returns the (PNG, text). It is called when the button is clicked or, without a
    button, when a control moves. A training inside it moves a progress bar, and an interrupt of the
    kernel cancels it. The line shows an exception; without a button, the figure is then removed.

    ipywidgets' own `interactive` is not used: for its Output widget, nbclient sends messages to the
    kernel while a cell runs. The end of the cell is then sometimes lost, and papermill hangs.
    """
    from ipywidgets import HTML, Button, Image, IntProgress, VBox

    image = Image(value=first, layout={"max_width": "100%"})
    said = HTML()
    click = Button(description=button)
    bar = IntProgress(layout={"display": "none"})

    def step(number, steps):
        if steps:
            bar.value = 100 * number // steps  # whole percents, since each change is a message

    def update(_):
        click.disabled = True
        bar.value, bar.layout.display = 0, None
        try:
            with preserve_rng(), trace.watching(step):
                image.value, words = answer(**values_of(widgets))
        except KeyboardInterrupt:
            words = tr("cancelled")
        except Exception as error:
            words = one_line(error)
            image.value = image.value if button else b""
        said.value = html.escape(words)
        click.disabled = False
        bar.layout.display = "none"

    click.on_click(update)
    if not button:
        for widget in widgets.values():
            widget.observe(update, "value")
    below = [click, image, bar, said] if button else [image, said]
    return VBox([*widgets.values(), *below]).add_class("lab-turn")


class Turn:
    """Runs of a trial at points that a reader chooses.

    `draw(rows)` draws the rows of all its runs. `used` are the finished trials of sweeps
    (trials.sweep.Used): parameters on which all of them agree are the defaults. New seeds are
    larger than theirs and than those of the trial bodies `known`.
    """

    def __init__(self, trial, draw, *, point=None, used=(), known=(), device="auto"):
        self.trial, self.draw, self.point, self.device = trial, draw, point, device
        self.bodies = [each.body for each in used if each.trial.__name__ == trial.__name__]
        takes = signature(trial).parameters
        stored = [body["parameters"] for body in self.bodies]
        self.usual = common(stored, takes)
        seeds = [body["parameters"].get("seed", -1) for body in [*self.bodies, *known]]
        self.seed = 1 + max(seeds, default=-1) if "seed" in takes else None
        columns = list(stored[0] if stored else takes)
        for body in self.bodies:
            columns += body["columns"]
        self.rows = pd.DataFrame(columns=list(dict.fromkeys([*columns, *LABELS])))
        self.shown = picture(draw, self.rows)

    def stored(self, **values):
        """The PNG of the first stored trial at the values, with any seed, or None without one."""
        try:
            point = self.chosen(values) | {"seed": None}
        except Exception:  # a combination that the notebook has no point for
            return None
        for body in self.bodies:
            if body["parameters"] | {"seed": None} == point:
                rows = [body["parameters"] | row for row in of_body(body)]
                return picture(self.draw, pd.DataFrame(rows).reindex(columns=self.rows.columns))
        return None

    def chosen(self, values):
        """The full point for the values of the controls, with the next seed.

        Raises TypeError where a parameter is missing.
        """
        given = self.point(**values) if callable(self.point) else (self.point or {}) | values
        seed = {} if self.seed is None else {"seed": self.seed}
        (point,) = points_of(self.trial, [self.usual | seed | given])
        return point

    def run(self, **values):
        """Run the chosen point; returns (PNG of the rows of all runs, a line on this run)."""
        start = time.time()
        point = self.chosen(values)
        if self.seed is not None:
            self.seed += 1
        rows = sweep.run_once(self.trial, point, device=self.device)
        self.rows = pd.concat([self.rows, rows], ignore_index=True) if len(self.rows) else rows
        self.shown = picture(self.draw, self.rows)
        told = ", ".join(f"{name} {point[name]}" for name in values | {"seed": 0} if name in point)
        seconds = f"{time.time() - start:.1f}"
        return self.shown, tr("{point}: {seconds} s", point=told, seconds=seconds)


def common(points, takes):
    """{name: value} of the parameters in `takes` that have the same value in all points."""
    first = points[0] if points else {}
    return {
        name: value
        for name, value in first.items()
        if name in takes and all(each.get(name) == value for each in points)
    }


def picture(plot, *arguments, **values):
    """The PNG bytes of the figure that plot(*arguments, **values) makes; the figure is closed."""
    before = set(plt.get_fignums())
    try:
        return figures.png(figures.draw(lambda _: plot(*arguments, **values), None))
    finally:
        for number in set(plt.get_fignums()) - before:
            plt.close(number)


def widgets_of(controls):
    """{name: widget} of controls, which are widgets or abbreviations of ipywidgets' `interact`.

    Raises TypeError where a control is neither.
    """
    from ipywidgets import interactive

    widgets = {name: interactive.widget_from_abbrev(each) for name, each in controls.items()}
    for name, widget in widgets.items():
        if widget is None:
            kinds = "a widget, (low, high, step) or a list of choices"
            raise TypeError(f"{name}={controls[name]!r} is no control: {kinds}")
        widget.description = widget.description or name
    return widgets


def values_of(widgets):
    """{name: value} of widgets."""
    return {name: widget.value for name, widget in widgets.items()}


def one_line(error):
    """The message of an error in one line; for a pydantic error, each field with its reason."""
    words = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    if isinstance(error, sweep.TrialsFailed):
        words = error.failures[0][1]
    if refused := re.findall(r"(\S+)\n +(?:Value error, )?(.*) \[type=", words):
        words = "; ".join(f"{name}: {why}" for name, why in refused)
    return " ".join(words.split())
