"""A lesson's "Your turn": sliders that redraw from stored grids, and a trial that is run here and now.

A run takes a thread, so the page stays alive; cells that are started meanwhile wait for its end, since its random
numbers, as those of every trial, are drawn from the generators of the process. Its rows are those of a sweep of the
same point. They are drawn and forgotten: no table, verdict or record holds them.
"""

import contextlib
import html
import io
import random
import threading
import time
from inspect import signature

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy
import pandas as pd
import torch
from IPython import get_ipython
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image as Picture
from pydantic import ValidationError

from lab import figures, states, trace
from lab.engine import store, trials
from lab.engine.points import points_of
from lab.engine.running import LABELS
from lab.language import tr

OFTEN = 0.1  # seconds between two signs of progress
_drawing = threading.RLock()  # pyplot serves one thread at a time


def play(plot, controls, *, headless=False, most=states.MOST):
    """(PNG of plot(**values) in the first state, live output of sliders that redraw it).

    Headless, where no sliders run, the output is at most so many states of the figure, for a page to draw.
    """
    drawn, widgets = Redraws(plot), widgets_of(controls)
    values = {name: widget.value for name, widget in widgets.items()}
    first = drawn(**values)
    if headless:
        return first, _stored(lambda **values: figures.draw(lambda _: plot(**values), None), widgets, most)
    return first, _sliders(drawn, widgets, first)._repr_mimebundle_()


def _stored(draw, widgets, most, **told):
    """The output with the states of a figure; {} where there is nothing to choose."""
    with _drawing, kept_random(), mpl.rc_context(figures.style()):
        found = states.states(draw, widgets, most)
    shown = [state for state in found.get("states", ()) if "error" not in state]
    return {states.TYPE: found | told} if len(shown) > 1 else {}


def _sliders(drawn, widgets, first):
    from ipywidgets import HTML, Image, VBox

    image, said = Image(value=first, format="png"), HTML()

    def redraw(_):
        try:
            image.value = drawn(**{name: widget.value for name, widget in widgets.items()})
            said.value = ""
        except Exception as error:
            said.value = html.escape(one_line(error))

    for widget in widgets.values():
        widget.observe(redraw, "value")
    panel = VBox([*widgets.values(), said, image])
    panel.add_class("widget-interact")
    return panel


def live(
    trial, draw, controls, *, point=None, button="", used=(), known=(), device="auto", headless=False, most=states.MOST
):
    """(PNG of the first state, live output of a panel whose "Train now" runs the trial); see Study.live.

    Headless, the output is the figure with what is stored for the values of the controls, for a page to draw.
    """
    turn = Turn(trial, draw, controls, point=point, used=used, known=known, device=device)
    if headless:
        return turn.first, _stored(turn.stored, turn.widgets, most, trial=True)
    return turn.first, turn.panel(button)._repr_mimebundle_()


