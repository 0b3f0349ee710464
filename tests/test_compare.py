"""`lab.compare`: a card says if its prediction came first, arms are different and fair, a typo names what was meant.

Of `lab.recipes.comparison`, `lab.recipes.standard`, `lab.recipes.arms`, `lab.claims.predictions`, `lab.names`
and `lab.shown`.
"""

import inspect
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass

import pandas as pd
import pytest
import torch
from torch import nn

import lab
from lab.claims.claims import Line
from lab.claims.predictions import read_prediction
from lab.compare import Comparison, Plan
from lab.measure.fairness import UnfairComparison
from lab.models import ModelConfig
from lab.models.gpt import Mixer, Position
from lab.recipes import arms, comparison
from lab.recipes.standard import STANDARD, Problem, standard
from lab.tasks.task import Task, uniform
from lab.trials.runs import CHECKOUT, read_run
from lab.trials.store import File

pytestmark = pytest.mark.usefixtures("project")
TINY = {"steps": 4, "d_model": 8, "n_heads": 2, "n_layers": 1, "batch": 4, "warmup": 0}
PREDICT = "fading - rotary > 0.05"


def test_a_comparison_is_shown_in_a_line(tmp_path):
    lines = [Line(id=name, exercise="", answer=name, label=name) for name in ("supported", "out of reach")]
    shown = repr(Comparison(lines, pd.DataFrame({"seed": range(30)}), tmp_path))
    assert shown == f"<Comparison: supported, out of reach; .table has 30 rows, .folder is {tmp_path}>"


def test_what_is_called_by_its_module_shows_its_arguments_and_lab_lists_its_parts():
    assert [*inspect.signature(lab.compare).parameters][:3] == ["task", "arms", "predict"]
    assert [*inspect.signature(lab.study).parameters] == ["exercise", "namespace", "ledger"]
    assert {"compare", "study", "charts", "zoo"} <= {*dir(lab)}


class Fading(Position):
    """Scores fall with the distance."""

    def bias(self, q_len, k_len):
        t = torch.arange(k_len)
        return -(t[k_len - q_len :, None] - t).abs().float()[None]


class Misspelt(Position):
    def at_querykey(self, q, k, start=0):
        return q, k


class Mean(Mixer):
    """Every token gets the mean of all, later ones too."""

    def __init__(self, config, position):
        super().__init__(config, position)
        self.out = nn.Linear(config.d_model, config.d_model)

    def forward(self, x, cache=None, padding_mask=None):
        return self.out(x.mean(1, keepdim=True).expand_as(x))


class Small(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(config.vocab_size, 8), nn.Linear(8, config.d_out or config.vocab_size))

    def forward(self, tokens):
        return self.layers(tokens)


@dataclass(frozen=True)
class Parity(Task):
    """Whether the number of ones so far is odd."""

    length: int = 6
    vocabulary = 2

    def marks(self):
        return uniform(2)

    def batch(self, generator, size):
        tokens = torch.randint(2, (size, self.length), generator=generator)
        return tokens, tokens.cumsum(1) % 2


