"""A verdict falls where trials, run here, give another one; what was found stands until it is explained."""

import json

import pandas as pd
import pytest
from helpers import notebook_with, recorded

from lab import trace
from lab.engine import arithmetic, checks, runs
from lab.engine.trials import Used
from lab.ledger import again
from lab.ledger.claims import NOT_REPRODUCED, OwnClaim
from lab.study import Study

CELLS = """
study = lab.study("own", globals())
def grown(seed, n_heads): pass
def counted(items): pass
table = study.sweep(grown, {})
kept = study.sweep(counted, {})
for name in ("hurt-1", "hurt-16", "derived"): study.judge(name, table)
study.judge("exact", float(table.loss.max()))
study.judge("counted", float(kept.total.max()))
"""
ABOVE = {"compares": "first minus second", "direction": "above", "threshold": 0.05}
NEEDS = {"regime": {"n_heads": [1, 32]}}


def grown(seed, n_heads):
    """A training in small: 16 heads lose 0.08 against 8."""
    for step in range(12):
        trace.step(step, 3.0 - step / 10 + seed / 50)
    return {"loss": 2 + seed / 50 + n_heads / 100 + seed * n_heads / 1e4, "word": "w"}


def counted(items):
    return {"total": float(items)}


def claim(name, measure, heads):
    arms = {"measure": measure, "compare": {"n_heads": [heads, 8]}}
    return OwnClaim(id=name, claim=f"{name} is so", prediction=ABOVE, arms=arms, needs=NEEDS)


def exactly(name, value):
    told = {"compares": name, "direction": "equal", "threshold": value, "tolerance": 1.0}
    return OwnClaim(id=name, claim=f"{name} is so", kind="arithmetic", prediction=told)


LEDGER = [claim("hurt-1", "loss", 1), claim("hurt-16", "loss", 16), claim("derived", "twice", 16),
          exactly("exact", 2.0), exactly("counted", 7.0)]  # fmt: skip


@pytest.fixture
def said(monkeypatch):
    words = []
    monkeypatch.setattr("lab.study.display", lambda shown, **_: words.append(str(getattr(shown, "data", shown))))
    return words


@pytest.fixture
def run(tmp_path, monkeypatch, said):
    """run(check): a finished study of five claims, whose trials stand in run.file, recorded on another arithmetic."""
    monkeypatch.setenv("LAB_PROJECT", str(tmp_path))
    (tmp_path / "book").mkdir()
    notebook = notebook_with(tmp_path / "book", parameters="profile: str = 'quick'", code=CELLS)
    path = tmp_path / "record" / "n.jsonl"

    def run(check=20.0, **options):
        about = {"notebook": notebook, "record": [path.parent], "check": check, "headless": True}
        runs.Options(**about | {"store": tmp_path / "store"} | options).write(tmp_path / "results")
        mine = Study("own", {"results": str(tmp_path / "results"), "profile": "quick"}, ledger=LEDGER)
        table = mine.sweep(grown, {"seed": range(5), "n_heads": [1, 8, 16]}, jobs=1)
        kept = mine.sweep(counted, {"items": [1, 7]}, jobs=1)
        mine.table("losses", table)
        for name in ("hurt-1", "hurt-16"):
            mine.judge(name, table)
        mine.judge("derived", table.assign(twice=2 * table.loss))
        mine.judge("exact", float(table.loss.max()))
        mine.judge("counted", float(kept.total.max()))
        mine.finish()
        mine.told = runs.read_run(mine.folder)["record"]["told"]
        mine.fallen = {name for name, verdict in mine._verdicts.items() if verdict.verdict == NOT_REPRODUCED}
        return mine

    used = run(check=0, store=tmp_path / "first").used
    run.file = recorded(path, [each.body for each in used], arithmetic="another")
    run.kept = tmp_path / "store" / ".checked" / f"{notebook.stem}.json"
    said.clear()
    return run


