"""A study keeps what it finds aside until it is complete, says whose parameters it has, and scores guesses.

Of `lab.engine.provenance` and `lab.engine.runs`.
"""

import json
import subprocess

import pandas as pd
import pytest

from lab.engine import parameters, provenance, runs
from lab.ledger.claims import JUDGED, NOT_RUN, Verdict, ledger
from lab.measure.statistics import Interval
from lab.study import MEANS, Guesses, Study, study

CLAIMS = list(ledger().values())[:5]


def test_guesses_are_counted_and_the_wrong_ones_named():
    guesses = Guesses(CLAIMS)
    names = [claim.id for claim in CLAIMS]
    for name, guess in zip(names, ["holds", "fails", "", "undecided", "holds"], strict=True):
        guesses.boxes[name].value = guess
    words = ["proved", "supported", "refuted", "inconclusive", "not judged"]
    verdicts = [Verdict(id=name, exercise="1.1", verdict=word) for name, word in zip(names, words, strict=True)]
    said = guesses.score(verdicts)
    assert said.startswith("2 of 3 guesses were right")
    assert f"{names[1]}: fails, measured: holds" in said and all(said.count(name) == 0 for name in names[2:])


def test_without_guesses_nothing_is_said():
    assert Guesses(CLAIMS).score([Verdict(id=CLAIMS[0].id, exercise="1.1", verdict="proved")]) == ""


def test_every_judgement_can_be_guessed():
    assert set(MEANS) == set(JUDGED)
    (form,) = Guesses(CLAIMS).form().children
    assert [box.description for box in form.children[1:]] == [claim.id for claim in CLAIMS]


@pytest.fixture(autouse=True)
def said(monkeypatch):
    """What is displayed, as text."""
    words = []
    monkeypatch.setattr("lab.study.display", lambda shown, **_: words.append(getattr(shown, "data", shown)))
    return words


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Results go to a project of the test's own."""
    monkeypatch.setattr("lab.engine.runs.project_root", lambda: tmp_path)
    return tmp_path / "results"


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
    place = project / "interactive" / "mine"
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    second = run_of(2)
    second.figure("drawn", pd.DataFrame({"x": [1, 2]}), lambda table: table.plot())
    assert any("image/png" in shown for shown in said if isinstance(shown, dict)), "a figure is there at once"
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    second.finish()
    assert value_in(place) == [2] and (place / "figures" / "drawn.png").exists()
    assert said[-1] == "Results: `results/interactive/mine`"


def test_the_last_runs_by_hand_stay(project):
    for value in range(6):
        run_of(-1)  # given up
        run_of(value).finish()
    there = {path.name: value_in(path) for path in (project / "interactive").glob("mine*")}
    assert there == {"mine": [5], "mine.1": [4], "mine.2": [3], "mine.3": [2]}
    assert not list((project / "interactive" / ".running").iterdir())


def test_what_a_finished_study_adds_belongs_to_its_run(project):
    mine = run_of(1)
    mine.finish()
    mine.table("more", pd.DataFrame({"value": [2]}))
    place = project / "interactive" / "mine"
    run = runs.read_run(place)
    assert "tables/more.csv" in run["files"] and runs.damaged(place, run) == []


def test_a_named_folder_holds_one_run(tmp_path):
    for value in (1, 2):
        run_of(value, results=str(tmp_path / "there")).finish()
    assert value_in(tmp_path / "there" / "mine") == [2]
    assert [path.name for path in (tmp_path / "there").glob("mine*")] == ["mine"]


# The run file


def test_the_run_file_says_what_is_run_and_how(tmp_path):
    notebook = parameters.notebook_of("1.4")
    store = tmp_path / "store"
    written = runs.Options(jobs=1, store=store, headless=True, own={"seeds": 9}, notebook=notebook, place="results/x")
    written.write(tmp_path)
    assert runs.read_options(tmp_path) == written
    about = Study("1.4", {"results": str(tmp_path), "seeds": 9})
    assert (about.options, about.own, about.place) == (written, {"seeds": 9}, "results/x")
    assert about.folder == tmp_path / notebook.stem, "the runner puts it in its place"
    table = about.sweep(squared, {"seed": [1, 2]})
    assert table.value.tolist() == [1, 4] and len(list(store.rglob("*.json"))) == 2


