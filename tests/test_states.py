"""States of figures: what a page draws is what matplotlib would have painted, for every choice that is kept."""

import base64
import io
import json

import matplotlib.pyplot as plt
import numpy as np
import pytest
from ipywidgets import Checkbox, Dropdown, FloatLogSlider, FloatSlider, IntSlider, SelectionSlider, Text
from PIL import Image

from lab import states, turn
from lab.engine import trials


def of(plot, **controls):
    def draw(**values):
        plot(**values)
        return plt.gcf()

    return states.states(draw, turn.widgets_of(controls))


def marks(made, at=0, axes=0):
    """The marks of a state with their numbers in place."""
    pool = made["pool"]
    found = [pool[place] for place in made["states"][at]["axes"][axes]["marks"]]
    return [mark | {side: pool[mark[side]] for side in "xy" if side in mark} for mark in found]


def test_each_choice_of_the_controls_is_a_state_the_last_control_fastest():
    def plot(n, name):
        _, ax = plt.subplots()
        ax.plot([1, 2], [n, 10 * n], "--", color="#112233", label=name)
        ax.set(title=f"{name} {n}", xlabel="x", yscale="log")
        ax.legend()

    before = plt.get_fignums()
    made = of(plot, n=IntSlider(value=2, min=1, max=3), name=Dropdown(options=[("A", "a"), ("B", "b")]))
    assert plt.get_fignums() == before
    assert [(c["name"], c["values"], c["at"], c["list"]) for c in made["controls"]] == [
        ("n", ["1", "2", "3"], 1, False), ("name", ["A", "B"], 0, True)
    ]  # fmt: skip
    assert [state["axes"][0]["title"] for state in made["states"]] == ["a 1", "b 1", "a 2", "b 2", "a 3", "b 3"]
    (line,) = marks(made, 2)
    assert (line["x"], line["y"], line["c"], line["dash"]) == ([1, 2], [2, 20], "#112233", "--")
    axes = made["states"][3]["axes"][0]
    assert axes["y"]["log"] == 10 and "log" not in axes["x"] and axes["legend"] == [["#112233", "--", "b"]]
    assert axes["y"]["limits"][0] < 2 < 20 < axes["y"]["limits"][1]
    assert json.loads(json.dumps(made)) == made


def test_bars_bands_dots_words_and_lines_across_are_in_the_coordinates_of_the_data():
    def plot(n):
        _, ax = plt.subplots()
        ax.barh(["one", "two"], [n, 2 * n], color="C1")
        ax.axvline(3, color="k")
        ax.fill_between([0, 1], [0, 0], [1, 1], alpha=0.5)
        ax.scatter([0.5], [0.5], color="r")
        ax.text(1, 1, "here", ha="center", va="center")
        ax.set_xlim(0, 8)

    made = of(plot, n=[1, 2])
    kinds = {}
    for mark in marks(made, 1):
        kinds.setdefault(mark["k"], []).append(mark)
    bars = [mark for mark in kinds["a"] if len(mark["c"]) == 7]
    assert [(max(bar["x"]), min(bar["y"]), max(bar["y"])) for bar in bars] == [(2, -0.4, 0.4), (4, 0.6, 1.4)]
    (band,) = (mark for mark in kinds["a"] if len(mark["c"]) == 9)
    assert (min(band["x"]), max(band["y"])) == (0, 1)
    axes = made["states"][1]["axes"][0]
    across = next(mark for mark in kinds["l"] if mark["c"] == "#000000")
    assert across["x"] == [3, 3] and across["y"] == pytest.approx(axes["y"]["limits"], abs=1e-3)
    assert next(mark for mark in kinds["l"] if mark["c"] == "#ff0000")["m"] == "o"
    assert kinds["t"][0]["t"] == "here" and kinds["t"][0]["at"] == pytest.approx([1, 1], abs=0.02)
    assert axes["y"]["ticks"] == [[0, "one"], [1, "two"]]


def test_a_picture_stands_with_its_first_row_on_top():
    def plot(n):
        _, ax = plt.subplots()
        ax.imshow([[n, 0], [0, 0]], "Greys", vmin=0, vmax=1)

    made = of(plot, n=[0, 1])
    (picture,) = marks(made, 1)
    shown = Image.open(io.BytesIO(base64.b64decode(picture["p"].partition(",")[2]))).convert("L")
    assert np.array_equal(np.asarray(shown) < 9, [[True, False], [False, False]])
    assert made["states"][1]["axes"][0]["square"] and picture["x"] == [-0.5, 1.5]


@pytest.mark.parametrize(
    ("widget", "labels", "at"),
    [(FloatSlider(value=0.3, min=0.1, max=0.5, step=0.2), ["0.1", "0.3", "0.5"], 1),
     (FloatLogSlider(value=10, base=10, min=0, max=2, step=1), ["1", "10", "100"], 1),
     (SelectionSlider(options=[4, 8], value=8), ["4", "8"], 1), (Checkbox(value=True), ["no", "yes"], 1),
     (Text(value="as it is"), ["as it is"], 0)],
)  # fmt: skip
def test_the_values_of_every_kind_of_control(widget, labels, at):
    values, place = states.values_of(widget)
    assert ([label for label, _ in values], place) == (labels, at)
    assert values[place][1] == widget.value


def test_many_choices_are_thinned_ends_and_first_state_stay():
    kept = states.thinned({"n": 200, "pair": 32, "base": 4}, {"n": 137, "pair": 0, "base": 2}, 300)
    assert 150 < np.prod([len(places) for places in kept.values()]) <= 300
    assert kept["base"] == [0, 1, 2, 3] and {0, 137, 199} <= set(kept["n"]) and {0, 31} <= set(kept["pair"])
    assert states.thinned({"a": 2, "b": 1}, {"a": 1, "b": 0}, 300) == {"a": [0, 1], "b": [0]}


def test_states_too_long_for_a_page_are_fewer(monkeypatch):
    monkeypatch.setattr(states, "LARGEST", 20_000)
    made = of(lambda n: plt.subplots()[1].plot(np.arange(400) ** (n / 9)), n=(1, 50))
    assert len(json.dumps(made)) < 25_000 and 2 < len(made["states"]) < 30
    assert max(map(len, (each for each in made["pool"] if isinstance(each, list)))) <= states.POINTS


def test_a_choice_that_is_refused_says_why_and_one_choice_is_none():
    def plot(n):
        if n == 2:
            raise ValueError("not two")
        plt.subplots()

    assert of(plot, n=[1, 2])["states"][1] == {"error": "not two"}
    assert of(plot, line="words") == {} and turn.play(plot, {"n": [1, 2]}, headless=True)[1] == {}


def scored(n_heads, steps, seed):
    return {"score": n_heads * 10.0 + seed}


def test_a_trial_has_a_state_for_what_is_stored_of_it(tmp_path):
    used, seen = [], []
    grid = {"n_heads": [1, 2], "steps": [4], "seed": [5, 6]}
    trials.sweep(scored, grid, sources=trials.Sources(store=tmp_path), used=used)

    def draw(rows):
        seen.append(rows)
        plt.subplots()[1].plot(rows.n_heads, rows.score, "*")

    _, shown = turn.live(scored, draw, {"n_heads": [1, 2, 4]}, used=used, headless=True)
    made = shown[states.TYPE]
    assert [list(rows.score) for rows in seen] == [[], [15.0], [25.0]]
    assert made["trial"] and [("error" in state) for state in made["states"]] == [False, False, True]
    assert marks(made, 1)[0]["y"] == [25]
