"""Lessons without their answers, what is said of a student's answers, and what a class handed in.

Of `lab.answers`, `lab.commands.student` and `lab.commands.classroom`.
"""

import json
import re

import nbformat
import pandas as pd
import pytest
from helpers import names_that_are_lacking
from nbformat.v4 import new_code_cell, new_notebook, new_output
from small_project import CLAIMS, DICE, ran, write_notebook
from typer.testing import CliRunner

from lab import answers, language
from lab.cli import app
from lab.commands.student import without_answers
from lab.engine import parameters, runs
from lab.ledger import claims
from lab.study import Study

pytestmark = pytest.mark.usefixtures("dice_ran")
DICE_CLAIMS = [each["id"] for each in CLAIMS if each["exercise"] == "1.1"]


@pytest.fixture(scope="module")
def dice_ran(project):
    """The lab's run."""
    return ran(project)


def command(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


# The notebooks


@pytest.fixture(scope="module")
def lesson(project):
    path = parameters.notebook_of(DICE)
    return path, nbformat.reads(without_answers(path, "en"), 4)


def test_answers_and_results_are_gone_and_all_else_stays(lesson):
    path, book = lesson
    nbformat.validate(book)
    whole = nbformat.read(path, 4).cells
    assert [cell.id for cell in book.cells] == [cell.id for cell in whole]
    for cell, before in zip(book.cells, whole, strict=True):
        assert not cell.get("outputs")
        if "answer" in before.metadata.get("tags", ()):
            assert cell.metadata.tags == ["student"] and not re.search(r"study\.(judge|say|figure)\(", cell.source)
        else:
            assert cell.source == before.source
    assert book.cells[-1].source.endswith("study.finish()")


def test_every_sentence_is_asked_for_once(lesson):
    _, book = lesson
    asked = re.findall(r'study\.answer\("([\w-]+)", "", effect=None\)', "\n".join(cell.source for cell in book.cells))
    assert sorted(asked) == sorted(DICE_CLAIMS)


def test_no_cell_needs_a_name_that_went_with_an_answer(lesson):
    assert names_that_are_lacking(lesson[1]) == {}


def test_what_later_cells_need_of_an_answer_stays(project, tmp_path):
    cells = [("answer", "kept, gone = 1, 2\nfound = gone + 1"), ("", "print(kept)"), ("answer", "study.finish()")]
    write_notebook(tmp_path / "mine.ipynb", cells)
    book = nbformat.reads(without_answers(tmp_path / "mine.ipynb", "en"), 4)
    assert book.cells[0].source.startswith("kept, gone = 1, 2\n") and "found" not in book.cells[0].source
    assert names_that_are_lacking(book) == {"study.finish()": {"study"}}


def test_the_notebooks_speak_chinese_and_overwrite_nothing(project, tmp_path):
    made = command("student", "--language", "zh", "--to", tmp_path)
    assert made.exit_code == 0 and len(made.output.splitlines()) == 1, "of all that are lessons"
    book = nbformat.read(tmp_path / f"{DICE}.ipynb", 4)
    assert book.cells[0].source == "%env LAB_LANGUAGE=zh"
    for cell in book.cells:
        if cell.cell_type == "markdown" or "study.answer(" in cell.source:
            assert re.search("[\u4e00-\u9fff]", cell.source)
    again = command("student", "1.1", "--to", tmp_path)
    assert again.exit_code == 2 and "stays as it is" in again.output
    assert "is no lesson yet" in command("student", "1.2", "--to", tmp_path).output
    assert command("student", "1.99", "--to", tmp_path).exit_code == 2


# What is said of an answer


@pytest.fixture
def study(tmp_path, monkeypatch):
    """A study of the dice; study.heard is what it shows."""
    heard = []
    monkeypatch.setattr("lab.study.display", lambda shown, **kept: heard.append((getattr(shown, "data", ""), kept)))
    mine = Study("1.1", {"results": str(tmp_path)})
    mine.heard = heard
    return mine


@pytest.mark.parametrize("says, effect, told", [
    ("", None, "Not answered yet. To be measured: 8 sides minus 4"),
    ("holds", None, "✓ So does the lab's run: 5.00 [3.87, 6.13] points, n = 5."),
    ("holds", 4.4, "✓ So does the lab's run"),
    ("holds", 9.9, "✗ The effect lies outside"),
    ("fails", 5.0, "✗ The lab's run says otherwise"),
    ("undecided", None, "✗ The lab's run says otherwise"),
])  # fmt: skip
def test_an_answer_is_told_whether_it_is_right(study, monkeypatch, says, effect, told):
    row = claims.Verdict(id="dice-more-sides", exercise="1.1", verdict="supported", effect=5.0, low=3.86652,
                         high=6.1335, unit="points", n=5)  # fmt: skip
    monkeypatch.setattr(answers, "measured", lambda stem: {row.id: row} if stem == DICE else {})
    study.answer(row.id, says, effect=effect)
    assert told in study.heard[-1][0] and ("5.00 [" in study.heard[-1][0]) == ("✓ So" in told)
    with language.using("zh"):
        study.answer(row.id, answers.words()[says] if says else "", effect=effect)
    assert re.search("[\u4e00-\u9fff]", study.heard[-1][0].split("<br>")[1])


def test_an_exact_number_is_right_within_a_percent():
    exact = claims.Verdict(id="x", exercise="1.5", verdict="disproved", effect=327680.0)
    assert answers.within(327000, exact) and not answers.within(557056, exact)
    tiny = claims.Verdict(id="x", exercise="1.6", verdict="proved", effect=2e-15)
    assert answers.within(0, tiny) and answers.within(5e-16, tiny) and not answers.within(0.1, tiny)


def test_a_wrong_word_or_claim_is_answered_by_those_that_are(study):
    with pytest.raises(ValueError, match="did you mean 'holds'"):
        study.answer("dice-more-sides", "hold")
    with pytest.raises(KeyError, match="no claim of 1.1"):
        study.answer("nonsuch")


def test_a_students_notebook_finishes_without_verdicts_and_keeps_guesses_and_answers(study, tmp_path):
    with pytest.raises(RuntimeError, match="not judged yet"):
        study.finish()
    study.guesses.boxes["dice-more-sides"].value = "fails"
    for name in study.ledger:
        study.answer(name, "undecided" if name == "dice-more-sides" else "")
    study.finish()
    (score,) = [(said, kept["metadata"][answers.KEPT]) for said, kept in study.heard if "metadata" in kept]
    assert score[0].startswith("0 of 1 guesses were right") and score[1]["guesses"] == {"dice-more-sides": "fails"}
    run = runs.read_run(tmp_path / DICE)
    assert run["guesses"] == score[1]["guesses"]
    assert run["answers"]["dice-more-sides"] == {"says": "undecided", "effect": None}
    assert set(pd.read_csv(tmp_path / DICE / "verdicts.csv").verdict) == {"pending"}


def test_where_the_project_cannot_be_written_to_results_stand_in_ones_own_folder(tmp_path, monkeypatch):
    (tmp_path / "shared" / "results").mkdir(parents=True)
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setattr("lab.engine.runs.project_root", lambda: tmp_path / "shared")
    monkeypatch.setattr("os.access", lambda path, mode: "shared" not in str(path))
    mine = Study("mine", {})
    assert mine.final == tmp_path / "home" / "lab-results" / "mine"
    assert mine.options.store == tmp_path / "home" / "lab-results" / ".trials"
    assert tmp_path / "shared" / "results" / "record" in mine.options.record


@pytest.mark.slow
def test_a_students_notebook_runs_from_top_to_bottom(project, tmp_path):
    assert command("student", "1.1", "--to", tmp_path).exit_code == 0
    smoke = project / "experiments" / "smoke" / f"{DICE}.yaml"
    done = command("run", tmp_path / f"{DICE}.ipynb", "-f", smoke, "--jobs", "1", "--results", tmp_path / "res")
    assert done.exit_code == 0, done.output
    (path,) = tmp_path.glob("res/runs/*/*/notebook.ipynb")
    assert path.read_text("utf-8").count("Not answered yet") == len(DICE_CLAIMS)


# What a class handed in


def handed_in(path, exercise, guesses, said=None):
    kept = {"exercise": exercise, "guesses": guesses, "answers": {n: {"says": w, "effect": 1.0}
            for n, w in (said or {}).items()}}  # fmt: skip
    output = new_output("display_data", {"text/markdown": "1 of 1"}, metadata={answers.KEPT: kept})
    book = new_notebook(cells=[new_code_cell("study.finish()", outputs=[output])])
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(book, path)


@pytest.fixture
def handed(tmp_path):
    handed_in(tmp_path / "anna.ipynb", "1.1", {"dice-more-sides": "holds", "dice-count": "fails"})
    handed_in(
        tmp_path / "bo" / "lesson.ipynb", "1.1", {"dice-more-sides": "undecided"}, {"dice-more-sides": "undecided"}
    )
    handed_in(tmp_path / "bo" / ".ipynb_checkpoints" / "lesson-checkpoint.ipynb", "1.1", {"dice-more-sides": "fails"})
    (tmp_path / "chen" / "lab-results" / DICE).mkdir(parents=True)
    run = {"exercise": "1.1", "guesses": {"dice-more-sides": "holds"}, "answers": {}}
    (tmp_path / "chen" / "lab-results" / DICE / "run.json").write_text(json.dumps(run))
    (tmp_path / "dora.ipynb").write_text("{")
    nbformat.write(new_notebook(), tmp_path / "empty.ipynb")
    return tmp_path


@pytest.mark.parametrize("name", ["en", "zh"])
def test_a_class_is_set_beside_what_was_measured(handed, name):
    done = command("class", "collect", handed, "--language", name)
    assert done.exit_code == 0, done.output
    assert "dora.ipynb: JSONDecodeError" in done.output, "what cannot be read is named, and stops nothing"
    table = pd.read_csv(handed / "class" / "guesses.csv")
    guesses = table[table.claim == "dice-more-sides"].set_index("student").guess.to_dict()
    assert guesses == {"anna": "holds", "bo": "undecided", "chen": "holds"}
    about = claims.ledger()["dice-more-sides"]
    assert (about.claim_zh if name == "zh" else about.claim) in done.output
    assert ("名学生" if name == "zh" else "3 students") in done.output
    for suffix in ("png", "svg"):
        assert (handed / "class" / f"guesses-1-1.{suffix}").exists()
    assert command("class", "collect", handed / "class").exit_code == 2
    assert command("class", "collect", handed / "nonsuch").exit_code == 2


def test_ones_own_answers_stand_beside_the_labs(handed):
    done = command("student", "--compare", handed / "bo" / "lesson.ipynb")
    assert done.exit_code == 0 and claims.ledger()["dice-more-sides"].claim in done.output
    assert re.search("guessed undecided . · answered undecided . · the lab: ", done.output)
    nothing = command("student", "--compare", handed / "empty.ipynb")
    assert nothing.exit_code == 2 and "holds no guesses" in nothing.output
