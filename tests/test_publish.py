"""`lab publish`: runs of a clean commit and the result pages."""

import shutil
import subprocess

import made
import nbformat
import pandas as pd
import pytest
from made import COINS, DICE
from nbformat.v4 import new_markdown_cell
from typer.testing import CliRunner

from lab import files, publish, runs, trials
from lab.run import app

README = "# A\n\n<!-- answers -->\nold\n<!-- /answers -->\n\nB\n"


def lab(*words):
    return CliRunner().invoke(app, words)


@pytest.fixture
def published(tmp_path, monkeypatch):
    """The job of a finished run in a git repository that ignores results."""
    monkeypatch.setenv("LAB_PROJECT", str(root := made.write(tmp_path / "project")))
    add_answer(root / "notebooks" / f"{DICE}.ipynb", "Seven, on average.")
    (root / "README.md").write_text(README)
    (root / ".gitignore").write_text("results\n")
    for words in (["init"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "x"]):
        subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)
    made.ran(root, "runs/quick")
    (job,) = runs.plan(["1.1"], "quick", root / "results")
    (job.folder / "notebook.ipynb").write_text(
        job.notebook.read_text("utf-8").replace("Nothing is trained", f"results/runs/quick/{DICE}"), "utf-8"
    )
    update_run(job, fingerprint=job.fingerprint)
    return job


def add_answer(notebook, english):
    book = nbformat.read(notebook, 4)
    cell = new_markdown_cell(made.folded(english, "平均七。"), id="answer", metadata={"tags": ["answer"]})
    book.cells.insert(1, cell)
    nbformat.write(book, notebook)


def update_run(job, **fields):
    files.write_run(job.folder, files.read_run(job.folder) | fields)


def test_publish_copies_the_run_records_its_rows_and_updates_the_pages(published):
    result = lab("publish")
    assert result.exit_code == 0, result.output
    quick = files.project_root() / "results" / "quick"
    (path,) = (quick.parent / "record" / DICE).glob("thrown-*.jsonl")
    assert len(trials.read(path)[1]) == 12, "rows are recorded"
    names = {path.relative_to(quick / DICE).as_posix() for path in (quick / DICE).rglob("*") if path.is_file()}
    expected = {"notebook.ipynb", "run.json", "answers.csv", "tables/throws.csv", "tables/means.csv"}
    assert names == expected | {"figures/means.png"}
    assert f"results/quick/{DICE}" in (quick / DICE / "notebook.ipynb").read_text("utf-8")
    page = (quick / "README.md").read_text("utf-8")
    assert f"## [1.1 What do dice show?]({DICE}/notebook.ipynb)\n\nHow many?\n\n![The mean of dice, by" in page
    assert f"\n\nSeven, on average.\n\n[answers]({DICE}/answers.csv)" in page
    section = page.partition("# What the book says, what we found")[2]
    assert "> It is said that dice more sides. 据称 dice more sides。 (chapter §1.2)\n\n* 8 sides minus 4 **" in section
    table = pd.read_csv(quick / "claims.csv")
    assert set(table.exercise) == {DICE} and set(table.id) == {"dice-more-sides", "dice-count"}
    item = f"* [1.1 What do dice show?](results/quick/{DICE}/notebook.ipynb) Seven, on average.\n"
    text = (files.project_root() / "README.md").read_text("utf-8")
    assert text == README.replace("old\n", item), "only the list of answers changes"


@pytest.mark.parametrize("fields, message", [
    ({"fingerprint": "older"}, "has no run of the current code: use `lab run` first"),
    ({"changes": True}, "is not from a clean commit: commit, delete this folder, then run again"),
    ({"changes": None}, "is not from a clean commit"),
], ids=str)  # fmt: skip
def test_outdated_or_uncommitted_run_is_refused(published, fields, message):
    update_run(published, **fields)
    result = lab("publish", "1.1")
    assert result.exit_code == 2 and message in result.output
    assert not (files.project_root() / "results" / "quick").exists()


def test_runs_with_own_parameters_and_missing_runs_are_not_published(published):
    shutil.move(published.folder, published.folder.with_name(f"{DICE}-seeds-3"))
    assert "there are no quick runs" in lab("publish").output
    assert f"{COINS} has no run of the current code" in lab("publish", "1.2").output


def test_publish_replaces_the_folder(published):
    (quick := files.project_root() / "results" / "quick" / DICE).mkdir(parents=True)
    (quick / "older.svg").touch()
    assert lab("publish").exit_code == 0
    assert not (quick / "older.svg").exists() and [path.name for path in quick.parent.glob(".*")] == []


def test_readme_is_unchanged_without_answers(published):
    notebook = files.project_root() / "notebooks" / f"{DICE}.ipynb"
    book = nbformat.read(notebook, 4)
    del book.cells[1]
    nbformat.write(book, notebook)
    publish.write_pages()
    assert (files.project_root() / "README.md").read_text("utf-8") == README
