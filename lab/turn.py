"""A lesson's "Your turn": sliders that redraw a figure, and a trial that a reader runs at once.

The rows of such a run are those of a sweep of the same point. They are drawn and forgotten: no
table, verdict or record holds them.
"""

import base64
import html
import time
from functools import partial
from inspect import signature

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import clear_output, display
from pydantic import ValidationError

from lab import figures, states, trace
from lab.language import tr
from lab.trials import sweep
from lab.trials.points import points_of
from lab.trials.rng import preserve_rng
from lab.trials.rows import LABELS, of_body


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
    """Controls above the picture that draw(**values) gives; an exception stands in its place.

    ipywidgets' own `interactive` shows an Output widget, for which nbclient sends messages to the
    kernel while a cell runs; the cell's end is then lost now and then, and papermill waits for it.
    """
    from ipywidgets import HTML, Image, VBox

    picture, said = Image(layout={"max_width": "100%"}), HTML()

    def redraw(_=None):
        try:
            picture.value, said.value = draw(**values_of(widgets)) or b"", ""
        except Exception as error:
            picture.value, said.value = b"", html.escape(one_line(error))

    for widget in widgets.values():
        widget.observe(redraw, "value")
    redraw()
    return VBox([*widgets.values(), picture, said])


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
    """The trial at points that a reader chooses.

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
        self.first = self.shown = picture(draw, self.rows)

    def panel(self, button=""):
        """The controls, a button that runs the trial, and the figure with what was run."""
        from ipywidgets import interactive

        options = {"manual": True, "manual_name": button or tr("Train now")}
        panel = interactive(self.run, options, **self.widgets)
        panel.add_class("lab-turn")
        first = {"image/png": base64.b64encode(self.first).decode()}
        panel.out.outputs = [{"output_type": "display_data", "data": first, "metadata": {}}]
        return panel

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

    def chosen(self, values):
        """The full point that the values of the controls ask for, with the next seed.

        TypeError where a parameter is missing.
        """
        given = self.point(**values) if callable(self.point) else (self.point or {}) | values
        seed = {} if self.seed is None else {"seed": self.seed}
        (point,) = points_of(self.trial, [self.usual | seed | given])
        return point

    def run(self, **values):
        """Run the chosen point and draw the rows of all runs, with a line on what was run.

        An error is told in one line. An interrupt of the kernel cancels the run.
        """
        figures.show(self.shown)  # it stays while the trial runs
        try:
            said = self._run(values)
        except KeyboardInterrupt:
            said = tr("cancelled")
        except Exception as error:
            said = one_line(error)
        clear_output(wait=True)
        figures.show(self.shown)
        print(said)

    def _run(self, values):
        point, errors, start = self.chosen(values), [], time.time()
        if self.seed is not None:
            self.seed += 1

        def watched(**parameters):
            try:
                return self.trial(**parameters)
            except Exception as error:
                errors.append(error)
                raise

        try:
            with preserve_rng(), trace.watching(progress_bar()):
                rows = sweep.run_once(watched, point, device=self.device)
        except sweep.TrialsFailed as failed:
            raise (errors or [failed])[-1] from None
        self.rows = pd.concat([self.rows, rows], ignore_index=True) if len(self.rows) else rows
        self.shown = picture(self.draw, self.rows)
        names = [name for name in dict.fromkeys([*self.widgets, "seed"]) if name in point]
        told = ", ".join(f"{name} {point[name]}" for name in names)
        return tr("{point}: {seconds} s", point=told, seconds=f"{time.time() - start:.1f}")


def progress_bar():
    """Display a bar; the function that moves it is called by a training at every step."""
    from ipywidgets import IntProgress

    bar = IntProgress()
    display(bar)

    def step(number, steps):
        if steps:
            bar.value = 100 * number // steps  # a message to the page at every whole per cent

    return step


def common(points, takes):
    """{name: value} of what all points have alike among the parameters that `takes` names."""
    first = points[0] if points else {}
    alike = {name for name in first if all(each.get(name) == first[name] for each in points)}
    return {name: value for name, value in first.items() if name in alike and name in takes}


def picture(plot, *arguments, **values):
    """The bytes of a PNG of the figure that plot(...) makes; the figure is closed."""
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
