"""The notebook your_own_idea.ipynb: it runs when given by path, and reports invalid variants before training."""

import pytest
import torch
from definitions import definitions
from typer.testing import CliRunner

from lab import claims
from lab.files import CHECKOUT
from lab.models.positions import Position
from lab.run import app

NOTEBOOK = CHECKOUT / "notebooks" / "your_own_idea.ipynb"
TINY = ["-p", "seeds=2", "-p", "steps=4", "-p", "d_model=8", "-p", "longest=4"]


def test_notebook_given_by_path_runs_and_its_claims_are_judged(tmp_path):
    done = CliRunner().invoke(app, ["run", str(NOTEBOOK), "--results", str(tmp_path), "--jobs", "1", *TINY])
    assert done.exit_code == 0, done.output
    (answers,) = tmp_path.glob("runs/own/*/answers.csv")
    lines = claims.read_answers(answers.parent)
    assert lines.id.tolist() == list(claims.read(NOTEBOOK.with_suffix(".yaml")))
    assert (answers.parent / "figures" / "lengths.png").exists()
    assert "lab show" in done.output


@pytest.fixture
def check():
    with definitions("your_own_idea", "check") as module:
        yield module.check


@pytest.fixture
def variant():
    """A function variant(**hooks) that registers a position encoding with these hooks as kind "tried"."""

    def made(**hooks):
        Position.kinds["tried"] = type("Tried", (Position,), hooks)

    yield made
    del Position.kinds["tried"]


def ones(*shape):
    return torch.ones(shape)


def from_the_first_key(self, q_len, k_len):
    return torch.arange(q_len)[:, None].expand(q_len, k_len)[None].float()


def behind_a_gate(self, x, start=0):
    return x + self.gate * x.mean(1, keepdim=True)


def with_a_gate_of_zero(self, config):
    Position.__init__(self, config)
    self.gate = torch.nn.Parameter(torch.zeros(1))


MISTAKES = {
    "misspelt hook": ({"biases": lambda self, q, k: ones(1, q, k)}, "'tried' has none of the hooks bias, at_input"),
    "bias of the wrong shape": (
        {"bias": lambda self, q, k: ones(k, q)[None]},
        r"bias has shape \(1, 8, 5\), expected \(h, q, k\) = \(4, 5, 8\)",
    ),
    "bias without heads": ({"bias": lambda self, q, k: ones(q, k)}, r"bias has shape \(5, 8\)"),
    "queries taken for the first keys": ({"bias": from_the_first_key}, "takes its queries for the first keys"),
    "fewer tokens": (
        {"at_input": lambda self, x, start=0: x[:, 1:]},
        r"at_input has shape \(2, 32, 16\), expected \(2, 33, 16\)",
    ),
    "NaN": ({"at_input": lambda self, x, start=0: x / 0 - x / 0}, "forward pass of 'tried' gives NaN or infinity"),
    "a leak": ({"at_input": lambda self, x, start=0: x + x.mean(1, keepdim=True)}, "'tried' sees later tokens"),
    "a leak behind a gate": ({"at_input": behind_a_gate, "__init__": with_a_gate_of_zero}, "'tried' sees later tokens"),
}


@pytest.mark.parametrize("hooks, said", MISTAKES.values(), ids=MISTAKES)
def test_invalid_variant_raises_before_training(check, variant, hooks, said):
    variant(**hooks)
    with pytest.raises(ValueError, match=said):
        check("tried")


def test_valid_variant_passes_the_check(check, variant):
    variant(bias=lambda self, q, k: ones(4, q, k))
    check("tried")
