"""Where a number came from is told by its name: its run, its trials, and what has changed since. Nothing runs."""

import json
import subprocess

import pytest
import small_project
from small_project import CELLS, DICE
from typer.testing import CliRunner

from lab.cli import app
from lab.commands.where import EARLY, with_values
from lab.engine import runs

OWN = "  thrown: 12 trials of the run's own machine, "
CLOCKED = """
import pandas as pd

def clocked(n: int):
    return {"value": n}

clock = study.table("clock", study.sweep(clocked, {"n": [1, 2]}, timing=True)[["n", "value"]])
study.table("listed", pd.DataFrame({"a": [1]}))
study.table("small", first[first.sides == 4])
"""


def lab(*arguments, code=0):
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == code, done.output
    return done.output


def lines(name):
    return lab("where", name).splitlines()


def git(folder, *arguments):
    me = ["-c", "user.name=me", "-c", "user.email=me@here"]
    command = ["git", "-C", folder, *me, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def edit(folder, old, new):
    """Replace what stands in the dice's notebook."""
    path = folder / "notebooks" / f"{DICE}.ipynb"
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A project whose dice ran at a clean commit; its trials are recorded."""
    monkeypatch.setenv("LAB_PROJECT", str(folder := small_project.write(tmp_path / "project")))
    cells = [
        (tag, source.replace("GATE", str(folder / "gate"))) for tag, source in (*CELLS[:10], ("", CLOCKED), *CELLS[10:])
    ]
    small_project.write_notebook(folder / "notebooks" / f"{DICE}.ipynb", cells)
    for arguments in (["init", "-q"], ["add", "notebooks", "experiments"], ["commit", "-qm", "one"]):
        git(folder, *arguments)
    small_project.ran(folder, place="runs/quick")
    lab("record", "1.1")
    return folder


def test_a_table_is_told_with_its_run_and_its_recorded_trials(recorded):
    head, run, rows, today = lines("1.1/means")
    commit = git(recorded, "rev-parse", "HEAD")[:8]
    made = json.loads((recorded / "results" / "runs" / "quick" / DICE / "run.json").read_text())
    assert head == f"{DICE}/means: table and figure"
    about = f"{made['started'][:10]}, {made['machine']}, by commit {commit}"
    assert run == f"  run of this machine results/runs/quick/{DICE}, {about}"
    (labels,) = [json.loads(line) for line in record(recorded) if line.startswith('{"run"')]
    about = f"{labels['date']}, {labels['machine']}, by commit {commit}"
    assert rows == f"  thrown: 12 trials of the run's own machine, 12 recorded rows, {about}"
    assert today == "    by today's code 12 fresh"
    assert lines("01/means") == lines(f"{DICE}/means") == [head, run, rows, today]
    assert lines("1.1/throws")[0] == f"{DICE}/throws: table"


def record(folder):
    return (folder / "results" / "record" / f"{DICE}.jsonl").read_text("utf-8").splitlines()


def test_a_table_of_fewer_parameters_says_how_many_rows_have_them(recorded):
    assert (
        "12 recorded rows" in lines("1.1/small")[2]
        and "4 of them with values that the table has" in lines("1.1/small")[2]
    )


def test_rows_that_may_be_behind_a_table_have_its_values(tmp_path):
    bodies = [{"trial": "t", "parameters": {"seed": seed, "arm": arm}} for seed in (0, 1) for arm in "ab"]

    def told(text):
        (tmp_path / "t.csv").write_text(text)
        return with_values(bodies, tmp_path / "t.csv")

    assert told("seed,loss\n0,3\n0,4\n").startswith("2 of them")
    assert told("arm,seed\na,0\nb,1\n").startswith("2 of them")
    assert told("loss\n3\n") == told("arm\na: of old\n") == with_values(bodies, None) == ""


def test_a_verdict_is_told_with_its_line_by_its_id_alone_and_by_an_earlier_one(recorded):
    head, line, cited, *rest = lines("dice-more-sides")
    assert head == f"{DICE}/dice-more-sides: verdict" and line.endswith("points, n = 4; predicted > 0")
    assert cited == "  cites the table means and the figure means" and rest == lines("1.1/means")[1:]
    for name in ("dice-of-old", "1.1/dice-of-old", f"{DICE}/dice-more-sides"):
        assert lines(name) == [head, line, cited, *rest]


def test_what_no_trial_or_no_recorded_one_gave_says_so(recorded):
    assert lines("1.1/clock")[2:] == ["  clocked: measured in the run itself, never recorded"]
    assert lines("1.1/listed")[2:] == ["  no sweep: computed in the notebook's cells"]
    (recorded / "results" / "record" / f"{DICE}.jsonl").unlink()
    own = "  thrown: 12 trials of the run's own machine, none recorded"
    assert lines("1.1/means")[2:] == [own]
    edit(recorded, "total / dice", "1.0 * total / dice")
    assert lines("1.1/means")[2:] == [own + ", by older code"]


def test_changes_since_are_told_by_name_and_what_was_accepted_by_its_reason(recorded):
    place = recorded / "results" / "runs" / "quick" / DICE
    runs.write_run(place, runs.read_run(place) | {"cells": "those of then"})
    assert lines("1.1/means")[1].endswith("; other cells")
    edit(recorded, "total / dice", "1.0 * total / dice")
    assert lines("1.1/means")[3] == "    by today's code 12 stale (changed: thrown)"
    lab("record", "1.1", "--accept", "times one")
    assert lines("1.1/means")[3] == "    by today's code 12 accepted (times one)"
    edit(recorded, "def thrown", "def rolled")
    assert lines("1.1/means")[3] == "    by today's code 12 stale (changed: it is gone, or cannot be followed)"


def test_rows_of_several_runs_are_told_with_all_of_these(recorded):
    path, made = recorded / "results" / "record" / f"{DICE}.jsonl", [json.loads(line) for line in record(recorded)]
    (first,) = [each for each in made if "run" in each and "trial" not in each]
    made[-1]["run"] = "another"
    about = {"run": "another", "machine": "M", "arithmetic": "a", "date": "2020-01-02", "commit": "f" * 40}
    path.write_text("".join(json.dumps(each) + "\n" for each in [first | about, *made]))
    rows = lines("1.1/means")[2]
    assert f", 2020-01-02 to {first['date']}, " in rows and f"{first['machine']}" in rows and "M, 2 arithmetics" in rows
    assert all(commit in rows for commit in (first["commit"][:8], "ffffffff (not here)")) and "12 recorded rows" in rows


def test_rows_of_another_notebook_that_the_run_drew_are_told(recorded):
    own = recorded / "results" / "record" / f"{DICE}.jsonl"
    text = own.read_text("utf-8").splitlines()
    few = [line for line in text if not line.startswith('{"trial"')] + text[-3:]
    own.with_name("02_coins.jsonl").write_text("\n".join(few))
    assert " recorded for " not in lines("1.1/means")[2], "the own record has all"
    own.write_text("\n".join(text[:-3]))
    assert lines("1.1/means")[2].startswith(f"{OWN}9 recorded rows and up to 3 rows recorded for 02_coins, ")
    own.write_text("\n".join(text))
    own.rename(own.with_name("02_coins.jsonl"))
    assert lines("1.1/means")[2].startswith(f"{OWN}up to 12 rows recorded for 02_coins, ")
    run = json.loads((recorded / "results" / "runs" / "quick" / DICE / "run.json").read_text())
    run.pop("sha256")
    run["record"]["trials"]["thrown"] = {"code": "other", "keys": []}
    runs.write_run(recorded / "results" / "runs" / "quick" / DICE, run)
    assert lines("1.1/means")[2] == "  thrown: the rows that the run drew are no longer in the record"
    del run["record"]["trials"]
    runs.write_run(recorded / "results" / "runs" / "quick" / DICE, run)
    own.with_name("02_coins.jsonl").rename(own)
    early, rows, _ = lines("1.1/means")[2:]
    assert early == f"  {EARLY}" and rows.startswith("  thrown: 12 recorded rows, ")


def test_a_published_run_a_foreign_commit_and_a_table_that_was_edited_are_told(recorded):
    place = recorded / "results" / "quick" / DICE
    place.parent.mkdir()
    (recorded / "results" / "runs" / "quick" / DICE).rename(place)
    (place / "tables" / "means.csv").write_text((place / "tables" / "means.csv").read_text() + "\n")
    run = json.loads((place / "run.json").read_text())
    (place / "run.json").write_text(json.dumps({k: v for k, v in run.items() if k != "sha256"} | {"commit": "f" * 40}))
    _, damaged, about, *_ = lines("1.1/means")
    assert damaged == "  tables/means.csv is not as the run left it"
    assert about.startswith(f"  published run results/quick/{DICE}, ")
    assert about.endswith("by commit ffffffff, which is not here")


@pytest.mark.parametrize("name, named", {
    "1.1/nonsuch": ["01_dice has no 'nonsuch'", "tables clock, listed, means, small, throws", "figures means;",
                    "claims dice-count, dice-more-sides"],
    "1.1": ["01_dice has tables clock"],
    "1.9/means": ["1.9", "1.1 (01_dice)"],
    "dice-more-side": ["no claim 'dice-more-side'", "dice-more-sides"],
    "1.2/tosses": ["02_coins has not run at quick", "lab run 02_coins"],
}.items())  # fmt: skip
def test_a_wrong_name_is_answered_with_what_there_is(name, named, recorded):
    said = lab("where", name, code=2)
    assert all(word in said for word in named) and "Traceback" not in said
