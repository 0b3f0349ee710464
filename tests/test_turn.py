"""A reader's turn: runs that give a sweep's very rows, can be cancelled and refuse in one line; redraws.

Of `lab.language` too.
"""

import base64
import random
from functools import partial

import matplotlib.pyplot as plt
import numpy
import pytest
import torch
from helpers import without_times
from ipywidgets import IntText
from jupyter_client.manager import start_new_kernel

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


@pytest.fixture
def clicked(capsys):
    """clicked(turn, n_heads=2): run the trial as the button does; the line that is shown."""

    def click(mine, **values):
        capsys.readouterr()
        mine.run(**(turn.values_of(mine.widgets) | values))
        return capsys.readouterr().out.splitlines()[-1]

    return click


def turn_of(draw=draw, controls=None, **options):
    return turn.Turn(lookups, draw, controls or {"n_heads": [1, 2, 4]}, **options)


def test_a_run_gives_the_very_rows_of_a_sweep_and_goes_on_with_new_seeds(used, tmp_path, clicked):
    drawn = []
    mine = turn_of(lambda rows: (drawn.append(rows), draw(rows)), used=used)
    first = mine.shown
    words = [clicked(mine, n_heads=2), clicked(mine, n_heads=2)]
    assert "n_heads 2, seed 2: " in words[0] and "n_heads 2, seed 3: " in words[1]
    sources = trials.Sources("n", store=tmp_path / "other")
    swept = trials.sweep(lookups, GRID | {"n_heads": [2], "seed": [2, 3]}, sources=sources)
    assert without_times(drawn[-1]).equals(without_times(swept)[[*without_times(drawn[-1])]])
    assert [len(rows) for rows in drawn] == [0, 1, 2] and set(drawn[0]) == set(swept)
    assert mine.shown != first == mine.first


def test_random_numbers_of_the_reader_go_on_as_if_nothing_had_run(used, clicked):
    def state():
        return random.random(), numpy.random.rand(), torch.rand(()).item()

    def sow():
        random.seed(1)
        numpy.random.seed(1)
        torch.manual_seed(1)

    sow()
    expected = state()
    sow()
    clicked(turn_of(used=used))
    assert state() == expected


def test_a_seed_of_the_record_is_not_used_again(used):
    assert turn_of(used=used).chosen({"n_heads": 1}) == {"n_heads": 1, "steps": 4, "seed": 2}
    known = [{"parameters": {"seed": 7, "n_heads": 1}}]
    assert turn_of(used=used, known=known).chosen({"n_heads": 1})["seed"] == 8


def test_the_point_is_a_function_of_the_controls_or_over_defaults(used):
    double = turn_of(used=used, point=lambda width: {"n_heads": 2 * width})
    assert double.chosen({"width": 5}) == {"n_heads": 10, "steps": 4, "seed": 2}
    mine = turn_of(point={"steps": 9, "n_heads": 3}, used=used)
    assert mine.chosen({"n_heads": 1}) == {"n_heads": 1, "steps": 9, "seed": 2}


# Progress and cancelling


def test_a_bar_moves_with_the_steps(monkeypatch):
    shown = []
    monkeypatch.setattr(turn, "display", shown.append)
    step = turn.progress_bar()
    values = []
    for number in (0, 30, 199):
        step(number, 200)
        values.append(shown[0].value)
    step(1, 0)  # a training that does not say how long it is
    assert values == [0, 15, 99] and len(shown) == 1


def test_an_interrupt_cancels_the_run(used, monkeypatch, clicked):
    def interrupt(number, steps):
        if number == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(turn, "progress_bar", lambda: interrupt)
    mine = turn_of(used=used)
    assert clicked(mine) == "cancelled" and mine.rows.empty and mine.shown == mine.first


KERNEL = """
import os, signal
import matplotlib.pyplot as plt
from lab import trace, turn

def trial(n, seed):
    for step in range(100):
        trace.step(step, 1.0, steps=100)
        if n == 2 and step == 50:
            os.kill(os.getpid(), signal.SIGINT)  # as the button of JupyterLab does
    return {"value": n}

def draw(rows):
    plt.subplots()[1].plot(rows.n)

mine = turn.Turn(trial, draw, {"n": [1, 2]})
print(mine.panel().children[1].model_id)
"""


