"""Pre-rendered states: a picture for every choice that is kept, and few enough of them."""

import base64
import math

import matplotlib.pyplot as plt
import pytest
from ipywidgets import Checkbox, Dropdown, FloatLogSlider, FloatSlider, IntSlider, SelectionSlider, Text

from lab import states, turn
from lab.trials import sweep as trials


def of(draw, **controls):
    return states.prerendered(draw, turn.widgets_of(controls)).get(states.TYPE)


def test_each_choice_of_the_controls_is_a_state_the_last_control_fastest():
    made = of(
        lambda n, name: f"{n}{name}".encode(),
        n=IntSlider(value=2, min=1, max=3),
        name=Dropdown(options=[("A", "a"), ("B", "b")]),
    )
    assert made["controls"] == [
        {"name": "n", "values": ["1", "2", "3"], "at": 1},
        {"name": "name", "values": ["A", "B"], "at": 0},
    ]
    drawn = [base64.b64decode(state["png"]).decode() for state in made["states"]]
    assert drawn == ["1a", "1b", "2a", "2b", "3a", "3b"]


@pytest.mark.parametrize(
    ("widget", "labels", "at"),
    [
        (FloatSlider(value=0.3, min=0.1, max=0.5, step=0.2), ["0.1", "0.3", "0.5"], 1),
        (FloatLogSlider(value=10, base=10, min=0, max=2, step=1), ["1", "10", "100"], 1),
        (SelectionSlider(options=[4, 8], value=8), ["4", "8"], 1),
        (Checkbox(value=True), ["no", "yes"], 1),
        (Text(value="as it is"), ["as it is"], 0),
    ],
)
def test_the_values_of_every_kind_of_control(widget, labels, at):
    found, values, place = states.options_of(widget)
    assert (found, place) == (labels, at)
    assert values[place] == widget.value


def test_many_choices_are_thinned_to_forty_and_the_first_state_stays():
    kept = states.thinned({"n": 200, "pair": 32, "base": 4}, {"n": 137, "pair": 0, "base": 2}, 40)
    assert 20 < math.prod(len(places) for places in kept.values()) <= 40
    assert {0, 137, 199} <= set(kept["n"]) and {0, 31} <= set(kept["pair"]) and 2 in kept["base"]
    assert states.thinned({"a": 2, "b": 1}, {"a": 1, "b": 0}, 40) == {"a": [0, 1], "b": [0]}


def test_a_choice_that_is_refused_says_why_and_one_choice_is_none():
    def draw(n):
        if n == 2:
            raise ValueError("not two")
        return b"drawn"

    assert of(draw, n=[1, 2, 3])["states"][1] == {"error": "not two"}
    assert of(draw, n=[1, 2]) is None
    assert of(lambda line: b"drawn", line="words") is None


def scored(n_heads, steps, seed):
    return {"score": n_heads * 10.0 + seed}


def test_a_trial_has_a_state_for_what_is_stored_of_it(tmp_path):
    used, seen = [], []
    grid = {"n_heads": [1, 2], "steps": [4], "seed": [5, 6]}
    trials.sweep(scored, grid, sources=trials.Sources("n", store=tmp_path), used=used)

    def draw(rows):
        seen.append(rows)
        plt.subplots()[1].plot(rows.n_heads, rows.score, "*")

    controls = {"n_heads": [1, 2, 4]}
    _, shown = turn.live(scored, draw, controls, used=used, headless=True)
    made = shown[states.TYPE]
    assert [list(rows.score) for rows in seen] == [[], [15.0], [25.0]]
    assert [list(state) for state in made["states"]] == [["png"], ["png"], ["error"]]
