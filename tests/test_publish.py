"""What git holds of the results changes by `lab publish` alone: finished runs of a clean commit, and their pages."""

import shutil
import subprocess

import made
import nbformat
import pandas as pd
import pytest
from made import COINS, DICE
from nbformat.v4 import new_markdown_cell
from typer.testing import CliRunner

from lab import files, publish, run, trials
from lab.run import app

README = "# A\n\n<!-- answers -->\nold\n<!-- /answers -->\n\nB\n"


def lab(*words):
    return CliRunner().invoke(app, words)


@pytest.fixture
def published(tmp_path, monkeypatch):
    """The project, a git repository, with a finished run of the dice; results are not in git."""
    monkeypatch.setenv("LAB_PROJECT", str(root := made.write(tmp_path / "project")))
    add_answer(root / "notebooks" / f"{DICE}.ipynb", "Seven, on average.")
    (root / "README.md").write_text(README)
    (root / ".gitignore").write_text("results\n")
    for words in (["init"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "x"]):
        subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)
    made.ran(root, "runs/quick")
    (job,) = run.plan(["1.1"], "quick", root / "results")
    (job.folder / "figures" / "drawn.svg").touch()
    (job.folder / "notebook.ipynb").write_text(
        job.notebook.read_text("utf-8").replace("Nothing is trained", f"results/runs/quick/{DICE}"), "utf-8"
    )
    kept(job, fingerprint=job.fingerprint)
    return job


def add_answer(notebook, english):
    book = nbformat.read(notebook, 4)
    cell = new_markdown_cell(made.folded(english, "平均七。"), id="answer", metadata={"tags": ["answer"]})
    book.cells.insert(1, cell)
    nbformat.write(book, notebook)


def kept(job, **fields):
    files.write_run(job.folder, files.read_run(job.folder) | fields)


def test_a_run_is_published_with_its_pages(published):
    result = lab("publish")
    assert result.exit_code == 0, result.output
    quick = files.project_root() / "results" / "quick"
    (path,) = (quick.parent / "record" / DICE).glob("thrown-*.jsonl")
    assert len(trials.read(path)[1]) == 12, "its rows are in the record"
    found = {path.relative_to(quick / DICE).as_posix() for path in (quick / DICE).rglob("*") if path.is_file()}
    wanted = {"notebook.ipynb", "run.json", "answers.csv", "tables/throws.csv", "tables/means.csv"}
    assert found == wanted | {"figures/means.png"}, "no SVG, no options"
    assert f"results/quick/{DICE}" in (quick / DICE / "notebook.ipynb").read_text("utf-8")
    page = (quick / "README.md").read_text("utf-8")
    assert f"## [1.1 What do dice show?]({DICE}/notebook.ipynb)\n\nHow many?\n\n![The mean of dice, by" in page
    assert f"\n\nSeven, on average.\n\n[answers]({DICE}/answers.csv)" in page
    said = page.partition("# What the book says, what we found")[2]
    assert "> It is said that dice more sides. 据称 dice more sides。 (chapter §1.2)\n\n* 8 sides minus 4 **" in said
    table = pd.read_csv(quick / "claims.csv")
    assert set(table.exercise) == {DICE} and set(table.id) == {"dice-more-sides", "dice-count"}
    item = f"* [1.1 What do dice show?](results/quick/{DICE}/notebook.ipynb) Seven, on average.\n"
    text = (files.project_root() / "README.md").read_text("utf-8")
    assert text == README.replace("old\n", item), "the list of answers alone"


@pytest.mark.parametrize("wrong, said", [
    ({"fingerprint": "older"}, "has not run with this code: use `lab run` first"),
    ({"changes": True}, "was made from uncommitted code: commit, then run"),
    ({"changes": None}, "was made from uncommitted code"),
], ids=str)  # fmt: skip
def test_a_run_of_other_code_is_refused(published, wrong, said):
    kept(published, **wrong)
    result = lab("publish", "1.1")
    assert result.exit_code == 2 and said in result.output
    assert not (files.project_root() / "results" / "quick").exists()


def test_a_run_of_own_parameters_and_one_that_is_missing_are_not_published(published):
    shutil.move(published.folder, published.folder.with_name(f"{DICE}-seeds-3"))
    assert "no notebook has run at quick here" in lab("publish").output
    assert f"{COINS} has not run with this code" in lab("publish", "1.2").output


def test_a_published_run_is_replaced_whole(published):
    (quick := files.project_root() / "results" / "quick" / DICE).mkdir(parents=True)
    (quick / "older.svg").touch()
    assert lab("publish").exit_code == 0
    assert not (quick / "older.svg").exists() and [path.name for path in quick.parent.glob(".*")] == []


def test_without_answers_the_readme_stays(published):
    notebook = files.project_root() / "notebooks" / f"{DICE}.ipynb"
    book = nbformat.read(notebook, 4)
    del book.cells[1]
    nbformat.write(book, notebook)
    publish.write_pages()
    assert (files.project_root() / "README.md").read_text("utf-8") == README
