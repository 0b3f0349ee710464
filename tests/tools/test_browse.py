"""`lab list` and `lab show`."""

import re
import shutil
import webbrowser

import nbformat
import pytest
from helpers import notebook_with
from lab.trials.store import File
from made import DICE, ran
from rich.cells import cell_len
from typer.testing import CliRunner

from lab.tools.cli import app
from lab.trials import parameters, runs


def command(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_list_shows_question_minutes_and_state_in_aligned_columns(project):
    ran(project)
    result = command("list")
    assert result.exit_code == 0
    head, *lines, legend = result.output.splitlines()
    assert cell_len(head) <= 80 and cell_len(legend) <= 80
    assert len(lines) == len(parameters.notebooks())
    for line, notebook in zip(lines, parameters.notebooks(), strict=True):
        assert line.startswith(f"{parameters.exercise_of(notebook)} ") and cell_len(line) <= 80
    rows = [line.rstrip() for line in lines]
    starts = {cell_len(row) - cell_len(re.split(r" {2,}", row)[-1]) for row in rows}
    assert len(starts) == 1, "the last column begins at one place"


def test_list_tells_what_a_lesson_takes_from_the_record_and_without(project):
    run = runs.read_run(folder := ran(project))
    runs.write_run(folder, run | {"seconds": 30.0, "core_seconds": 90.0})
    (without, _), record = listed(), project / "results" / "record" / f"{DICE}.jsonl"
    stored = File(project / "results" / ".trials" / f"{DICE}.jsonl").trials
    File(record).rewrite([body | {"seconds": seconds} for body, seconds in zip(stored, (150, 240), strict=False)])
    recorded, coins = listed()
    record.unlink()
    assert without.split()[-4:] == ["0.5", "1.5", "no", "published"], "by the run, where there is no record"
    assert recorded.split()[-4:] == ["0.5", "6.5", "yes", "published"]
    assert coins.split()[-4:] == ["no", "not", "run", "yet"]


def listed():
    _, *lines, _ = command("list").output.splitlines()
    return lines


def test_show_opens_the_lesson_and_prints_where_it_is(project, monkeypatch):
    opened, shown = [], project / "results" / ".shown"
    monkeypatch.setattr(webbrowser, "open", opened.append)
    folder = ran(project)
    book = nbformat.read(folder / "notebook.ipynb", 4)
    tags = {"tags": ["injected-parameters"]}
    book.cells.insert(2, nbformat.v4.new_code_cell("sides_again = 3", metadata=tags))
    nbformat.write(book, folder / "notebook.ipynb")
    lesson = command("show", "01")
    assert opened == [(shown / f"{DICE}.html").as_uri()]
    assert str(shown / f"{DICE}.html") in lesson.output.replace("\n", "")
    assert "no browser opened" in lesson.output and "formulas need the network" in lesson.output
    text = (shown / f"{DICE}.html").read_text("utf-8")
    assert "What do dice show?" in text
    assert "sides_again" not in text and "of what is shown" in text, "the parameters once"
    assert "骰子" in re.search("<summary>中文</summary>(.*?)</details>", text, re.DOTALL)[1], "it unfolds"
    assert command("show", "1.99").exit_code == 2 and command("show", "1.1", "--profile", "none").exit_code == 2


@pytest.mark.parametrize("profile", ["", "quick"])
def test_the_run_of_a_notebook_from_elsewhere_is_shown_by_its_path(project, tmp_path, monkeypatch, profile):
    monkeypatch.setattr(webbrowser, "open", lambda uri: True)
    monkeypatch.chdir(tmp_path)
    path = notebook_with(tmp_path, "mine.ipynb", first="print('mine')")
    assert "has not run" in command("show", "mine.ipynb").output
    folder = runs.place_of_run(profile, "mine")
    folder.mkdir(parents=True)
    shutil.copy(path, folder / "notebook.ipynb")
    runs.write_run(folder, {"status": "done", "notebook": str(path), "own_parameters": {}})
    shown = command("show", "mine.ipynb")
    assert shown.exit_code == 0 and "mine.html" in shown.output.replace("\n", "")
    shutil.rmtree(folder)
