"""A reader's turn: runs that give a sweep's very rows, can be cancelled and refuse in one line; redraws.

Of `lab.language` too.
"""

import random

import matplotlib.pyplot as plt
import numpy
import pytest
import torch
from helpers import without_times
from ipywidgets import IntText

from lab import states, turn
from lab.models import ModelConfig, Transformer
from lab.tasks.sequences import Lookup
from lab.training import TrainConfig, fit
from lab.trials import sweep as trials

GRID = {"n_heads": [1, 2], "steps": [4], "seed": [0, 1]}


def lookups(n_heads, steps, seed):
    """A training with a number that comes from the process' own generators."""
    task = Lookup(offsets=(1, 2), vocabulary=8, length=12)
    sizes = {"vocab_size": 8, "block_size": 12, "d_model": 16, "n_layers": 1, "d_out": task.d_out}
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


def turn_of(draw=draw, **options):
    return turn.Turn(lookups, draw, **options)


def panel_of(mine, controls=None, button="Train now"):
    return turn.panel(mine.run, turn.widgets_of(controls or {"n_heads": [2, 1, 4]}), mine.shown, button)


def clicked(panel):
    """The line that a click of the button shows."""
    *_, button, _, _, said = panel.children
    button.click()
    return said.value


def test_a_run_gives_the_very_rows_of_a_sweep_and_goes_on_with_new_seeds(used, tmp_path):
    drawn = []
    mine = turn_of(lambda rows: (drawn.append(rows), draw(rows)), used=used)
    first = mine.shown
    panel = panel_of(mine)
    words = [clicked(panel), clicked(panel)]
    assert "n_heads 2, seed 2: " in words[0] and "n_heads 2, seed 3: " in words[1]
    sources = trials.Sources("n", store=tmp_path / "other")
    swept = trials.sweep(lookups, GRID | {"n_heads": [2], "seed": [2, 3]}, sources=sources)
    assert without_times(drawn[-1]).equals(without_times(swept)[[*without_times(drawn[-1])]])
    assert [len(rows) for rows in drawn] == [0, 1, 2] and set(drawn[0]) == set(swept)
    assert bytes(panel.children[-3].value) == mine.shown != first


def test_random_numbers_of_the_reader_go_on_as_if_nothing_had_run(used):
    def state():
        return random.random(), numpy.random.rand(), torch.rand(()).item()

    def sow():
        random.seed(1)
        numpy.random.seed(1)
        torch.manual_seed(1)

    sow()
    expected = state()
    sow()
    clicked(panel_of(turn_of(used=used)))
    assert state() == expected


def test_the_point_has_a_seed_that_nobody_used_and_is_a_function_of_the_controls_or_over_defaults(used):
    assert turn_of(used=used).chosen({"n_heads": 1}) == {"n_heads": 1, "steps": 4, "seed": 2}
    known = [{"parameters": {"seed": 7, "n_heads": 1}}]
    assert turn_of(used=used, known=known).chosen({"n_heads": 1})["seed"] == 8
    double = turn_of(used=used, point=lambda width: {"n_heads": 2 * width})
    assert double.chosen({"width": 5}) == {"n_heads": 10, "steps": 4, "seed": 2}
    mine = turn_of(point={"steps": 9, "n_heads": 3}, used=used)
    assert mine.chosen({"n_heads": 1}) == {"n_heads": 1, "steps": 9, "seed": 2}


# Progress and cancelling


def test_a_bar_moves_with_the_steps_and_the_button_waits(used):
    mine = turn_of(used=used)
    panel = panel_of(mine)
    *_, button, _, bar, _ = panel.children
    seen = []
    bar.observe(lambda change: seen.append((change.new, button.disabled, bar.layout.display)), "value")
    clicked(panel)
    assert seen == [(25, True, None), (50, True, None), (75, True, None)], "four steps"
    assert not button.disabled and bar.layout.display == "none"


def test_an_interrupt_cancels_the_run(used):
    def interrupted(n_heads, steps, seed):
        raise KeyboardInterrupt

    mine = turn.Turn(interrupted, lambda rows: plt.subplots(), point={"steps": 4, "n_heads": 1}, used=used)
    panel = panel_of(mine)
    assert clicked(panel) == "cancelled" and mine.rows.empty and bytes(panel.children[-3].value) == mine.shown


# What is refused


def test_a_refused_value_is_told_in_one_line_with_what_is_allowed(used):
    mine = turn_of(used=used)
    panel = panel_of(mine, {"n_heads": IntText(3)})
    said = clicked(panel)
    assert said.startswith("ModelConfig: n_heads 3 does not divide d_model 16"), said
    panel.children[0].value = 4
    assert len(mine.rows) == 0 and "seed 3" in clicked(panel)


def test_a_parameter_that_nobody_gives_is_named():
    assert "steps" in clicked(panel_of(turn_of(lambda rows: plt.subplots())))


def test_an_error_of_the_figure_is_told(used):
    plt.close("all")  # what tests before this one left open is not meant

    def fails(rows):
        if len(rows):
            raise KeyError("nothing")
        draw(rows)

    assert clicked(panel_of(turn_of(fails, used=used))) == "KeyError: &#x27;nothing&#x27;"
    assert plt.get_fignums() == []


# Sliders and figures


def two_panels(n_heads):
    _, axes = plt.subplots(1, 2)
    axes[0].plot([1, 2, n_heads])
    axes[1].bar(["a", "b"], [n_heads, 1])
    axes[1].set_ylabel("loss")


def drawn(n_heads):
    if n_heads == 6:
        raise ValueError("at most 5 <here>")
    return turn.picture(two_panels, n_heads=n_heads), ""


def test_a_slider_redraws_its_figure_and_an_exception_takes_its_place():
    slider, shown, said = turn.panel(drawn, turn.widgets_of({"n_heads": (1, 9)}), b"").children
    slider.value = 4
    before = bytes(shown.value)
    slider.value = 7
    after = bytes(shown.value)
    assert after != before and after.startswith(b"\x89PNG") and said.value == ""
    slider.value = 6
    assert said.value == "at most 5 &lt;here&gt;" and not bytes(shown.value)
    assert plt.get_fignums() == []


def test_what_is_no_control_is_refused():
    with pytest.raises(TypeError, match="n='x'.*no control|n=None is no control"):
        turn.widgets_of({"n": None})


def test_where_no_widgets_run_the_first_state_stands_with_what_is_stored(used):
    assert list(turn.play(two_panels, {"n_heads": [3, 4]}, headless=True)[1]) == [states.TYPE]
    picture, shown = turn.live(lookups, draw, {"n_heads": [1, 2]}, used=used, headless=True)
    assert list(shown) == [states.TYPE] and picture.startswith(b"\x89PNG")
    assert "application/vnd.jupyter.widget-view+json" in turn.live(lookups, draw, {"n_heads": [1, 2]}, used=used)[1]
