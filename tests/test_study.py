"""A study keeps what it finds aside until it is complete, and says whose parameters it has.

Of `lab.files`.
"""

import base64
import subprocess

import made
import pandas as pd
import pytest
import yaml

from lab import charts, files, trials
from lab.claims import Claim
from lab.measure.statistics import Interval, NotFinite
from lab.study import Study, study


@pytest.fixture(autouse=True)
def said(monkeypatch):
    """What is displayed, as text."""
    words = []
    for module in ("study", "charts"):
        monkeypatch.setattr(f"lab.{module}.display", lambda shown, **_: words.append(getattr(shown, "data", shown)))
        monkeypatch.setattr(f"lab.{module}.get_ipython", object)
    return words


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Results go to a project of the test's own, which is the working folder."""
    monkeypatch.chdir(root := made.project(tmp_path, monkeypatch))
    return root / "results"


def run_of(value, **names):
    """A whole study of a notebook of one's own."""
    mine = study("mine", {"width": value} | names)
    mine.table("found", pd.DataFrame({"value": [value]}))
    return mine


def value_in(folder):
    return pd.read_csv(folder / "tables" / "found.csv").value.tolist()


# Where results go


def test_a_study_touches_nothing_earlier_until_it_is_complete(project, said):
    run_of(1).finish()
    place = project.parent / "lab-results" / "mine"
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    second = run_of(2)
    second.figure("drawn", pd.DataFrame({"x": [1, 2]}), lambda table: table.plot())
    assert any("image/png" in shown for shown in said if isinstance(shown, dict)), "a figure is there at once"
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    second.finish()
    assert value_in(place) == [2] and (place / "figures" / "drawn.png").exists()
    assert said[-1] == "Trials: none. Results: `lab-results/mine`."


def rising(table):
    """A line \\ rises,
    x < "2".
    """
    table.plot()


def test_a_figure_is_told_to_those_who_do_not_see_it(project, said):
    mine, frame = run_of(1), pd.DataFrame({"x": [1, 2]})
    mine.figure("bare", frame, lambda table: table.plot())
    assert {*said[-1]} == {"image/png", "text/plain"} and said[-1]["text/plain"] == "a figure"
    mine.figure("told", frame, rising)
    shown, told = said[-1], 'A line \\ rises, x < "2".'
    assert shown["text/plain"] == told and 'alt="A line \\ rises, x &lt; &quot;2&quot;.">' in shown["text/html"]
    assert "A line \\ rises, x &lt; &quot;2&quot;.</figcaption></figure>" in shown["text/html"]
    assert "color: var(--jp-content-font-color1" in shown["text/html"], "as the theme has it, also a dark one"
    mine.finish()
    place = project.parent / "lab-results" / "mine"
    kept = {path.stem: charts.caption_in(path) for path in (place / "figures").glob("*.png")}
    assert kept == {"bare": "", "told": told}
    encoded = shown["text/html"].partition("base64,")[2].partition('"')[0]
    assert base64.b64decode(encoded) == (place / "figures" / "told.png").read_bytes()


def test_a_sentence_is_said_in_both_languages(project, said):
    mine = run_of(1)
    mine.say("{n:.1f} heads", "{n:.1f} 个头", n=4)
    assert said[-1] == "4.0 heads\n\n<details><summary>中文</summary>\n\n4.0 个头\n\n</details>"
    mine.say("{as it is}")
    assert said[-1] == "{as it is}"
    heard = len(said)
    mine.say("", "")
    assert len(said) == heard


def test_the_last_run_by_hand_stays_and_one_that_is_given_up_leaves_nothing(project):
    for value in range(3):
        given_up = run_of(-1)
        run_of(value).finish()
    del given_up
    assert [path.name for path in (project.parent / "lab-results").iterdir()] == ["mine"]
    assert value_in(project.parent / "lab-results" / "mine") == [2]


def test_a_named_folder_holds_one_run(tmp_path):
    for value in (1, 2):
        run_of(value, results=str(tmp_path / "there")).finish()
    assert value_in(tmp_path / "there" / "mine") == [2]
    assert [path.name for path in (tmp_path / "there").glob("mine*")] == ["mine"]


