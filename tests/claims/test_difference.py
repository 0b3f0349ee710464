"""Two runs side by side: what differs first, and a run that is not there."""

import shutil

import pandas as pd
import pytest
from typer.testing import CliRunner

from lab.claims import difference
from lab.claims.claims import Line
from lab.tools.cli import app
from lab.trials import runs


def lab(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def pair(tmp_path, monkeypatch):
    """Two runs below the results of a project: other seeds, one answer turned, one effect moved, one the same."""
    monkeypatch.setattr("lab.trials.runs.project_root", lambda: tmp_path)
    claims = ("same", "turned", "also-turned")
    for name, seeds, verdicts, effects in (
        ("quick/04_x", 5, "srs", (1, 2, 3)),
        ("runs/04_x-mine", 9, "ssr", (1, 2.5, 3)),
    ):
        words = {"s": "yes", "r": "no"}
        rows = [Line(id=c, exercise="1.4", answer=words[v], effect=e, low=e - 0.5, high=e + 0.5, n=5, unit="nats")
                for c, v, e in zip(claims, verdicts, effects, strict=True)]  # fmt: skip
        (tmp_path / "results" / name).mkdir(parents=True)
        pd.DataFrame([row.model_dump() for row in rows]).to_csv(tmp_path / "results" / name / "verdicts.csv")
        runs.write_run(tmp_path / "results" / name, {"parameters": {"profile": "quick", "seeds": seeds}})
    return tmp_path / "results", claims


def test_two_runs_side_by_side_what_differs_first(pair):
    results, (same, turned, also_turned) = pair
    for names in (("quick/04_x", "04_x-mine"), (results / "quick" / "04_x", "runs/04_x-mine")):
        done = lab("diff", *names)
        assert done.exit_code == 0, done.output
        lines = done.output.splitlines()
        assert lines[0].endswith("results/quick/04_x") and lines[1].endswith("results/runs/04_x-mine")
        (seeds,) = (line for line in lines if line.split()[:1] == ["seeds"])
        assert seeds.split() == ["seeds", "5", "9"]
        (row,) = (line for line in lines if line.split()[:1] == [turned])
        assert "no  2.0 [1.5, 2.5] nats, n = 5" in row and "yes  2.5 [2.0, 3.0] nats, n = 5" in row
        titles = [line.rpartition("  A ")[0].strip() for line in lines if "  A " in line]
        assert titles == ["parameters that differ", "answers that differ", "the same answer and effect",
                          "the same parameters"]  # fmt: skip
        heads = [line.split("  ")[0] for line in lines]
        assert heads.index("the same answer and effect") < heads.index(same) < heads.index("the same parameters")


@pytest.mark.parametrize("name", ["1.4", "4", "04", "04_x", "quick/04_x"])
def test_an_exercise_means_its_quick_run(pair, name, monkeypatch):
    results, _ = pair
    monkeypatch.setattr("lab.trials.parameters.project_root", lambda: results.parent)
    (results.parent / "notebooks").mkdir()
    (results.parent / "notebooks" / "04_x.ipynb").touch()
    shutil.copytree(results / "quick" / "04_x", results / "full" / "04_x")
    assert difference.find(name) == results / "quick" / "04_x"


def test_a_run_that_is_not_there_is_answered_by_those_that_are(pair):
    results, _ = pair
    done = lab("diff", "quick/04_x", "nonsuch")
    assert done.exit_code == 2 and "nonsuch" in done.output and "runs/04_x-mine" in done.output
    (results / "runs" / "04_x-mine" / "run.json").write_text("{")
    done = lab("diff", "quick/04_x", "04_x-mine")
    assert done.exit_code == 2 and "damaged" in done.output
    shutil.copytree(results / "quick" / "04_x", results / "full" / "04_x")
    done = lab("diff", "04_x", "04_x-mine")
    assert done.exit_code == 2 and "say which" in done.output and "results/full/04_x" in done.output