def change(file, by, **where):
    """Add to what is recorded of the trials with these parameters."""
    for each in file.trials:
        if where.items() <= each["parameters"].items():
            each["columns"] = each["columns"] | {"loss": each["columns"]["loss"] + by}
    file.write()


def test_what_is_as_recorded_marks_nothing(run):
    mine = run()
    assert not mine.fallen and "Run again here: 17 (17 by all numbers), as recorded." in mine.told
    assert not run.kept.exists()


@pytest.mark.parametrize("by, verdict", [(0.05, "supported"), (0.0001, "supported"), (0.3, "supported")])
def test_an_end_that_leaves_the_verdict_marks_nothing(run, by, verdict):
    change(run.file, by, n_heads=16)
    mine = run()
    assert not mine.fallen and mine.verdict("hurt-16").verdict == verdict and not run.kept.exists()
    arms = "all seeds of 1 arms were run here" in mine.told
    assert arms == (by > 0.01) == ("Not judged again, since rows alone do not tell: derived, exact." in mine.told)


def test_a_verdict_that_changes_falls_alone_and_tells_both(run, said):
    """By the record 16 heads lose 0.02, which is refuted; here they lose 0.08."""
    change(run.file, -0.06, n_heads=16)
    mine = run()
    assert mine.fallen == {"hurt-16"} and mine.verdict("hurt-1").verdict == "refuted"
    verdict = mine.verdict("hurt-16")
    assert verdict.note.startswith("refuted by the record (0.0216 [") and "supported with all seeds" in verdict.note
    assert "(0.0816 [" in verdict.note and round(verdict.effect, 4) == 0.0216
    assert (
        "Not reproduced here: hurt-16." in mine.told and "Not judged again, since rows alone do not tell:" in mine.told
    )
    cards = [card for card in said if "hurt-16 is so" in card]
    assert ["not reproduced here" in card for card in cards[:2]] == [False, True], "shown again after the check"
    table = pd.read_csv(mine.folder / "verdicts.csv")
    assert list(table.id[table.verdict == NOT_REPRODUCED]) == ["hurt-16"]


def test_one_seed_that_ends_otherwise_is_no_fault(run):
    change(run.file, 0.03, n_heads=16, seed=3)
    mine = run()
    assert not mine.fallen and "as recorded but for the end of 1; all seeds of 1 arms" in mine.told


def test_what_was_found_stands_until_the_row_is_replaced(run, said):
    change(run.file, -0.06, n_heads=16)
    assert run().fallen == {"hurt-16"}
    since = "2026-01-31"
    run.kept.write_text(json.dumps([each | {"since": since} for each in json.loads(run.kept.read_text())]))
    for check in (0, 0.001, 20):
        said.clear()
        mine = run(check)
        assert mine.fallen == {"hurt-16"} and since in mine.verdict("hurt-16").note, check
        assert "Still not reproduced here: hurt-16." in mine.told and "Not reproduced" not in mine.told
        assert ["not reproduced here" in card for card in said if "hurt-16 is so" in card][:1] == [True], (
            "from the first"
        )
    change(run.file, 0.06, n_heads=16)
    mine = run(0)
    assert not mine.fallen and "reproduced" not in mine.told and not run.kept.exists()


def test_rows_that_are_not_drawn_keep_what_was_found_of_them(run):
    change(run.file, -0.06, n_heads=16)
    run()
    before = run.kept.read_text()
    run.file.trials = [each for each in run.file.trials if each["parameters"].get("n_heads") != 16]
    run.file.write()
    mine = run()
    assert mine.verdict("hurt-16").verdict == "supported" and not mine.fallen, "by what ran here"
    assert run.kept.read_text() == before


def test_a_check_that_agrees_confirms(run):
    used = [
        Used(grown, "k", each, "record") for each in run.file.trials if each["parameters"] == {"seed": 1, "n_heads": 1}
    ]
    about = {"trial": "grown", "parameters": used[0].body["parameters"], "key": "k", "row": checks.row_of(used[0])}
    wrong = checks.Finding(**about, part="all numbers", fault="loss 3 at step 0, recorded 2")
    checks.write_found(run.kept, [checks.Found("2026-01-31", [wrong])])
    mine = run(0)
    assert mine.fallen == {"hurt-1", "exact"} and "Still not reproduced here: exact, hurt-1." in mine.told
    assert "2026-01-31" in mine.verdict("exact").note and "loss 3 at step 0" in mine.verdict("exact").note
    mine = run()
    assert not mine.fallen and "Confirmed now: exact, hurt-1." in mine.told and not run.kept.exists()


