"""`lab run --check` and `--accept`: recorded rows are kept only if the current code reproduces them."""

import json
import subprocess

import made
import pytest
from made import DICE
from typer.testing import CliRunner

from lab import runs, trials
from lab.run import app

pytestmark = pytest.mark.slow


def lab(*words):
    return CliRunner().invoke(app, words)


def commit(root):
    for words in (["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "x"]):
        subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A git repository with a recorded run of the dice notebook."""
    monkeypatch.setenv("LAB_PROJECT", str(root := made.write(tmp_path / "project")))
    subprocess.run(["git", "init"], cwd=root, check=True, capture_output=True)
    folder = made.ran(root, "runs/quick")
    used = json.loads((folder / "run.json").read_text())["trials"]
    place = trials.Place(DICE, root / "results" / ".trials", root / "results" / "record")
    trials.record(place, used)
    (root / ".gitignore").write_text("results/.*\nresults/runs\n")
    commit(root)
    return root


def edit(root, old, new):
    path = root / "notebooks" / f"{DICE}.ipynb"
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


def rows(root):
    (path,) = (root / "results" / "record" / DICE).glob("thrown-*.jsonl")
    return path.name, trials.read(path)[1]


def test_accept_moves_identical_rows_to_the_new_key(recorded):
    before = rows(recorded)
    edit(recorded, "total / dice", "1.0 * total / dice")
    checked = lab("run", "1.1", "--check")
    assert checked.exit_code == 0, checked.output
    assert (
        f"{DICE}: thrown: 1 rows rerun, largest relative difference 0\n" in checked.output and rows(recorded) == before
    )
    assert lab("run", "1.1", "--accept").exit_code == 0
    name, lines = rows(recorded)
    assert name != before[0] and lines == before[1]
    assert "nothing to check" in lab("run", "1.1", "--check").output
    assert "worktree" not in subprocess.check_output(["git", "status"], cwd=recorded, text=True)


def test_accept_keeps_the_record_if_rows_differ(recorded):
    before = rows(recorded)
    edit(recorded, "total / dice", "1.001 * total / dice")
    refused = lab("run", "1.1", "--accept")
    assert refused.exit_code == 1 and "thrown: 1 rows rerun, largest relative difference 0.001" in refused.output
    assert rows(recorded) == before
    job = runs.plan(["1.1"], "quick", recorded / "results")[0]
    assert job.own == {}