def squared(seed):
    return {"value": seed**2}


def test_without_a_run_file_the_defaults_hold(project):
    about = Study("1.4", {})
    assert about.options == runs.Options() and runs.Options().jobs == 0 and runs.Options().check == 30
    assert runs.Options().record == [project / "record"] and runs.Options().store == project / ".trials"
    (project / "interactive" / "options.json").write_text('{"jbos": 1}')
    with pytest.raises(ValueError, match="jbos"):
        Study("1.4", {})


# Notebooks of one's own


def test_a_notebook_of_ones_own_needs_no_claim(project):
    namespace = {"width": 3, "names": ["a"], "In": ["x"], "_": 1}
    mine = study("mine", namespace)
    assert mine.parameters == {"width": 3, "names": ["a"]} and mine.own == {}
    assert mine.finish() is None
    run = runs.read_run(project / "interactive" / "mine")
    assert (run["exercise"], run["parameters"]) == ("mine", {"width": 3, "names": ["a"]})
    assert study({}).exercise == "notebook"


def test_an_unknown_claim_is_answered_by_those_that_are(project):
    with pytest.raises(KeyError, match="no claim of mine; it has none: claims stand in experiments/claims.yaml"):
        study("mine", {}).judge("heads-32-hurt", 1)
    with pytest.raises(KeyError, match="no claim of 1.4; it has .*heads-32-hurt"):
        study("1.4", {}).judge("nonsuch", 1)


# Verdicts


def judged(measured, names, note=""):
    about = Study("1.4", names)
    about.ledger = {"heads-32-hurt": about.ledger["heads-32-hurt"]}
    about.judge("heads-32-hurt", measured, note=note)
    return about, about._verdicts["heads-32-hurt"]


def missing():
    raise KeyError(32)


def test_without_its_arms_a_claim_is_not_judged(project, said):
    for measured in (missing, Interval(0.0, 0.0, 0.0, 5)):
        about, verdict = judged(measured, {"heads": [1, 2, 4, 8]}, note=missing)
        assert verdict.verdict == NOT_RUN and verdict.effect != verdict.effect and verdict.note == "without heads 32"
        assert said[-1].startswith(f"**heads-32-hurt: {NOT_RUN}** (own parameters: heads [1, 2, 4, 8])  \n")
    about.finish()
    (row,) = pd.read_csv(about.folder / "verdicts.csv").to_dict("records")
    assert row["verdict"] == NOT_RUN and row["effect"] != row["effect"]
    with pytest.raises(KeyError):
        judged(missing, {})
    _, verdict = judged(lambda: Interval(0.02, 0.01, 0.03, 5), {}, note=lambda: "told")
    assert (verdict.verdict, verdict.note) == ("supported", "told")
    assert judged(missing, {"profile": "smoke", "heads": [1, 2]})[1].verdict == "not judged"


def test_own_parameters_are_told_with_every_verdict(project, said):
    about, _ = judged(Interval(0.02, 0.01, 0.03, 5), {"seeds": 9})
    assert said[-1].startswith("**heads-32-hurt: supported** (own parameters: seeds 9): 0.02 [0.01, 0.03], n = 5")
    assert "own parameters: seeds 9" in about.finish().to_html()
    assert json.loads((about.folder / "run.json").read_text())["own_parameters"] == {"seeds": 9}
    about, _ = judged(Interval(0.02, 0.01, 0.03, 5), {})
    assert "own" not in said[-1] and "own parameters" not in about.finish().to_html()
    assert runs.read_run(about.folder)["own_parameters"] == {}


# The commit


def test_a_run_names_its_commit_and_whether_its_code_differs(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "project_root", lambda: tmp_path)
    assert provenance.commit() == {"commit": "", "changes": None}

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
    assert provenance.commit() == {"commit": git("rev-parse", "HEAD"), "changes": False}
    for name in ("lab/code.py", "pyproject.toml", "lab/new.py"):
        (tmp_path / name).write_text("3")
        assert provenance.commit()["changes"], name
        git("stash", "-u")