@pytest.mark.parametrize("trial, fallen", [("grown", {"hurt-16", "derived", "exact"}), ("counted", {"counted"})])
def test_numbers_that_no_rounding_explains_mark_all_that_read_them(run, trial, fallen):
    """A row made larger by a tenth: of a training with its curve, of what is not trained."""
    for each in run.file.trials:
        if each["trial"] == trial and each["parameters"] in ({"seed": 2, "n_heads": 16}, {"items": 7}):
            each["columns"] = {n: v * 1.1 if isinstance(v, float) else v for n, v in each["columns"].items()}
            each["curve"] = [[step, 1.1 * loss] for step, loss in each["curve"]]
    run.file.write()
    mine = run()
    assert mine.fallen == fallen and "NOT as recorded" in mine.told
    assert run(0).fallen == fallen


def test_on_the_recording_arithmetic_a_digit_is_enough(run):
    (only,) = run.file.runs
    run.file.runs[only]["arithmetic"] = arithmetic.digest("cpu", 1)
    change(run.file, 1e-9, n_heads=1, seed=0)
    mine = run()
    assert mine.fallen == {"hurt-1", "exact"} and "loss is 2.01, recorded 2.010000001" in mine.told


def test_an_interrupt_ends_the_check_alone(run, monkeypatch):
    change(run.file, -0.06, n_heads=16)
    check, ran = checks.check, []

    def until_the_fourth(each, *rest):
        ran.append(each)
        if len(ran) == 4:
            raise KeyboardInterrupt
        return check(each, *rest)

    monkeypatch.setattr(checks, "check", until_the_fourth)
    mine = run()
    assert "Run again here: 3" in mine.told and "The check was interrupted; what it had checked counts." in mine.told
    assert runs.read_run(mine.folder)["status"] == "done" and not mine.fallen


def test_a_check_tells_how_far_it_is(run, tmp_path):
    run(progress=tmp_path / "sweep.json")
    assert json.loads((tmp_path / "sweep.json").read_text()) == {"said": ""}, "it has ended"
    assert checks.Progress("c")._words(2, 9, 29.6) == "checking 3 of 9 recorded trials, at most 30 s"


# Which rows of a table are whose


def trial(seed, **columns):
    body = {"parameters": {"seed": seed, "arm": "a"}, "n": 2, "columns": {"step": [1, 2]} | columns}
    return Used(grown, f"k{seed}", body, "record")


def test_a_row_is_matched_by_parameters_and_recorded_numbers():
    used = [trial(0, loss=[1.0, 0.5], note=None), trial(1, loss=[1.0, 0.25], note=None)]
    here = [{"n": 2, "columns": {"step": [1, 2], "loss": [1.1, 0.6 + seed], "note": None}} for seed in (0, 1)]
    table = pd.DataFrame({"seed": [0, 1, 0, 1], "arm": ["a", "a", "b", "a"], "step": [2, 2, 2, 1], "own": 3,
                          "loss": [0.5, 0.25 * (1 + 1e-15), 0.5, 7.0]})  # fmt: skip
    taken = again.taken_from(table, list(zip(used, here, strict=True)))
    assert taken == {0: {"step": 2, "loss": 0.6}, 1: {"step": 2, "loss": 1.6}}, (
        "not another arm's, nor a number of one's own"
    )
    assert again.taken_from(table.drop(columns=["step", "loss"]), list(zip(used, here, strict=True))) == {}, (
        "either row"
    )
    assert again.taken_from(table, [(used[0], here[0] | {"n": 3})]) == {}, "other rows than recorded"
