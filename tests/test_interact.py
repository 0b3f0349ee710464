"""Sliders redraw a figure; a button runs a trial and gives the very rows of a sweep."""

import random

import ipywidgets
import matplotlib.pyplot as plt
import numpy
import pytest
import torch
from helpers import without_times

from lab import interact, trials
from lab.models import ModelConfig, Transformer
from lab.tasks.sequences import Lookup
from lab.training import TrainConfig, fit

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
def lines(tmp_path):
    """Finished trials of a sweep."""
    place = trials.Place("n", tmp_path)
    trials.sweep(lookups, GRID, place)
    return place.lines("lookups")


@pytest.fixture
def shown(monkeypatch):
    """The figures that were shown."""
    pictures = []
    monkeypatch.setattr("lab.figures.display", lambda data, raw: pictures.append(data["image/png"]))
    return pictures


def test_a_run_gives_the_very_rows_of_a_sweep_and_each_takes_a_new_seed(lines, shown, tmp_path, capsys):
    runs = interact.Runs(lookups, draw, lines)
    runs.show()
    assert runs.rows.empty
    for _ in range(2):
        runs.run({"n_heads": 2})
    place = trials.Place("n", tmp_path / "other")
    swept = trials.sweep(lookups, GRID | {"n_heads": [2], "seed": [2, 3]}, place)
    assert without_times(runs.rows).equals(without_times(swept)[[*without_times(runs.rows)]])
    assert len(set(shown)) == 3 and capsys.readouterr().out == "n_heads 2, seed 2\nn_heads 2, seed 3\n"


def test_random_numbers_of_the_reader_go_on_as_if_nothing_had_run(lines, shown):
    def state():
        return random.random(), numpy.random.rand(), torch.rand(()).item()

    def seed_all():
        random.seed(1)
        numpy.random.seed(1)
        torch.manual_seed(1)

    seed_all()
    expected = state()
    seed_all()
    interact.Runs(lookups, draw, lines).run({"n_heads": 1})
    assert state() == expected


def test_a_parameter_that_nobody_gives_is_named(shown):
    with pytest.raises(TypeError, match="missing a required argument: 'steps'"):
        interact.Runs(lookups, draw, []).run({"n_heads": 1})


def test_a_point_is_a_function_of_the_controls_or_values_over_a_dict():
    assert interact.point_of(lambda width: {"n_heads": 2 * width}, {"width": 5}) == {"n_heads": 10}
    assert interact.point_of({"steps": 9, "n_heads": 3}, {"n_heads": 1}) == {"steps": 9, "n_heads": 1}


def two_panels(n_heads, kind):
    _, axes = plt.subplots(1, 2)
    axes[0].plot([1, 2, n_heads])
    axes[1].bar([kind, "b"], [n_heads, 1])


def test_without_a_reader_the_first_state_stands_and_no_widget(lines, shown, monkeypatch):
    monkeypatch.setattr(ipywidgets, "interact", None)
    interact.play(two_panels, {"n_heads": (3, 5), "kind": ["a", "c"]}, live=False)
    interact.live(interact.Runs(lookups, draw, lines), {"n_heads": [1, 2]}, None, "Train now", live=False)
    assert len(shown) == 2 and plt.get_fignums() == []


def test_what_is_no_control_is_refused():
    with pytest.raises(TypeError, match="n=None is no control: a widget, .* or a list of choices"):
        interact.first_values({"n": None})


@pytest.mark.parametrize("name", interact.LIVE)
def test_a_reader_is_there_in_jupyterlab_and_vs_code(name, monkeypatch):
    for each in interact.LIVE:
        monkeypatch.delenv(each, raising=False)
    assert not interact.is_live(), "under papermill"
    monkeypatch.setenv(name, "1")
    assert interact.is_live()
