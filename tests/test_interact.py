"""Interactive figures: the button runs trials as a sweep does."""

import random
from types import SimpleNamespace

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
    """A training run, and a number drawn from the global generators."""
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
    monkeypatch.setattr("lab.charts.show", lambda picture: pictures.append(picture))
    return pictures


@pytest.fixture
def run(lines, shown, monkeypatch):
    """The callback of the button, and a list of the rows passed to the plot function."""
    pressed, drawn = [], []
    widget = SimpleNamespace(options=lambda manual_name: lambda run, **controls: pressed.append(run))
    monkeypatch.setattr(ipywidgets, "interact_manual", widget)

    def draw_and_keep(rows):
        drawn.append(rows)
        draw(rows)

    interact.live(lookups, draw_and_keep, lines, {"n_heads": [1, 2]})
    return pressed[0], drawn


def test_button_runs_match_a_sweep_and_use_new_seeds(run, shown, tmp_path, capsys):
    press, drawn = run
    for _ in range(2):
        press(n_heads=2)
    assert len(set(shown)) == 2 and capsys.readouterr().out == "n_heads 2, seed 2\nn_heads 2, seed 3\n"
    place = trials.Place("n", tmp_path / "other")
    swept = trials.sweep(lookups, GRID | {"n_heads": [2], "seed": [2, 3]}, place)
    rows = without_times(drawn[-1])
    assert rows.equals(without_times(swept)[[*rows]])


def test_run_restores_global_random_state(run):
    def state():
        return random.random(), numpy.random.rand(), torch.rand(()).item()

    def seed_all():
        random.seed(1)
        numpy.random.seed(1)
        torch.manual_seed(1)

    seed_all()
    expected = state()
    seed_all()
    run[0](n_heads=1)
    assert state() == expected


def two_panels(n_heads, kind):
    _, axes = plt.subplots(1, 2)
    axes[0].plot([1, 2, n_heads])
    axes[1].bar([kind, "b"], [n_heads, 1])


def test_without_a_frontend_only_the_initial_figure_is_shown(lines, shown, monkeypatch):
    monkeypatch.setattr(ipywidgets, "interact", None)
    monkeypatch.setattr(ipywidgets, "interact_manual", None)
    plt.close("all")
    interact.play(two_panels, {"n_heads": (3, 5), "kind": ["a", "c"]}, live=False)
    interact.live(lookups, draw, lines, {"n_heads": [1, 2]}, live=False)
    assert len(shown) == 2 and plt.get_fignums() == []
