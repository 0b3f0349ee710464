"""A reader's turn: runs on a thread that give a sweep's very rows, can be cancelled and refuse in one line; redraws.

Of `lab.language` too.
"""

import random
import sys
import time
from functools import partial

import cells
import matplotlib.pyplot as plt
import numpy
import pytest
import torch
from helpers import without_times
from ipywidgets import IntText

from lab import figures, states, turn
from lab.models import ModelConfig, Transformer
from lab.tasks.sequences import Lookup
from lab.training import TrainConfig, fit
from lab.trials import sweep as trials

GRID = {"n_heads": [1, 2], "steps": [4], "seed": [0, 1]}


def lookups(n_heads, steps, seed):
    """A training with a number that comes from the process' own generators."""
    task = Lookup(offsets=(1, 2), vocabulary=8, length=12)
    sizes = {"vocabulary": 8, "context": 12, "d_model": 16, "n_layers": 1, "d_out": task.d_out}
    model = Transformer(ModelConfig(**sizes, n_heads=n_heads), seed=seed)
    run, _ = fit(model, task, TrainConfig(steps=steps, batch=4, warmup=2), seed=seed)
    return {"loss": run["training_loss"], "drawn": torch.rand(()).item() + random.random() + numpy.random.rand()}


def draw(rows):
    _, ax = plt.subplots()
    ax.plot(rows.n_heads, rows.loss, "*")


@pytest.fixture
def used(tmp_path):
    found = []
    trials.sweep(lookups, GRID, sources=trials.Sources("n", store=tmp_path), used=found)
    return found


def panel_of(draw=draw, controls=None, **options):
    mine = turn.Turn(lookups, draw, controls or {"n_heads": [1, 2, 4]}, **options)
    mine.panel()
    return mine


def clicked(mine):
    mine.train.click()
    mine.thread.join(60)
    return mine.said.value


def test_a_run_gives_the_very_rows_of_a_sweep_and_goes_on_with_new_seeds(used, tmp_path):
    drawn = []
    mine = panel_of(lambda rows: (drawn.append(rows), draw(rows)), used=used)
    first = mine.image.value
    mine.widgets["n_heads"].value = 2
    words = [clicked(mine), clicked(mine)]
    assert "n_heads 2, seed 2: " in words[0] and "n_heads 2, seed 3: " in words[1]
    sources = trials.Sources("n", store=tmp_path / "other")
    swept = trials.sweep(lookups, GRID | {"n_heads": [2], "seed": [2, 3]}, sources=sources)
    assert without_times(drawn[-1]).equals(without_times(swept)[[*without_times(drawn[-1])]])
    assert [len(rows) for rows in drawn] == [0, 1, 2] and set(drawn[0]) == set(swept)
    assert mine.image.value != first and mine.bar.value == 1 and not mine.train.disabled and mine.stop.disabled


def test_random_numbers_of_the_reader_go_on_as_if_nothing_had_run(used):
    def state():
        return random.random(), numpy.random.rand(), torch.rand(()).item()

    def sown():
        random.seed(1), numpy.random.seed(1), torch.manual_seed(1)

    sown()
    expected = state()
    sown()
    clicked(panel_of(used=used))
    assert state() == expected


def test_a_seed_of_the_record_is_not_used_again(used):
    assert panel_of(used=used).chosen() == {"n_heads": 1, "steps": 4, "seed": 2}
    known = [{"parameters": {"seed": 7, "n_heads": 1}}]
    assert panel_of(used=used, known=known).chosen()["seed"] == 8


def test_the_point_is_a_function_of_the_controls_or_over_defaults(used):
    double = panel_of(controls={"width": (1, 9)}, used=used, point=lambda width: {"n_heads": 2 * width})
    assert double.chosen() == {"n_heads": 2 * 5, "steps": 4, "seed": 2}
    assert panel_of(point={"steps": 9, "n_heads": 3}, used=used).chosen() == {"n_heads": 1, "steps": 9, "seed": 2}


# Progress and cancelling


def test_a_run_shows_how_far_it_is_and_ends_within_a_step(used, monkeypatch):
    monkeypatch.setattr(turn, "OFTEN", 0)
    seen, mine = [], panel_of(point={"steps": 10**6}, used=used)
    mine.said.observe(lambda change: seen.append((mine.bar.value, change.new)), "value")
    before = mine.image.value
    mine.train.click()
    assert mine.train.disabled and not mine.stop.disabled
    thread = mine.thread
    mine.start()
    assert mine.thread is thread, "one at a time"
    while len(seen) < 20 and thread.is_alive():
        time.sleep(0.01)
    mine.stop.click()
    thread.join(10)
    assert (
        not thread.is_alive() and mine.said.value == "cancelled" and mine.image.value == before and len(mine.rows) == 0
    )
    assert any("of 1000000, " in words and words.endswith("s left") for _, words in seen)
    assert [value for value, _ in seen] == sorted(value for value, _ in seen)
    assert not mine.train.disabled and mine.stop.disabled


