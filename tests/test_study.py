"""Study: result folders, parameters, claims and answers. Also tests lab.files."""

import base64
import subprocess

import made
import pandas as pd
import pytest
import yaml

import lab
from lab import charts, files, trials
from lab.claims import Claim
from lab.measure.statistics import Interval, NotFinite
from lab.study import Study


@pytest.fixture(autouse=True)
def displayed(monkeypatch):
    """The displayed outputs."""
    outputs = []
    for module in ("study", "charts"):
        monkeypatch.setattr(f"lab.{module}.display", lambda shown, **_: outputs.append(getattr(shown, "data", shown)))
        monkeypatch.setattr(f"lab.{module}.get_ipython", object)
    return outputs


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The results folder of a temporary project; the working directory is the project."""
    monkeypatch.chdir(root := made.project(tmp_path, monkeypatch))
    return root / "results"


def run_of(value, **names):
    """The study of a user's notebook, with a table."""
    mine = Study("mine", {"width": value} | names)
    mine.table("found", pd.DataFrame({"value": [value]}))
    return mine


def value_in(folder):
    return pd.read_csv(folder / "tables" / "found.csv").value.tolist()


# Result folders


def test_finish_replaces_earlier_results(project, displayed):
    run_of(1).finish()
    place = project.parent / "lab-results" / "mine"
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    second = run_of(2)
    second.figure("drawn", pd.DataFrame({"x": [1, 2]}), lambda table: table.plot())
    assert any("image/png" in shown for shown in displayed if isinstance(shown, dict)), (
        "figures are displayed immediately"
    )
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    second.finish()
    assert value_in(place) == [2] and (place / "figures" / "drawn.png").exists()
    assert displayed[-1] == "Trials: none. Results: `lab-results/mine`."


def rising(table):
    """A line \\ rises,
    x < "2".
    """
    table.plot()


def test_figure_has_caption_and_alternative_text(project, displayed):
    mine, frame = run_of(1), pd.DataFrame({"x": [1, 2]})
    mine.figure("bare", frame, lambda table: table.plot())
    assert {*displayed[-1]} == {"image/png", "text/plain"} and displayed[-1]["text/plain"] == "a figure"
    mine.figure("captioned", frame, rising)
    shown, caption = displayed[-1], 'A line \\ rises, x < "2".'
    assert shown["text/plain"] == caption and 'alt="A line \\ rises, x &lt; &quot;2&quot;.">' in shown["text/html"]
    assert "A line \\ rises, x &lt; &quot;2&quot;.</figcaption></figure>" in shown["text/html"]
    assert "color: var(--jp-content-font-color1" in shown["text/html"], "follows the theme"
    mine.finish()
    place = project.parent / "lab-results" / "mine"
    kept = {path.stem: charts.caption_in(path) for path in (place / "figures").glob("*.png")}
    assert kept == {"bare": "", "captioned": caption}
    encoded = shown["text/html"].partition("base64,")[2].partition('"')[0]
    assert base64.b64decode(encoded) == (place / "figures" / "captioned.png").read_bytes()


def test_say_shows_both_languages(project, displayed):
    mine = run_of(1)
    mine.say("{n:.1f} heads", "{n:.1f} 个头", n=4)
    assert displayed[-1] == "4.0 heads\n\n<details><summary>中文</summary>\n\n4.0 个头\n\n</details>"
    mine.say("{verbatim}")
    assert displayed[-1] == "{verbatim}"
    before = len(displayed)
    mine.say("", "")
    assert len(displayed) == before


def test_best_rates_per_condition_and_warning_at_the_edge_of_the_sweep(project, displayed):
    rates = [1.0, 2.0, 4.0]
    scores = {("a", 0): [3, 1, 2], ("a", 1): [3, 1, float("nan")], ("b", 0): [2.05, 2, 1], ("b", 1): [0, 0, 1.1]}
    tried = pd.DataFrame(
        [(arm, seed, *pair) for (arm, seed), found in scores.items() for pair in zip(rates, found, strict=True)],
        columns=["arm", "seed", "learning_rate", "loss"],
    ).assign(depth=2)
    mine = Study("mine", {})
    assert mine.best_rates(tried, "arm", "loss") == {"a": 2, "b": 2} and not displayed, "the mean over seeds decides"
    assert mine.best_rates(tried, "arm", "loss", within=0.03) == {"a": 2, "b": 1}, "the lower of two middle rates"
    assert not displayed, "the lowest loss is inside the grid"
    first = tried[tried.seed == 0]
    assert mine.best_rates(first, ["arm", "depth"], "loss") == {("a", 2): 2, ("b", 2): 4}
    assert "at the edge (b 2 4)" in displayed.pop() and not displayed
    mine.profile = "smoke"
    assert mine.best_rates(first, "arm", "loss")["b"] == 4 and not displayed


