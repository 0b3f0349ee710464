"""A study keeps what it finds aside until it is complete, and says whose parameters it has.

Of `lab.shown`, `lab.trials.provenance` and `lab.trials.runs`.
"""

import base64
import json
import subprocess

import made
import pandas as pd
import pytest
import yaml
from lab.trials.store import File

from lab import figures
from lab.claims import claims
from lab.claims.claims import NOT_RUN, Claim
from lab.measure.statistics import Interval
from lab.study import Study, found_beside, study
from lab.trials import parameters, provenance, runs, sittings


@pytest.fixture(autouse=True)
def said(monkeypatch):
    """What is displayed, as text."""
    words = []
    for module in ("study", "figures"):
        monkeypatch.setattr(f"lab.{module}.display", lambda shown, **_: words.append(getattr(shown, "data", shown)))
    return words


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Results go to a project of the test's own."""
    return made.project(tmp_path, monkeypatch) / "results"


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


@pytest.mark.parametrize("load, warned", [(95, True), (3, False)])
def test_times_that_are_taken_while_the_machine_is_busy_say_so(project, said, monkeypatch, load, warned):
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: load)
    mine = run_of(1)
    mine.sweep(measured, {"seed": 0}, timing=True, jobs=1)
    assert [f"take {load} percent of this machine" in str(text) for text in said] == [True] * warned
    mine.sweep(measured, {"seed": 1}, jobs=1)
    assert len(said) == warned, "of timings alone"


def measured(seed):
    return {"value": seed}


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
    place = project / "interactive" / "mine"
    kept = {path.stem: figures.caption_in(path) for path in (place / "figures").glob("*.png")}
    assert kept == {"bare": "", "told": told}
    encoded = shown["text/html"].partition("base64,")[2].partition('"')[0]
    assert base64.b64decode(encoded) == (place / "figures" / "told.png").read_bytes()
    assert 'x &lt; "2"' in (place / "figures" / "told.svg").read_text("utf-8")


def test_a_sentence_is_said_in_both_languages(project, said):
    mine = run_of(1)
    mine.say("{n:.1f} heads", "{n:.1f} 个头", n=4)
    assert said[-1] == "4.0 heads\n\n<details><summary>中文</summary>\n\n4.0 个头\n\n</details>"
    mine.say("{as it is}")
    assert said[-1] == "{as it is}"
    heard = len(said)
    mine.say("", "")
    assert len(said) == heard


def test_the_last_runs_by_hand_stay(project):
    for value in range(6):
        run_of(-1)  # given up
        run_of(value).finish()
    there = {path.name: value_in(path) for path in (project / "interactive").glob("mine*")}
    assert there == {"mine": [5], "mine.1": [4], "mine.2": [3], "mine.3": [2]}
    assert not list((project / "interactive" / ".running").iterdir())


def test_a_named_folder_holds_one_run(tmp_path):
    for value in (1, 2):
        run_of(value, results=str(tmp_path / "there")).finish()
    assert value_in(tmp_path / "there" / "mine") == [2]
    assert [path.name for path in (tmp_path / "there").glob("mine*")] == ["mine"]