@pytest.mark.slow
def test_in_a_kernel_the_button_runs_the_trial_and_an_interrupt_ends_it():
    manager, client = start_new_kernel(kernel_name="python3")

    def printed(sent):
        """What the kernel prints until it is idle again."""
        texts = []
        while True:
            message = client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != sent:
                continue
            if message["msg_type"] == "stream":
                texts.append(message["content"]["text"])
            if message["content"].get("execution_state") == "idle":
                return "".join(texts).strip()

    def click():
        event = {"method": "custom", "content": {"event": "click"}}
        message = client.session.msg("comm_msg", {"comm_id": button, "data": event})
        client.shell_channel.send(message)
        return printed(message["header"]["msg_id"])

    try:
        button = printed(client.execute(KERNEL))
        assert click().startswith("n 1, seed 0: ")
        assert printed(client.execute("mine.widgets['n'].value = 2")) == ""
        assert click() == "cancelled"
        assert printed(client.execute("print(mine.rows.value.tolist())")) == "[1]"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


# What is refused


def test_a_refused_value_is_told_in_one_line_with_what_is_allowed(used, clicked):
    mine = turn_of(controls={"n_heads": IntText(3)}, used=used)
    said = clicked(mine)
    assert "n_heads" in said and "divide" in said and "Traceback" not in said, said
    assert len(mine.rows) == 0 and "seed 3" in clicked(mine, n_heads=4)


def test_a_parameter_that_nobody_gives_is_named(clicked):
    assert "'steps' is missing" in clicked(turn_of(lambda rows: plt.subplots()))


def test_an_error_of_the_figure_is_told(used, clicked):
    plt.close("all")  # what tests before this one left open is not meant

    def fails(rows):
        if len(rows):
            raise KeyError("nothing")
        draw(rows)

    assert clicked(turn_of(fails, used=used)) == "KeyError: 'nothing'"
    assert plt.get_fignums() == []


# Sliders and figures


def two_panels(n_heads):
    _, axes = plt.subplots(1, 2)
    axes[0].plot([1, 2, n_heads])
    axes[1].bar(["a", "b"], [n_heads, 1])
    axes[1].set_ylabel("loss")


def test_a_slider_redraws_its_figure():
    panel = turn.sliders(partial(turn.picture, two_panels), turn.widgets_of({"n_heads": (1, 9)}))
    slider, shown, said = panel.children
    before = bytes(shown.value)
    slider.value = 6
    after = bytes(shown.value)
    assert after != before and after.startswith(b"\x89PNG") and said.value == ""
    assert plt.get_fignums() == []


def refuses(n):
    raise ValueError("at most 5 <here>") if n == 6 else KeyError(n)


def test_an_exception_of_a_figure_is_shown_in_the_panel():
    slider, shown, said = turn.sliders(refuses, turn.widgets_of({"n": (1, 9)})).children
    slider.value = 6
    assert said.value == "at most 5 &lt;here&gt;" and not bytes(shown.value)


def test_what_is_no_control_is_refused():
    with pytest.raises(TypeError, match="n='x'.*no control|n=None is no control"):
        turn.widgets_of({"n": None})


def test_where_no_widgets_run_the_first_state_stands_with_what_is_stored(used):
    assert list(turn.play(two_panels, {"n_heads": [3, 4]}, headless=True)[1]) == [states.TYPE]
    picture, shown = turn.live(lookups, draw, {"n_heads": [1, 2]}, used=used, headless=True)
    assert list(shown) == [states.TYPE] and picture.startswith(b"\x89PNG")
    assert "application/vnd.jupyter.widget-view+json" in turn.live(lookups, draw, {"n_heads": [1, 2]}, used=used)[1]


@pytest.mark.parametrize("words, said", [("", "Train now"), ("Measure now", "Measure now")])
def test_the_button_says_what_the_lesson_does_and_the_figure_is_there(used, words, said):
    mine = turn.Turn(lookups, draw, {"n_heads": [1, 2]}, used=used)
    choice, button, out = mine.panel(words).children
    assert button.description == said and choice.value == 1
    assert base64.b64decode(out.outputs[0]["data"]["image/png"]) == mine.first