class Turn:
    """The trial at points that a reader chooses, run on a thread, one at a time; `draw(rows)` of all its rows.

    `used` are the sweeps' finished trials (engine.trials.Used): their values are the usual ones, where they agree, and
    no seed of theirs, nor of the bodies `known`, is used again.
    """

    def __init__(self, trial, draw, controls, *, point=None, used=(), known=(), device="auto"):
        self.trial, self.point, self.device, self.widgets = trial, point, device, widgets_of(controls)
        self.draw, self.bodies = draw, [each.body for each in used if each.trial.__name__ == trial.__name__]
        bodies = self.bodies
        stored = [body["parameters"] for body in bodies]
        takes = signature(trial).parameters
        self.usual = {name: stored[0][name] for name in (stored[0] if stored else ())
                      if name in takes and all(each.get(name) == stored[0][name] for each in stored)}  # fmt: skip
        seeds = [parameters.get("seed", -1) for parameters in (*stored, *(body["parameters"] for body in known))]
        self.seed = 1 + max(seeds, default=-1) if "seed" in takes else None
        columns = [*(stored[0] if stored else takes), *dict.fromkeys(c for body in bodies for c in body["columns"])]
        self.rows, self.redraw, self.thread = pd.DataFrame(columns=[*columns, *LABELS]), Redraws(draw), None
        self.first, self._cancelled = self.redraw(self.rows), threading.Event()

    def panel(self, button=""):
        from ipywidgets import HTML, Button, FloatProgress, HBox, Image, VBox

        self.train = Button(description=button or tr("Train now"), button_style="primary")
        self.stop = Button(description=tr("Cancel"), disabled=True)
        self.bar, self.said = FloatProgress(min=0.0, max=1.0), HTML()
        self.image = Image(value=self.first, format="png")
        self.train.on_click(lambda _: self.start())
        self.stop.on_click(lambda _: self._cancelled.set())
        panel = VBox([*self.widgets.values(), HBox([self.train, self.stop, self.bar, self.said]), self.image])
        panel.add_class("lab-turn")
        return panel

    def stored(self, **values):
        """The figure with the rows of the first stored trial of the values, whatever its seed; None where none is."""
        try:
            point = self.chosen(values) | {"seed": None}
        except Exception:  # a combination that the notebook has no point for
            return None
        body = next((body for body in self.bodies if body["parameters"] | {"seed": None} == point), None)
        if body is None:
            return None
        rows = pd.DataFrame([body["parameters"] | row for row in store.rows(body)]).reindex(columns=self.rows.columns)
        return figures.draw(self.draw, rows)

    def chosen(self, values=None):
        """The full point that values, or the controls, ask for, with the next seed.

        TypeError where a parameter is missing.
        """
        values = values or {name: widget.value for name, widget in self.widgets.items()}
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
        self.train.disabled, self.stop.disabled, self.bar.value, self.said.value = True, False, 0.0, tr("starting")
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
        began, told, errors = time.time(), 0.0, []

        def heard(step, steps):
            nonlocal began, told
            if self._cancelled.is_set():
                raise trace.Enough
            if step == 0:
                began = time.time()
            elif time.time() - told > OFTEN and steps:
                told = time.time()
                left = (told - began) * (steps - step) / step
                self.bar.value = step / steps
                self.said.value = tr(
                    "step {step} of {steps}, {left} s left", step=step, steps=steps, left=f"{left:.1f}"
                )

        def telling(**parameters):
            try:
                return self.trial(**parameters)
            except Exception as error:
                errors.append(error)
                raise

        start = time.time()
        try:
            with kept_random(), trace.watching(heard):
                rows = trials.now(telling, point, device=self.device)
            if rows is None or self._cancelled.is_set():
                self.said.value = tr("cancelled")
                return
            self.rows = pd.concat([self.rows, rows], ignore_index=True) if len(self.rows) else rows
            self.image.value, self.bar.value = self.redraw(self.rows), 1.0
            seconds = f"{time.time() - start:.1f}"
            shown = ", ".join(
                f"{name} {point[name]}" for name in dict.fromkeys([*self.widgets, "seed"]) if name in point
            )
            self.said.value = html.escape(tr("{point}: {seconds} s", point=shown, seconds=seconds))
        except Exception as error:
            self.said.value = html.escape(one_line(errors[-1] if errors else error))
        finally:
            self.train.disabled, self.stop.disabled = False, True
            if shell := get_ipython():
                shell.events.unregister("pre_run_cell", self._wait)


@contextlib.contextmanager
def kept_random():
    """Afterwards the random numbers of this process go on as if the block had drawn none."""
    states = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        for put, state in zip((random.setstate, numpy.random.set_state, torch.set_rng_state), states, strict=True):
            put(state)


class Redraws:
    """Draws plot(...) again and again, fast: the first figure is laid out, those after it keep its places."""

    def __init__(self, plot):
        self.plot, self.places = plot, None

    def __call__(self, *arguments, **values):
        """The bytes of a PNG."""
        with _drawing, mpl.rc_context(figures.style()):
            before = set(plt.get_fignums())
            try:
                return self._png(figures.draw(lambda _: self.plot(*arguments, **values), None))
            finally:
                for number in set(plt.get_fignums()) - before:
                    plt.close(number)

    def _png(self, figure):
        canvas = FigureCanvasAgg(figure)
        figure.dpi = mpl.rcParams["savefig.dpi"]
        if self.places is not None and len(self.places) == len(figure.axes):
            figure.set_layout_engine("none")
            for axes, place in zip(figure.axes, self.places, strict=True):
                axes.set_position(place)
        canvas.draw()
        self.places = [axes.get_position(original=True) for axes in figure.axes]
        shown = io.BytesIO()
        Picture.fromarray(numpy.asarray(canvas.buffer_rgba())).convert("RGB").save(shown, "PNG", compress_level=1)
        return shown.getvalue()


def widgets_of(controls):
    """{name: widget} of controls: widgets, or abbreviations such as (low, high, step) or a list of choices."""
    from ipywidgets import interactive

    widgets = {name: interactive.widget_from_abbrev(control) for name, control in controls.items()}
    for name, widget in widgets.items():
        if widget is None:
            raise TypeError(
                f"{name}={controls[name]!r} is no control: a widget, (low, high, step) or a list of choices"
            )
        widget.description = widget.description or name
    return widgets


def one_line(error):
    """What an error says, in one line: for values that a model refuses, which and what is allowed."""
    if isinstance(error, ValidationError):
        said = (f"{'.'.join(map(str, e['loc']))} {e['input']!r}: {e['msg']}".strip() for e in error.errors())
        return "; ".join(said).replace("Value error, ", "")
    words = " ".join(str(error).split())
    return words if isinstance(error, ValueError) and words else f"{type(error).__name__}: {words}"