def test_a_folder_that_cannot_be_written_to_is_refused_with_a_way_out(project, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(files.Refused, match="file.*: Not a directory; .* the parameter results"):
        run_of(1, results=str(tmp_path / "file" / "below"))


# What the runner says


def squared(seed):
    return {"value": seed**2}


def test_a_study_under_lab_run_writes_where_it_is_told(project, tmp_path, monkeypatch):
    (run := tmp_path / "run").mkdir()
    for name, value in {"RUN": run, "STORE": tmp_path / "store", "RECORD": "none", "JOBS": 1}.items():
        monkeypatch.setenv(f"LAB_{name}", str(value))
    monkeypatch.setenv("LAB_PROGRESS", str(tmp_path / "progress"))
    about = Study("1.1", {"seeds": 9, "profile": "quick"})
    assert (about.folder, about.own, about.place.record) == (run, {"seeds": 9}, None)
    assert about.sweep(squared, {"seed": [1, 2]}).value.tolist() == [1, 4]
    (path,) = (tmp_path / "store" / "01_dice").glob("squared-*.jsonl")
    assert len(trials.read(path)[1]) == 2
    assert (tmp_path / "progress").read_text() == "", "its bar vanishes when a sweep ends"
    about.ledger = {}
    about.finish()
    kept = files.read_run(run)
    assert (kept["status"], kept["notebook"], kept["own"]) == ("done", "01_dice", {"seeds": 9})
    assert kept["title"] == "1.1 What do dice show?" and kept["told"].startswith("Trials: 2 by ")
    assert list(kept["trials"]) == [path.name] and len(kept["trials"][path.name]) == 2


def test_by_itself_a_study_knows_the_project(project):
    about = Study("1.1", {})
    assert about.place.store == project / ".trials" and about.place.record == project / "record"
    assert about.final == project / "interactive" / "01_dice" and about.folder.parent == about.final.parent


def test_a_notebook_with_smoke_in_its_cell_has_the_values_of_smoke(project):
    here = {"profile": "smoke", "sides": [4, 8, 12], "seeds": 3}
    about = Study("1.1", here)
    assert about.parameters["sides"] == here["sides"] == [4, 8] and about.parameters["seeds"] == 3
    assert about.own == {"seeds": 3}
    given = here | {"sides": [4, 8, 12], "In": ["", "# Parameters\nsides = [4, 8, 12]\n"]}
    assert Study("1.1", given).parameters["sides"] == [4, 8, 12], "papermill set it"


def test_a_refusal_is_one_line_and_stands_at_later_cells_too(project):
    here = {"seeds": 0, "study": study("1.1", {})}
    with pytest.raises(files.Refused, match="01_dice.ipynb: seeds = 0: input should be greater than 0") as refused:
        study("1.1", here)
    assert refused.value._render_traceback_() == [str(refused.value)]
    with pytest.raises(files.Refused, match="seeds = 0"):
        here["study"].finish()


def test_a_lesson_that_is_not_there_is_refused(project):
    with pytest.raises(files.Refused, match="there is no exercise '1.44', .*there are 1.1"):
        study("1.44", {})


# Notebooks of one's own

CLAIM = {
    "id": "a-over-b",
    "question": "a - b",
    "measure": "x",
    "compare": {"arm": ["a", "b"]},
    "direction": "above",
    "bar": 0,
    "same": ["size"],
}


def test_a_study_of_ones_own_reads_its_claims_beside_it_and_keeps_its_results_there(project, tmp_path, monkeypatch):
    (folder := tmp_path / "elsewhere").mkdir()
    (folder / "mine.yaml").write_text(yaml.safe_dump([CLAIM]))
    monkeypatch.chdir(folder)
    mine = study("mine", {})
    table = pd.DataFrame({"arm": list("aabb"), "seed": [0, 1] * 2, "x": [2.0, 2.1, 1.0, 1.1], "size": 1})
    mine.judge("a-over-b", table)
    mine.finish()
    assert files.read_run(folder / "lab-results" / "mine")["notebook"] == "mine"


def test_a_study_of_ones_own_has_the_name_of_its_notebook(project, tmp_path, monkeypatch):
    made.write_notebook(tmp_path / "other.ipynb", [("parameters", "width: int = 3")])
    for name in ("LAB_NOTEBOOK", "JPY_SESSION_NAME"):
        with monkeypatch.context() as patch:
            patch.setenv(name, str(tmp_path / "other.ipynb"))
            assert study("other", {"width": 4}).own == {"width": 4}
            with pytest.raises(files.Refused, match=r'is called other: write lab.study\("other", globals\(\)\)'):
                study("mine", {})


def test_an_unknown_claim_is_answered_by_those_that_are(project):
    with pytest.raises(KeyError, match="no claim of mine; it has none: write claims in experiments/claims"):
        study("mine", {}).judge("four-win", 1)
    with pytest.raises(KeyError, match="no claim of 1.1; it has four-win, .*two-parts"):
        study("1.1", {}).judge("one-is-faster", 1)


# Answers


HURT = Claim(**made.entry("hurt", bar=0.005))


def judged(measured, names, about=HURT, **options):
    mine = Study("1.1", names)
    mine.ledger = {about.id: about}
    mine.judge(about.id, measured, **options)
    return mine, mine.lines(about.id).iloc[0]


def not_finite():
    raise NotFinite("diverged")


def test_a_claim_gets_a_card_and_a_line_in_the_answers(project, said):
    about, line = judged(lambda: Interval(0.02, 0.01, 0.03, 5), {"seeds": 9}, note=lambda: "told")
    assert (line.answer, line.note) == ("yes", "told")
    assert "It is said that hurt." in said[-1] and "| 0.02 [0.01, 0.03] | 5 |" in said[-1] and "**yes**" in said[-1]
    about.finish()
    (row,) = pd.read_csv(about.folder / "answers.csv").to_dict("records")
    assert (row["id"], row["answer"], row["effect"]) == ("hurt", "yes", 0.02)
    assert any("| four over one | 0.02 [0.01, 0.03], n = 5 | **yes** |" in str(text) for text in said)


def test_what_is_not_finite_is_unclear_and_smoke_is_not_judged(project, said):
    assert judged(not_finite, {})[1].answer == "unclear"
    assert judged(not_finite, {"profile": "smoke"})[1].answer == "not judged"
    with pytest.raises(FileNotFoundError, match="hurt: figures/gone.png was not produced"):
        judged(Interval(0.0, 0.0, 0.0, 5), {}, figure="gone")


def test_a_study_that_leaves_a_claim_out_does_not_finish(project):
    mine = Study("1.1", {})
    with pytest.raises(RuntimeError, match="not judged yet: rows-sum-to-one, two-parts, four-win"):
        mine.finish()


def test_the_numbers_of_the_answer_are_compared_with_the_run(project, said):
    book = project.parent / "notebooks" / "01_dice.ipynb"
    answer = ("answer", "# 1.1 Dice\n\nEight sides win by 3.5 %, 12 points.")
    made.write_notebook(book, [answer, *made.NOTEBOOKS["01_dice"][1:]])
    mine = Study("1.1", {})
    mine.told({"3.5 %": 0.0349, "12": 12.3}, 1 < 2)
    assert said[-1] == "The numbers of the answer agree with this run."
    mine.told({"3.5 %": 0.031, "13": 13.0}, 1 > 2)
    differs = "fact 1 does not hold; 3.5 % is 0.031 in this run; 13 is not in the answer"
    assert said[-1] == f"The answer differs from this run: {differs}."
    heard = len(said)
    Study("1.1", {"profile": "smoke"}).told({"3.5 %": 0.031})
    assert len(said) == heard


# Times


def ticked(n):
    return [{"arm": arm, "seconds_a_call": 1.0 + (arm == "slow")} for arm in ("fast", "again", "slow")]


def test_the_smoke_profile_times_nothing_and_stays_in_its_process(project, monkeypatch):
    monkeypatch.setattr(trials, "run_timings", None)
    mine = study("mine", {})
    mine.profile = "smoke"
    table = mine.sweep(ticked, {"n": 1}, timing=True, processes=8)
    assert table.repeat.tolist() == [0] * 3 + [1] * 3, "twice at most"
    assert not (project.parent / "lab-results" / ".trials").exists()


# The commit


def test_a_run_names_its_commit_and_whether_its_code_differs(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "project_root", lambda: tmp_path)
    assert files.commit() == {"commit": "", "changes": None}

    def git(*words):
        told = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(told, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "lab").mkdir()
    for name in ("lab/code.py", "README.md", "pyproject.toml"):
        (tmp_path / name).write_text("1")
    git("init")
    git("add", ".")
    git("commit", "-m", "x")
    (tmp_path / "README.md").write_text("2")
    assert files.commit() == {"commit": git("rev-parse", "HEAD"), "changes": False}
    for name in ("lab/code.py", "pyproject.toml", "lab/new.py"):
        (tmp_path / name).write_text("3")
        assert files.commit()["changes"], name
        git("stash", "-u")