def test_last_finished_run_is_kept_and_unfinished_ones_are_removed(project):
    for value in range(3):
        unfinished = run_of(-1)
        run_of(value).finish()
    del unfinished
    assert [path.name for path in (project.parent / "lab-results").iterdir()] == ["mine"]
    assert value_in(project.parent / "lab-results" / "mine") == [2]


def test_results_folder_holds_one_run(tmp_path):
    for value in (1, 2):
        run_of(value, results=str(tmp_path / "there")).finish()
    assert value_in(tmp_path / "there" / "mine") == [2]
    assert [path.name for path in (tmp_path / "there").glob("mine*")] == ["mine"]


def test_unwritable_results_folder(project, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(files.Refused, match="file.*: Not a directory; set `results` to a writable folder"):
        run_of(1, results=str(tmp_path / "file" / "below"))


# Environment and parameters


def squared(seed):
    return {"value": seed**2}


def test_environment_variables_of_lab_run(project, tmp_path, monkeypatch):
    (run := tmp_path / "run").mkdir()
    for name, value in {"RUN": run, "STORE": tmp_path / "store", "RECORD": "none", "JOBS": 1}.items():
        monkeypatch.setenv(f"LAB_{name}", str(value))
    exercise = Study("1.1", {"seeds": 9, "profile": "quick"})
    assert (exercise.folder, exercise.own, exercise.place.record) == (run, {"seeds": 9}, None)
    assert exercise.sweep(squared, {"seed": [1, 2]}).value.tolist() == [1, 4]
    (path,) = (tmp_path / "store" / "01_dice").glob("squared-*.jsonl")
    assert len(trials.read(path)[1]) == 2
    exercise.ledger = {}
    exercise.finish()
    kept = files.read_run(run)
    assert (kept["notebook"], kept["own"]) == ("01_dice", {"seeds": 9})
    assert kept["told"].startswith("Trials: 2 by ")
    assert list(kept["trials"]) == [path.name] and len(kept["trials"][path.name]) == 2


def test_default_folders(project):
    exercise = Study("1.1", {})
    assert exercise.place.store == project / ".trials" and exercise.place.record == project / "record"
    assert exercise.final == project / "interactive" / "01_dice" and exercise.folder.parent == exercise.final.parent


def test_smoke_profile_overrides_defaults(project):
    here = {"profile": "smoke", "sides": [4, 8, 12], "seeds": 3}
    exercise = Study("1.1", here)
    assert exercise.parameters["sides"] == here["sides"] == [4, 8] and exercise.parameters["seeds"] == 3
    assert exercise.own == {"seeds": 3}
    given = here | {"sides": [4, 8, 12], "In": ["", "# Parameters\nsides = [4, 8, 12]\n"]}
    assert Study("1.1", given).parameters["sides"] == [4, 8, 12], "papermill set it"


def test_invalid_parameters_raise_again_in_later_cells(project):
    here = {"seeds": 0, "study": Study("1.1", {})}
    with pytest.raises(files.Refused, match="01_dice.ipynb: seeds = 0: input should be greater than 0") as refused:
        lab.study("1.1", here)
    assert refused.value._render_traceback_() == [str(refused.value)]
    with pytest.raises(files.Refused, match="seeds = 0"):
        here["study"].finish()


def test_unknown_exercise(project):
    with pytest.raises(files.Refused, match="'1.44' is neither an exercise nor .*choose from 1.1"):
        Study("1.44", {})


# User notebooks

CLAIM = {
    "id": "a-over-b",
    "question": "a - b",
    "measure": "x",
    "compare": {"arm": ["a", "b"]},
    "direction": "above",
    "bar": 0,
    "same": ["size"],
}


def test_own_notebook_reads_claims_and_writes_results_in_its_folder(project, tmp_path, monkeypatch):
    (folder := tmp_path / "elsewhere").mkdir()
    (folder / "mine.yaml").write_text(yaml.safe_dump([CLAIM]))
    monkeypatch.chdir(folder)
    mine = Study("mine", {})
    table = pd.DataFrame({"arm": list("aabb"), "seed": [0, 1] * 2, "x": [2.0, 2.1, 1.0, 1.1], "size": 1})
    mine.judge("a-over-b", table)
    mine.finish()
    assert files.read_run(folder / "lab-results" / "mine")["notebook"] == "mine"


def test_parameters_are_those_of_the_running_notebook(project, tmp_path, monkeypatch):
    made.write_notebook(tmp_path / "other.ipynb", [("parameters", "width: int = 3")])
    for name in ("LAB_NOTEBOOK", "JPY_SESSION_NAME"):
        with monkeypatch.context() as patch:
            patch.setenv(name, str(tmp_path / "other.ipynb"))
            assert Study("other", {"width": 4}).own == {"width": 4}


def test_unknown_claim(project):
    with pytest.raises(KeyError, match="mine has no claim 'four-win'; its claims: none"):
        Study("mine", {}).judge("four-win", 1)
    with pytest.raises(KeyError, match="1.1 has no claim 'one-is-faster'; its claims: dice-count, dice-more-sides"):
        Study("1.1", {}).judge("one-is-faster", 1)


# Answers


HURT = Claim(**made.entry("hurt", bar=0.005))


def judged(measured, names, **options):
    mine = Study("1.1", names)
    mine.ledger = {HURT.id: HURT}
    mine.judge(HURT.id, measured, **options)
    return mine, mine.lines(HURT.id).iloc[0]


def test_judge_shows_card_and_writes_answer(project, displayed):
    exercise, line = judged(Interval(0.02, 0.01, 0.03, 5), {"seeds": 9}, note="a note")
    assert (line.answer, line.note) == ("yes", "a note")
    assert (
        "It is said that hurt." in displayed[-1]
        and "| 0.02 [0.01, 0.03] | 5 |" in displayed[-1]
        and "**yes**" in displayed[-1]
    )
    exercise.finish()
    (row,) = pd.read_csv(exercise.folder / "answers.csv").to_dict("records")
    assert (row["id"], row["answer"], row["effect"]) == ("hurt", "yes", 0.02)
    assert any("| four over one | 0.02 [0.01, 0.03] | 5 | **yes** |" in str(text) for text in displayed)


def not_finite():
    raise NotFinite("diverged")


def test_not_finite_is_unclear_and_smoke_is_not_judged(project, displayed):
    assert judged(not_finite, {})[1].answer == "unclear"
    assert judged(Interval(0.02, 0.01, 0.03, 5), {"profile": "smoke"})[1].answer == "not judged"


def test_scorecard_judges_claims_and_is_shown_once(project, displayed):
    mine = Study("1.1", {})
    mine.ledger = {HURT.id: HURT}
    mine.scorecard({HURT.id: Interval(0.02, 0.01, 0.03, 5)})
    assert "| 0.02 [0.01, 0.03] | 5 | **yes** |" in displayed[-1]
    before = len(displayed)
    mine.finish()
    assert not any("**yes**" in str(text) for text in displayed[before:])


def test_finish_requires_all_claims(project):
    mine = Study("1.1", {})
    with pytest.raises(RuntimeError, match="not judged yet: dice-more-sides, dice-count"):
        mine.finish()


def test_told_compares_numbers_of_the_text_with_the_run(project, displayed):
    book = project.parent / "notebooks" / "01_dice.ipynb"
    answer = ("answer", "# 1.1 Dice\n\nEight sides win by 3.5 %, 12 points.")
    made.write_notebook(book, [answer, *made.NOTEBOOKS["01_dice"][1:]])
    mine = Study("1.1", {})
    before = len(displayed)
    mine.told({"3.5 %": 0.0349, "12": 12.3}, 1 < 2)
    assert len(displayed) == before, "nothing is shown if all numbers agree"
    mine.told({"3.5 %": 0.031, "13": 13.0}, 1 > 2)
    differs = "condition 1 of this cell fails; 3.5 % is 3.10% in this run; 13 is not in the text"
    assert displayed[-1] == f"The text differs from this run: {differs}."
    mine.told({"3.5 %": None, "12": float("nan")})
    assert displayed[-1].count("was not measured in this run") == 2
    before = len(displayed)
    Study("1.1", {"profile": "smoke"}).told({"3.5 %": 0.031})
    assert len(displayed) == before


# Timings


def ticked(n):
    return [{"arm": arm, "seconds_a_call": 1.0 + (arm == "slow")} for arm in ("fast", "again", "slow")]


def test_smoke_timings_run_once_in_this_process(project, monkeypatch):
    monkeypatch.setattr(trials.workers, "processes", None)
    mine = Study("mine", {})
    mine.profile = "smoke"
    table = mine.sweep(ticked, {"n": 1}, timing=True, processes=8)
    assert table.repeat.tolist() == [0] * 3


# The commit


def test_commit_and_uncommitted_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "project_root", lambda: tmp_path)
    assert files.commit() == {"commit": "", "changes": None}

    def git(*words):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

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
