"""A lesson's "Your turn": sliders that redraw a figure, and a trial that a reader runs at once.

A run takes a thread, so the page stays alive. Cells that are started meanwhile wait for its end: the
random numbers of a trial are drawn from the generators of the process. Its rows are those of a sweep
of the same point. They are drawn and forgotten: no table, verdict or record holds them.
"""

import html
import threading
import time
from functools import partial
from inspect import signature

import matplotlib.pyplot as plt
import pandas as pd
from IPython import get_ipython
from pydantic import ValidationError

from lab import figures, states, trace
from lab.language import tr
from lab.trials import sweep
from lab.trials.points import points_of
from lab.trials.rng import preserve_rng
from lab.trials.rows import LABELS, of_body

OFTEN = 0.1  # seconds between two signs of progress
_drawing = threading.RLock()  # pyplot serves one thread at a time


def play(plot, controls, *, headless=False, most=states.MOST):
    """(PNG of plot(**values) in the first state, output of sliders that redraw it).

    Headless, where no sliders run, the output holds at most so many states, for the book's page.
    """
    widgets = widgets_of(controls)
    draw = partial(picture, plot)
    first = draw(**values_of(widgets))
    if headless:
        return first, _prerendered(draw, widgets, most)
    return first, sliders(draw, widgets)._repr_mimebundle_()


def sliders(draw, widgets):
    """Controls above the picture that draw(**values) gives; an exception stands in its place."""
    from ipywidgets import interactive

    def shown(**values):
        figures.show(draw(**values))

    return interactive(shown, **widgets)


def live(
    trial,
    draw,
    controls,
    *,
    point=None,
    button="",
    used=(),
    known=(),
    device="auto",
    headless=False,
    most=states.MOST,
):
    """(PNG of the first state, output of a panel whose button runs the trial); see Study.live.

    Headless, the output holds the figure with what is stored for the values of the controls.
    """
    turn = Turn(trial, draw, controls, point=point, used=used, known=known, device=device)
    if headless:
        return turn.first, _prerendered(turn.stored, turn.widgets, most)
    return turn.first, turn.panel(button)._repr_mimebundle_()


def _prerendered(draw, widgets, most):
    with preserve_rng():
        return states.prerendered(draw, widgets, most)


