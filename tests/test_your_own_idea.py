"""The notebook for a reader's own idea runs by its path, and names a mistake before it trains."""

import cells
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from lab.claims.claims import own_ledger
from lab.models.positions import Position
from lab.tools.cli import app
from lab.trials.runs import CHECKOUT

NOTEBOOK = CHECKOUT / "notebooks" / "your_own_idea.ipynb"
TINY = ["-p", "seeds=2", "-p", "steps=4", "-p", "d_model=8", "-p", "longest=4"]


def test_it_runs_by_its_path_and_is_judged(tmp_path):
    done = CliRunner().invoke(app, ["run", str(NOTEBOOK), "--results", str(tmp_path), "--jobs", "1", *TINY])
    assert done.exit_code == 0, done.output
    (verdicts,) = tmp_path.glob("runs/own/*/verdicts.csv")
    assert pd.read_csv(verdicts).id.tolist() == list(own_ledger(NOTEBOOK.with_suffix(".yaml")))
    assert (verdicts.parent / "figures" / "lengths.png").exists()
    assert "lab show" in done.output


@pytest.fixture
def check():
    with cells.definitions(str(NOTEBOOK), "check") as module:
        yield module.check


@pytest.fixture
def variant():
    """variant(**hooks): registers a position encoding with these hooks under the name "tried"."""

    def made(**hooks):
        Position.kinds["tried"] = type("Tried", (Position,), hooks)

    yield made
    del Position.kinds["tried"]


def ones(*shape):
    return torch.ones(shape)


@pytest.mark.parametrize("hooks, said", [
    ({"bias": lambda self, q, k: ones(k, q)[None]}, r"bias has shape \(1, 8, 5\), expected \(h, q, k\) = \(4, 5, 8\)"),
    ({"bias": lambda self, q, k: ones(q, k)}, r"bias has shape \(5, 8\)"),
    ({"at_input": lambda self, x, start=0: x[:, 1:]}, r"at_input has shape \(2, 7, 16\), expected \(2, 8, 16\)"),
    ({"at_input": lambda self, x, start=0: x / 0 - x / 0}, "the first forward pass of 'tried' gives NaN or infinity"),
    ({"at_input": lambda self, x, start=0: x + x.mean(1, keepdim=True)}, "'tried' sees later tokens"),
])  # fmt: skip
def test_a_mistake_is_named_before_training(check, variant, hooks, said):
    variant(**hooks)
    with pytest.raises(ValueError, match=said):
        check("tried")


def test_a_sound_idea_passes(check, variant):
    variant(bias=lambda self, q, k: ones(4, q, k))
    check("tried")