@pytest.fixture(autouse=True)
def registries():
    """Kinds that a test registers are gone after it."""
    seams = [*{id(seam): seam for seam in arms.SEAMS.values()}.values(), comparison.Model, Problem]
    before = [dict(seam.kinds) for seam in seams]
    yield
    for seam, kinds in zip(seams, before, strict=True):
        seam.kinds.clear()
        dict.update(seam.kinds, kinds)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A comparison in a folder outside the project, with two runs of each arm."""
    monkeypatch.chdir(tmp_path)

    def call(**options):
        usual = {"arms": {"rotary": "rotary", "fading": Fading}, "predict": PREDICT, "seeds": 2, "jobs": 1} | TINY
        return lab.compare(**usual | options)

    return call


# The whole of it


def test_one_call_predicts_trains_draws_and_judges(run, tmp_path, capsys):
    found = run()
    assert found.verdict == "out of reach", "nothing is learned in four steps"
    assert found.folder == tmp_path / "lab-results" / "copy-rotary-fading"
    assert set(found.table.arm) == {"rotary", "fading"} and set(found.table.length) == {8, 10, 12, 16}
    assert (found.folder / "figures" / "comparison.png").stat().st_size > 1000
    assert read_run(found.folder)["status"] == "done"
    assert found.lines[0].fixed == "before"
    said = " ".join(capsys.readouterr().out.split())
    assert "Predicted: fading - rotary" in said and "was fixed before these runs" in said
    assert "Exploratory" not in said and "learned" in said and "parameters: rotary" in said
    assert "base64" not in said and "image/png" not in said, "a terminal shows text"


def test_what_ran_is_not_run_again_and_a_later_prediction_is_exploratory(run):
    run()
    later = "fading - rotary < 0"
    again = run(predict=[later, PREDICT])
    assert read_run(again.folder)["record"]["ran_here"] == 0
    assert [line.fixed for line in again.lines] == ["exploratory", "before"]
    more = run(arms={"fading": Fading, "alibi": "alibi"}, predict="fading - alibi > 0")
    assert read_run(more.folder)["record"]["ran_here"] == 2, "the arm that ran is taken from the store"


def test_trials_of_a_record_are_used(run, tmp_path):
    run()
    (kept,) = (tmp_path / "lab-results" / ".trials").glob("*.jsonl")
    labels = {"machine": "another", "arithmetic": "x", "commit": "c"}
    bodies = [each | {"labels": each["labels"] | labels} for each in File(kept).trials]
    File(tmp_path / "shared" / kept.name).rewrite(bodies)
    found = run(results="elsewhere", record=tmp_path / "shared")
    assert read_run(found.folder)["record"]["recorded"] == 4 and found.folder.parent == tmp_path / "elsewhere"


@pytest.mark.slow
def test_each_arm_may_have_the_best_of_several_rates(run):
    found = run(rates=[0.001, 0.01, 0.1], seeds=2)
    assert set(found.table.learning_rate) <= {0.001, 0.01, 0.1}
    assert "rates" in found.lines[0].gates


@pytest.mark.parametrize("task", ["recall", "sums", "code"])
def test_every_task_by_name_runs(run, task):
    found = run(task=task)
    assert found.lines[0].label == "out of reach" and len(found.table) == 4 * len(set(found.table.length))


def test_the_mark_of_program_text_is_counted_from_the_bytes_that_are_read():
    few, more = (Plan("code", STANDARD["code"], {"steps": steps}).usual_mark() for steps in (20, 200))
    assert 1.9 < more < few < 5.6  # a byte of text; one of 256 that are all alike


def test_a_task_of_ones_own_is_judged_by_its_marks(run):
    found = run(task=Parity(length=5))
    assert "mark 0.95" in found.lines[0].gates and found.folder.name == "parity-rotary-fading"


# Arms


@pytest.mark.parametrize("given", [
    {"gelu": "gelu", "relu": "relu"},
    {"one": "causal", "two": {"kind": "window", "size": 3}},
    {"one": {"position": "rotary", "ffn": "relu"}, "two": {"position": "alibi"}},
    {"one": ModelConfig(vocab_size=1, block_size=1, position="t5"), "two": {"n_heads": 1}},
    {"one": "attention", "two": Small},
    {"one": "layernorm", "two": "rmsnorm"},
])  # fmt: skip
def test_any_seam_and_any_model_may_be_an_arm(run, given):
    first, second = given
    if given.get("two") is Small:
        given = {"one": {"mixer": "attention"}, "two": Small}
    assert set(run(arms=given, predict=f"{second} - {first} > 0").table.arm) == set(given)


def test_an_arm_that_reads_the_answers_is_out_of_reach(run):
    found = run(arms={"attention": {"position": "none"}, "mean": {"mixer": Mean, "position": "none"}},
                predict="mean - attention > 0")  # fmt: skip
    assert "✗ no answer: leak 1" in found.lines[0].gates


def test_arms_that_are_one_are_refused(run):
    with pytest.raises(UnfairComparison, match="'a' and 'b' give the same outputs"):
        run(arms={"a": {"kind": "rotary", "base": 10000.0}, "b": "rotary"}, predict="a - b > 0")


def test_parameters_that_differ_are_said(run):
    found = run(arms={"two": {"n_layers": 2}, "one": {"n_layers": 1}}, predict="two - one > 0")
    assert "apart, more than 5%" in found.lines[0].note


def test_a_method_that_nobody_calls_is_named(run):
    with pytest.raises(ValueError, match="at_querykey is no method of Position; did you mean 'at_query_key'"):
        run(arms={"rotary": "rotary", "fading": Misspelt})


# Typos


TYPOS = {  # options; what the answer names
    "task": ({"task": "coppy"}, "did you mean 'copy'"),
    "a kind": ({"arms": {"rotary": "rotery", "fading": Fading}}, "'rotery' is not a known kind; did you mean 'rotary'"),
    "an arm of the prediction": ({"predict": "fadng - rotary > 0"}, "did you mean 'fading - rotary'"),
    "an option": ({"stepps": 3}, "did you mean 'steps'"),
    "an argument": ({"seed": 3}, "did you mean 'seeds'"),
    "a measure": ({"measure": "acuracy"}, "did you mean 'accuracy'"),
    "a field": ({"arms": {"a": {"posiion": "t5"}, "b": {"position": "t5"}}, "predict": "a - b > 0"}, "'position'"),
    "a seam": ({"seam": "positon"}, "did you mean 'position'"),
    "an option of a kind": ({"arms": {"rotary": {"kind": "rotary", "bse": 3}, "fading": Fading}}, "no option 'bse'"),
    "no prediction": ({"predict": ""}, "write such as"),
    "a length": ({"length": 11}, r"\[8, 10, 12, 16\]"),
    "a tolerance": ({"predict": "fading - rotary = 0"}, "a tolerance goes with ="),
    "a word of several seams": ({"arms": {"a": "none", "b": "none"}, "predict": "a - b > 0"}, "say which with seam="),
    "the reference": ({"reference": "rotry"}, "did you mean 'rotary'"),
    "one arm": ({"arms": {"rotary": "rotary"}}, "two arms or more"),
    "one seed": ({"seeds": 1}, "two runs"),
}


@pytest.mark.parametrize("options, named", TYPOS.values(), ids=TYPOS)
def test_a_typo_names_what_was_meant_and_writes_nothing(run, tmp_path, options, named):
    with pytest.raises(ValueError, match=named):
        run(**options)
    assert not list(tmp_path.iterdir())


def test_a_task_is_a_task():
    with pytest.raises(TypeError, match="a task is one of copy, recall, sums, code"):
        standard(3)
    assert set(STANDARD) == set(Problem.kinds)


@pytest.mark.parametrize("text, read", [
    ("mine - rotary > 0.05", ("mine", "rotary", "above", 0.05, 0.0)),
    ("rotary-mine<-1e-3", ("rotary", "mine", "below", -0.001, 0.0)),
    ("mine - rotary = 0 ± 0.02", ("mine", "rotary", "equal", 0.0, 0.02)),
])  # fmt: skip
def test_a_prediction_is_read(text, read):
    assert read_prediction(text, ["mine", "rotary"]) == read
    assert read_prediction("a-b - b > 1", ["a-b", "b"])[:2] == ("a-b", "b"), "names may hold the sign"


def test_a_leak_is_seen_only_where_answers_stand_in_the_input():
    tokens = torch.tensor([[1, 2, 3, 1, 2, 3]])
    ahead = lambda x: nn.functional.one_hot(x.roll(-1, 1), 4).float()  # noqa: E731
    here = lambda x: nn.functional.one_hot(x, 4).float()  # noqa: E731
    following = tokens.roll(-1, 1)
    assert comparison.leaks(ahead, tokens, following, 4) == 1 and comparison.leaks(here, tokens, following, 4) == 0
    assert comparison.leaks(ahead, tokens, tokens, 4) == 0, "nothing to be read ahead"


# From elsewhere

SCRIPT = """
    import torch, lab
    from lab.models.gpt import Position

    class Mine(Position):
        def bias(self, q_len, k_len):
            t = torch.arange(k_len)
            return -(t[k_len - q_len:, None] - t).abs().float()[None]

    found = lab.compare(task="copy", arms={"rotary": "rotary", "mine": Mine}, seeds=2, jobs=2,
                        predict="mine - rotary > 0.05", steps=2, d_model=8, n_heads=2, batch=4, warmup=0)
    print("judged:", found.verdict)
"""


@pytest.mark.slow
def test_a_plain_script_outside_the_project_compares_in_workers(tmp_path):
    """Without `if __name__ == "__main__"`."""
    (tmp_path / "mine.py").write_text(textwrap.dedent(SCRIPT))
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    command = [sys.executable, "mine.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900)
    assert done.stdout.splitlines()[-1:] == ["judged: out of reach"], done.stderr
    assert "4/4 trials" in done.stderr
    assert len(pd.read_csv(tmp_path / "lab-results/copy-rotary-mine/tables/runs.csv")) == 16
