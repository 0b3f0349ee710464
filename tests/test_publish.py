"""What git holds of the results changes by `lab publish` and `lab record` alone. Of `lab.tools.record`."""

import json
import subprocess

import pytest
from lab.trials.runs import CHECKOUT
from made import COINS, DICE
from typer.testing import CliRunner

from lab.tools.cli import app
from lab.trials import runs


@pytest.fixture(scope="module")
def lab(project):
    """lab(*arguments): the command in a project that is a clean clone; its output."""
    (project / ".gitignore").write_text((CHECKOUT / ".gitignore").read_text("utf-8"))
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        git(project, *arguments)

    def run(*arguments):
        done = CliRunner().invoke(app, list(map(str, arguments)))
        assert done.exit_code == 0, done.output
        return done.output

    return run


def git(project, *arguments):
    me = ["-c", "user.name=me", "-c", "user.email=me@here"]
    return subprocess.run(["git", "-C", project, *me, *arguments], check=True, capture_output=True, text=True).stdout


def test_trying_things_leaves_the_clone_clean(lab, project):
    for arguments in (
        ["run", "--jobs", "1"],
        ["run", "1.2", "-p", "tosses=2"],
        ["list"],
        ["record", "--status"],
    ):
        lab(*arguments)
        assert git(project, "status", "--porcelain") == "", arguments
    made = {path.parent.relative_to(project / "results").as_posix() for path in project.glob("results/**/run.json")}
    assert made == {f"runs/quick/{DICE}", f"runs/quick/{COINS}", f"runs/quick/{COINS}-tosses-2"}


def test_a_run_of_a_clean_commit_is_published_one_lesson_at_a_time(lab, project):
    assert "done already" in lab("run", "1.1", "--jobs", "1")
    assert f"results/quick/{DICE}" in lab("publish", "1.1")
    mine, published = runs.place_of_run("quick", DICE), runs.published("quick", DICE)
    run = runs.read_run(published)
    assert run["commit"] == git(project, "rev-parse", "HEAD").strip()
    text = (published / "notebook.ipynb").read_text("utf-8")
    assert f"`results/quick/{DICE}`" in text and "results/runs" not in text
    assert (published / "verdicts.csv").read_bytes() == (mine / "verdicts.csv").read_bytes()
    assert "What do dice show?" in (published.parent / "README.md").read_text("utf-8")
    assert not runs.published("quick", COINS).exists()
    changed = git(project, "status", "--porcelain", "-uall").split()[1::2]
    assert changed and all(path.startswith("results/quick/") for path in changed)


def test_what_no_clean_commit_made_is_not_published(lab, project):
    assert runs.read_run(runs.place_of_run("quick", COINS))["changes"] is False
    notebook = project / "notebooks" / f"{COINS}.ipynb"
    book = json.loads(notebook.read_text("utf-8"))
    book["cells"][-1]["source"].insert(0, "tosses\n")
    notebook.write_text(json.dumps(book))
    for said, again in (("code, claims or parameters have changed", True), ("commit, then run", False)):
        done = CliRunner().invoke(app, ["publish", "1.2"])
        assert done.exit_code == 2 and said in done.output, done.output
        if again:
            lab("run", "1.2")
    assert not runs.published("quick", COINS).exists()