class Turn:
    """The trial at points that a reader chooses, run on a thread, one at a time.

    `draw(rows)` draws the rows of all its runs. `used` are the sweeps' finished trials
    (trials.sweep.Used): their values are the usual ones, where they agree, and no seed of theirs,
    nor of the bodies `known`, is used again.
    """

    def __init__(self, trial, draw, controls, *, point=None, used=(), known=(), device="auto"):
        self.trial, self.draw, self.point, self.device = trial, draw, point, device
        self.widgets = widgets_of(controls)
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
        self.first = picture(draw, self.rows)
        self.thread, self._cancelled = None, threading.Event()

    def panel(self, button=""):
        """The controls, the buttons with the progress beside them, and the figure."""
        from ipywidgets import HTML, Button, FloatProgress, HBox, Image, VBox

        self.train = Button(description=button or tr("Train now"), button_style="primary")
        self.stop = Button(description=tr("Cancel"), disabled=True)
        self.bar, self.said = FloatProgress(min=0.0, max=1.0), HTML()
        self.image = Image(value=self.first, format="png")
        self.train.on_click(lambda _: self.start())
        self.stop.on_click(lambda _: self._cancelled.set())
        buttons = HBox([self.train, self.stop, self.bar, self.said])
        return VBox([*self.widgets.values(), buttons, self.image], _dom_classes=["lab-turn"])

    def stored(self, **values):
        """PNG of the rows of the first stored trial of the values, whatever its seed, or None."""
        try:
            point = self.chosen(values) | {"seed": None}
        except Exception:  # a combination that the notebook has no point for
            return None
        for body in self.bodies:
            if body["parameters"] | {"seed": None} == point:
                rows = [body["parameters"] | row for row in of_body(body)]
                return picture(self.draw, pd.DataFrame(rows).reindex(columns=self.rows.columns))
        return None

    def chosen(self, values=None):
        """The full point that values, or the controls, ask for, with the next seed.

        TypeError where a parameter is missing.
        """
        values = values or values_of(self.widgets)
        given = self.point(**values) if callable(self.point) else (self.point or {}) | values
        seed = {} if self.seed is None else {"seed": self.seed}
        (point,) = points_of(self.trial, [self.usual | seed | given])
        return point

    def start(self):
        """Begin a run of the chosen point, unless one is under way."""
        if self.train.disabled:
            return
        try:
            point = self.chosen()
        except Exception as error:
            self.said.value = html.escape(one_line(error))
            return
        if self.seed is not None:
            self.seed += 1
        self._cancelled.clear()
        self.train.disabled, self.stop.disabled = True, False
        self.bar.value, self.said.value = 0.0, tr("starting")
        self.thread = threading.Thread(target=self._run, args=(point,), daemon=True)
        if shell := get_ipython():
            shell.events.register("pre_run_cell", self._wait)
        self.thread.start()

    def _wait(self, *_):
        """Until the run has ended; an interrupt of the kernel cancels it."""
        try:
            self.thread.join()
        except KeyboardInterrupt:
            self._cancelled.set()
            self.thread.join()

    def _run(self, point):
        errors = []

        def watched(**parameters):
            try:
                return self.trial(**parameters)
            except Exception as error:
                errors.append(error)
                raise

        start = time.time()
        try:
            with preserve_rng(), trace.watching(self._progress()):
                rows = sweep.run_once(watched, point, device=self.device)
            if rows is None or self._cancelled.is_set():
                self.said.value = tr("cancelled")
                return
            self.rows = pd.concat([self.rows, rows], ignore_index=True) if len(self.rows) else rows
            self.image.value, self.bar.value = picture(self.draw, self.rows), 1.0
            names = [name for name in dict.fromkeys([*self.widgets, "seed"]) if name in point]
            told = ", ".join(f"{name} {point[name]}" for name in names)
            seconds = f"{time.time() - start:.1f}"
            self.said.value = html.escape(tr("{point}: {seconds} s", point=told, seconds=seconds))
        except Exception as error:
            self.said.value = html.escape(one_line(errors[-1] if errors else error))
        finally:
            self.train.disabled, self.stop.disabled = False, True
            if shell := get_ipython():
                shell.events.unregister("pre_run_cell", self._wait)

    def _progress(self):
        """What the training loop calls at every step: the bar moves, and a cancelled run ends."""
        began, told = time.time(), 0.0

        def step(number, steps):
            nonlocal began, told
            if self._cancelled.is_set():
                raise trace.Enough
            now = time.time()
            if number == 0:
                began = now
            elif steps and now - told > OFTEN:
                told = now
                left = f"{(now - began) * (steps - number) / number:.1f}"
                self.bar.value = number / steps
                self.said.value = tr(
                    "step {step} of {steps}, {left} s left",
                    step=number,
                    steps=steps,
                    left=left,
                )

        return step


def common(points, takes):
    """{name: value} of what all points have alike among the parameters that `takes` names."""
    first = points[0] if points else {}
    alike = {name for name in first if all(each.get(name) == first[name] for each in points)}
    return {name: value for name, value in first.items() if name in alike and name in takes}


def picture(plot, *arguments, **values):
    """The bytes of a PNG of the figure that plot(...) makes; the figure is closed."""
    with _drawing:
        before = set(plt.get_fignums())
        try:
            return figures.png(figures.draw(lambda _: plot(*arguments, **values), None))
        finally:
            for number in set(plt.get_fignums()) - before:
                plt.close(number)


def widgets_of(controls):
    """{name: widget} of controls: widgets, or abbreviations of ipywidgets' `interact`."""
    from ipywidgets import interactive

    widgets = {}
    for name, control in controls.items():
        widget = interactive.widget_from_abbrev(control)
        if widget is None:
            kinds = "a widget, (low, high, step) or a list of choices"
            raise TypeError(f"{name}={control!r} is no control: {kinds}")
        widget.description = widget.description or name
        widgets[name] = widget
    return widgets


def values_of(widgets):
    """{name: value} of widgets."""
    return {name: widget.value for name, widget in widgets.items()}


def one_line(error):
    """What an error says, in one line; of refused values of a model, which and what is allowed."""
    if isinstance(error, ValidationError):
        told = []
        for each in error.errors():
            place = ".".join(map(str, each["loc"]))
            told.append(f"{place} {each['input']!r}: {each['msg']}".strip())
        return "; ".join(told).replace("Value error, ", "")
    words = " ".join(str(error).split())
    return words if isinstance(error, ValueError) and words else f"{type(error).__name__}: {words}"