def test_a_folder_that_cannot_be_written_to_is_refused_with_a_way_out(project, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(parameters.Refused, match="file.*: Not a directory; .* the parameter results"):
        run_of(1, results=str(tmp_path / "file"))


# The run file


def test_the_run_file_says_what_is_run_and_how(project, tmp_path):
    notebook = parameters.notebook_of("1.1")
    store = tmp_path / "store"
    written = runs.Options(jobs=1, store=store, headless=True, own={"seeds": 9}, notebook=notebook, place="results/x")
    written.write(tmp_path)
    assert runs.read_options(tmp_path) == written
    about = Study("1.1", {"results": str(tmp_path), "seeds": 9})
    assert (about.options, about.own, about.place) == (written, {"seeds": 9}, "results/x")
    assert about.folder == tmp_path / notebook.stem, "the runner puts it in its place"
    table = about.sweep(squared, {"seed": [1, 2]})
    assert table.value.tolist() == [1, 4] and len(File(store / f"{notebook.stem}.jsonl").trials) == 2


def squared(seed):
    return {"value": seed**2}


def test_without_a_run_file_the_defaults_hold(project):
    about = Study("1.1", {})
    assert about.options == runs.Options() and runs.Options().jobs == 0
    assert runs.Options().record == [project / "record"] and runs.Options().store == project / ".trials"
    (project / "interactive" / "options.json").write_text('{"jbos": 1}')
    with pytest.raises(ValueError, match="jbos"):
        Study("1.1", {})


# Notebooks of one's own

CLAIM = {
    "id": "a-over-b",
    "claim": "A is better",
    "question": "a - b",
    "measure": "x",
    "compare": {"arm": ["a", "b"]},
    "direction": "above",
    "bar": 0,
    "needs": {"budget": {"same": ["size"]}},
}


def test_a_study_reads_a_ledger_beside_it_and_keeps_its_results_there(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump([CLAIM]))
    monkeypatch.chdir(tmp_path)
    mine = study(ledger="mine.yaml")
    assert mine.exercise == "mine" and mine.options.store == tmp_path / "lab-results" / ".trials"
    assert tmp_path / "lab-results" / "record" in mine.options.record
    table = pd.DataFrame({"arm": list("aabb"), "seed": [0, 1] * 2, "x": [2.0, 2.1, 1.0, 1.1], "size": 1})
    mine.judge("a-over-b", table)
    mine.finish()
    assert mine.lines("a-over-b")[0].label == "supported"
    assert (tmp_path / "lab-results" / "mine" / "verdicts.csv").exists()


def test_a_ledger_is_found_where_its_notebook_is(tmp_path, monkeypatch):
    made, moved = tmp_path / "made", tmp_path / "moved"
    for folder in (made, moved):
        folder.mkdir()
        (folder / "mine.yaml").write_text("")
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    monkeypatch.chdir(tmp_path)
    assert found_beside(made / "mine.yaml") == made / "mine.yaml", "from another folder"
    monkeypatch.chdir(moved)
    assert found_beside(made / "mine.yaml") == moved / "mine.yaml", "copied with its notebook"
    monkeypatch.setenv("JPY_SESSION_NAME", str(made / "mine.ipynb"))
    assert found_beside("mine.yaml") == made / "mine.yaml", "in JupyterLab"
    with pytest.raises(FileNotFoundError, match="there is no ledger nonsuch.yaml; looked at"):
        found_beside("nonsuch.yaml")


def test_a_ledger_that_cannot_be_read_is_named(tmp_path):
    for broken in ([CLAIM | {"clam": 1}], [{"id": "x"}], "{"):
        path = tmp_path / "mine.yaml"
        path.write_text(broken if isinstance(broken, str) else yaml.safe_dump(broken))
        with pytest.raises(ValueError, match="mine.yaml: "):
            claims.own_ledger(path)
        path.unlink()


def test_a_notebook_of_ones_own_needs_no_claim(project):
    namespace = {"width": 3, "names": ["a"], "In": ["x"], "_": 1}
    mine = study("mine", namespace)
    assert mine.parameters == {"width": 3, "names": ["a"]} and mine.own == {}
    assert mine.finish() is None
    run = runs.read_run(project / "interactive" / "mine")
    assert (run["exercise"], run["parameters"]) == ("mine", {"width": 3, "names": ["a"]})
    assert study({}).exercise == "notebook"


def test_an_unknown_claim_is_answered_by_those_that_are(project):
    with pytest.raises(KeyError, match="no claim of mine; it has none: write claims in experiments/claims"):
        study("mine", {}).judge("four-win", 1)
    with pytest.raises(KeyError, match="no claim of 1.1; it has four-win, .*two-parts"):
        study("1.1", {}).judge("one-is-faster", 1)


def test_a_run_names_the_ledger_that_it_began_with(project, tmp_path):
    first, mine, own = study("1.1", {}), run_of(1), study("1.1", {}, ledger=())
    seen = claims.ledger_hash(first.notebook)
    made.write_ledger(project.parent, {"01_dice": made.LEDGER["01_dice"][:1]})
    assert seen and claims.ledger_hash(first.notebook) != seen
    first.ledger = {}
    for each, ledger in ((first, seen), (mine, ""), (own, "")):
        each.finish()
        assert runs.read_run(each.folder)["ledger"] == ledger


# Answers


HURT = Claim(**made.entry("hurt", "trend", bar=0.005, values={"sides": [4, 12]}))


def judged(measured, names, note="", about=HURT, **options):
    mine = Study("1.1", names)
    mine.ledger = {about.id: about}
    mine.judge(about.id, measured, note=note, **options)
    return mine, mine.lines(about.id)[0]


def missing():
    raise KeyError(12)


def test_without_its_arms_a_claim_is_not_judged(project, said):
    for measured in (missing, Interval(0.0, 0.0, 0.0, 5)):
        about, line = judged(measured, {"sides": [4, 8]}, note=missing)
        assert line.label == NOT_RUN and line.effect != line.effect and line.note == "without sides 12"
        assert f"**{NOT_RUN}** (without sides 12)" in said[-1]
        assert "own parameters: sides [4, 8]" in said[-1]
    about.finish()
    (row,) = pd.read_csv(about.folder / "verdicts.csv").to_dict("records")
    assert row["label"] == NOT_RUN and row["effect"] != row["effect"]
    with pytest.raises(KeyError):
        judged(missing, {})
    _, line = judged(lambda: Interval(0.02, 0.01, 0.03, 5), {}, note=lambda: "told")
    assert (line.label, line.note) == ("supported", "told")
    assert judged(missing, {"profile": "smoke", "sides": [4, 8]})[1].label == "not judged"


def test_own_parameters_are_told_with_every_answer(project, said):
    about, _ = judged(Interval(0.02, 0.01, 0.03, 5), {"seeds": 9})
    assert "**supported**" in said[-1] and "| 0.02 [0.01, 0.03] | 5 |" in said[-1]
    assert "own parameters: seeds 9" in said[-1]
    assert "own parameters: seeds 9" in about.finish().to_html()
    assert json.loads((about.folder / "run.json").read_text())["own_parameters"] == {"seeds": 9}
    about, _ = judged(Interval(0.02, 0.01, 0.03, 5), {})
    assert "own" not in said[-1] and "own parameters" not in about.finish().to_html()
    assert runs.read_run(about.folder)["own_parameters"] == {}


def test_rows_are_judged_by_the_ledger_and_a_sentence_is_chosen_by_the_label(project, said):
    arms = {"measure": "loss", "compare": {"n_heads": [32, 8]}, "needs": {"size": {"n_heads": [8, 32]}}}
    about = Claim(**made.entry("hurt", "trend", bar=0.005, **arms))
    for worse, word, sentence in ((0.1, "supported", "it hurts"), (-0.1, "refuted", "it helps")):
        rows = pd.DataFrame({"seed": s, "n_heads": h, "loss": 2 + s / 50 + (h == 32) * (worse + s / 99)}
                            for s in range(5) for h in (8, 32))  # fmt: skip
        mine, line = judged(rows, {}, about=about)
        assert line.label == word and "✓ size: n_heads 8 … 32 (≥ 8, ≤ 32)" in said[-1]
        mine.say(*mine.told("hurt", supported=("it hurts", "有害"), refuted=("it helps", "有益")))
        assert said[-1].startswith(f"{sentence}\n\n<details>")
        assert about.claim in mine.finish().to_html() and "hurt" not in mine.finish().to_html().replace(about.claim, "")
    mine, _ = judged(rows[rows.n_heads == 8], {}, about=about)
    gone = ("gone", "没有了")
    assert mine.told("hurt", supported=("it hurts", "有害"), not_run_at_these_values=gone) == gone
    assert mine.told("hurt", refuted=("it helps", "有益")) == ("", "")


# What answers rest on


def learned(seed, n_heads, rate):
    return {"loss": 2 + seed / 50 + n_heads / (9 + seed) + rate}


def other(seed, drawn):
    return {"value": seed}


def test_the_answer_to_a_timing_names_the_machine(project):
    mine = study("1.2", {})
    mine.judge("one-is-faster", Interval(1.0, 0.5, 1.5, 5))
    assert mine.lines("one-is-faster")[0].sizes == provenance.machine()["machine"]


def ticked(n):
    return [{"arm": arm, "seconds_a_call": 1.0 + (arm == "slow")} for arm in ("fast", "again", "slow")]


def test_a_timing_runs_in_processes_and_its_lines_tell_the_sitting(project, said, monkeypatch):
    asked = []

    def sweep(trial, grid, processes, *, sources, used, **options):
        asked.append((processes, options["threads"]))
        table = sittings.rehearsed(trial, grid, processes)
        labels = {"comparisons": dict(mine.comparisons)}
        for sitting in table.sitting.unique():
            used.append({"parameters": {"sitting": sitting}, "labels": labels, "seconds": 0.0})
        return table

    monkeypatch.setattr("lab.trials.sittings.sweep", sweep)
    mine = Study("1.1", {})
    compared = {"measure": "seconds_a_call", "as": "change", "compare": {"arm": ["slow", "fast"]}}
    needs = {"machine": True}
    mine.ledger = {"slow": Claim(**made.entry("slow", "question", bar=0.1, needs=needs, **compared))}
    table = mine.sweep(ticked, {"n": 1}, timing=True, processes=4, threads=2)
    mine.judge("slow", table.rename(columns={"repeat": "seed"}))
    (line,) = mine.lines("slow")
    assert asked == [(4, 2)] and (line.answer, line.n, line.fixed) == ("answered", 4, "before")
    assert line.sizes.startswith(f"one sitting {table.sitting[0]}, ")
    assert "Intervals cover processes of this machine" in str(said[-1])


def test_the_smoke_profile_times_nothing_and_stays_in_its_process(project, monkeypatch):
    monkeypatch.setattr("lab.trials.sittings.in_a_fresh_process", None)
    mine = study("mine", {})
    mine.profile = "smoke"
    table = mine.sweep(ticked, {"n": 1}, timing=True, processes=8)
    assert table.repeat.tolist() == [0] * 3 + [1] * 3, "twice at most"
    assert not (project / ".trials" / "timings").exists()


def drawn(seed, arm):
    return {"score": seed / 50 + (arm == "a")}


def test_a_comparison_is_fixed_before_only_where_its_rows_first_ran_under_it(project, said):
    compared = {"measure": "score", "compare": {"arm": ["a", "b"]}, "needs": {"budget": {"same": ["threads"]}}}

    def fixed(seeds, bar):
        mine = Study("1.1", {})
        mine.ledger = {"hurt": Claim(**made.entry("hurt", "trend", bar=bar, **compared))}
        table = mine.sweep(drawn, {"seed": seeds, "arm": ["a", "b"]}, jobs=1)
        mine.judge("hurt", table)
        return mine.lines("hurt")[0].fixed

    assert fixed([0, 1, 2], 0.1) == "before"
    assert fixed([0, 1, 2], 0.1) == "before", "from the store, by the header of the first run"
    assert fixed([0, 1, 2], 0.2) == "exploratory", "another bar, on rows that were known"
    assert fixed([1, 2, 3], 0.2) == "exploratory", "one new seed does not help"
    assert fixed([4, 5, 6], 0.2) == "before"


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