def test_a_cell_waits_for_the_run_and_an_interrupt_cancels_it(used, monkeypatch):
    class Events:
        waiting = []

        def register(self, event, function):
            self.waiting.append((event, function))

        def unregister(self, event, function):
            self.waiting.remove((event, function))

    monkeypatch.setattr(turn, "get_ipython", lambda: type("Shell", (), {"events": Events()}))
    mine = panel_of(point={"steps": 10}, used=used)
    mine.train.click()
    ((event, wait),) = Events.waiting
    wait(None)
    assert event == "pre_run_cell" and not mine.thread.is_alive() and Events.waiting == [] and len(mine.rows) == 1
    endless = panel_of(point={"steps": 10**6}, used=used)
    endless.train.click()
    thread, interrupts = endless.thread, [KeyboardInterrupt]

    class Interrupted:
        def join(self):
            if interrupts:
                raise interrupts.pop()
            thread.join(10)

    endless.thread = Interrupted()
    endless._wait()
    assert not thread.is_alive() and endless.said.value == "cancelled"


# What is refused


def test_a_refused_value_is_told_in_one_line_with_what_is_allowed(used):
    mine = panel_of(controls={"n_heads": IntText(3)}, used=used)
    said = clicked(mine)
    assert "n_heads" in said and "divide" in said and "\n" not in said and "Traceback" not in said, said
    assert len(mine.rows) == 0 and not mine.train.disabled
    mine.widgets["n_heads"].value = 4
    assert "seed 3" in clicked(mine)


def test_a_parameter_that_nobody_gives_is_named():
    mine = panel_of(lambda rows: plt.subplots())
    mine.train.click()
    assert mine.thread is None and "&#x27;steps&#x27; is missing" in mine.said.value


def test_an_error_of_the_figure_is_told(used):
    plt.close("all")  # what tests before this one left open is not meant

    def fails(rows):
        if len(rows):
            raise KeyError("nothing")
        draw(rows)

    assert clicked(panel_of(fails, used=used)) == "KeyError: &#x27;nothing&#x27;"
    assert plt.get_fignums() == []


# Sliders and figures


def two_panels(n_heads):
    _, axes = plt.subplots(1, 2)
    axes[0].plot([1, 2, n_heads])
    axes[1].bar(["a", "b"], [n_heads, 1])
    axes[1].set_ylabel("loss")


def test_a_slider_redraws_its_figure(monkeypatch):
    shown = []
    monkeypatch.setattr(figures, "show", shown.append)
    slider, _ = turn.sliders(partial(turn.picture, two_panels), turn.widgets_of({"n_heads": (1, 9)})).children
    slider.value = 6
    assert len(shown) == 2 and shown[0] != shown[1] and shown[1].startswith(b"\x89PNG")
    assert plt.get_fignums() == []


def refuses(n):
    raise ValueError("at most 5 <here>") if n == 6 else KeyError(n)


def test_an_exception_of_a_figure_is_shown_in_the_panel(monkeypatch):
    shown = []
    with cells.shell() as here:
        monkeypatch.setattr(here, "showtraceback", lambda *_, **__: shown.append(str(sys.exc_info()[1])))
        panel = turn.sliders(refuses, turn.widgets_of({"n": (1, 9)}))
        panel.children[0].value = 6
    assert shown[-1] == "at most 5 <here>"


def test_what_is_no_control_is_refused():
    with pytest.raises(TypeError, match="n='x'.*no control|n=None is no control"):
        turn.widgets_of({"n": None})


def test_where_no_widgets_run_the_first_state_stands_with_what_is_stored(used):
    assert list(turn.play(two_panels, {"n_heads": [3, 4]}, headless=True)[1]) == [states.TYPE]
    picture, shown = turn.live(lookups, draw, {"n_heads": [1, 2]}, used=used, headless=True)
    assert list(shown) == [states.TYPE] and picture.startswith(b"\x89PNG")
    assert "application/vnd.jupyter.widget-view+json" in turn.live(lookups, draw, {"n_heads": [1, 2]}, used=used)[1]


def test_the_button_says_what_the_lesson_does(used):
    mine = turn.Turn(lookups, draw, {"n_heads": [1, 2]}, used=used)
    for words in ("Train now", "Measure now"):
        mine.panel(words.replace("Train now", ""))
        assert mine.train.description == words
