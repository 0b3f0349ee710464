"""What enters the record: rows of clean runs of this machine; none is replaced in silence or counts over a digit.

Of `lab.trials.cells`.
"""

import re
from types import SimpleNamespace

import nbformat
import pytest

from lab import files
from lab.record_command import is_older, words_of
from lab.trials import cells, code, status
from lab.trials import sweep as trials
from lab.trials.record import CannotRecord, accept, record_run, sample_of
from lab.trials.rows import key
from lab.trials.store import File

HEAD = "c0ffee"


NOTEBOOK = """
def t(seed, rate):
    return {"value": seed}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """finish(*values): a finished run, at a clean commit, of trials that gave these values; record(): they enter."""
    place = SimpleNamespace(commit=HEAD, changes=False, path=tmp_path / "record" / "n.jsonl", gone=())
    place.notebook, place.stored = tmp_path / "n.ipynb", tmp_path / "trials" / "n.jsonl"
    monkeypatch.setattr(files, "is_here", lambda commit: commit not in place.gone)

    def write(source):
        nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]), place.notebook)
        with cells.as_module(place.notebook, ["t"]) as module:
            place.code = code.code_of(module.t)

    def body(seed=0, value=1.5, **fields):
        made = {"trial": "t", "parameters": {"seed": seed, "rate": seed % 2}, "n": 1, "columns": {"value": value}}
        made |= {"curve": [], "batch": "", "seconds": 1.0 + seed, "code": place.code.digest, "kinds": {}, "data": {}}
        return made | fields

    def finish(*bodies, **run):
        labels = {"machine": "m", "arithmetic": "a1", "device": "cpu", "threads": 1, "torch": "2", "python": "3.11"}
        stored = File(place.stored)
        for each in bodies:
            stored.append(each, labels | {"commit": "", "date": "2026-01-01"}, place.code.parts)
        used = {"t": {"code": place.code.digest, "points": [key(each["parameters"]) for each in bodies]}}
        about = {"commit": place.commit, "changes": place.changes}
        (tmp_path / "run").mkdir(exist_ok=True)
        files.write_run(tmp_path / "run", about | {"record": {"trials": used}} | run)

    write(NOTEBOOK)
    place.write, place.body, place.finish = write, body, finish
    place.data = {"corpus": "h", "lab/tasks/co2_weekly.txt": "h"}.get
    place.record = lambda: record_run(place.notebook, tmp_path / "run", place.stored, place.path, place.data)
    return place


def counts(new=0, same=0, replaced=0, dropped=0):
    return {"new": new, "same": same, "replaced": replaced, "dropped": dropped}


def test_rows_of_a_clean_run_enter_and_stay(project):
    project.finish(project.body(0), project.body(1))
    assert project.record() == counts(new=2)
    first = project.path.read_text()
    assert project.record() == counts(same=2) and project.path.read_text() == first
    (_, found) = File(project.path).trials
    assert found["labels"]["commit"] == HEAD and found["labels"]["machine"] == "m" and found["parts"]


def test_a_row_whose_commit_is_gone_gets_that_of_a_run_with_its_digits(project):
    project.finish(project.body(0), project.body(1))
    project.record()
    project.gone, project.commit = (HEAD,), "b" * 40
    project.finish(project.body(0), project.body(1, value=2.5))
    with pytest.raises(CannotRecord, match="other digits"):
        project.record()
    project.finish(project.body(0))
    assert project.record() == counts(same=1)
    commits = {each["parameters"]["seed"]: each["labels"]["commit"] for each in File(project.path).trials}
    assert commits == {0: "b" * 40, 1: HEAD}


def test_a_commit_is_here_or_not():
    assert files.is_here(files.commit()["commit"]) and not files.is_here("f" * 40)


@pytest.mark.parametrize("changes", [True, None])
def test_a_run_beside_a_commit_is_refused(project, changes):
    project.finish(project.body(), changes=changes)
    with pytest.raises(CannotRecord, match="not made by a commit alone"):
        project.record()


def test_no_run_a_lost_trial_and_a_file_from_elsewhere_are_refused(project):
    with pytest.raises(CannotRecord, match="no finished run"):
        project.record()
    for name in ("/home/somebody/text.txt", "corpus /home/somebody"):
        project.finish(project.body(data={name: "h"}))
        with pytest.raises(CannotRecord, match=f"read {name}"):
            project.record()
    project.finish(project.body(data={"corpus": "h", "lab/tasks/co2_weekly.txt": "h"}))
    assert project.record() == counts(new=1)
    project.stored.unlink()
    with pytest.raises(CannotRecord, match="lacks a trial"):
        project.record()


def test_rows_of_other_code_go_and_those_of_other_parameters_stay(project):
    project.finish(project.body(0), project.body(1))
    project.record()
    project.finish(project.body(2))
    assert project.record() == counts(new=1)
    project.write(NOTEBOOK.replace("seed}", "seed + 1}"))
    project.finish(project.body(0))
    assert project.record() == counts(replaced=1, dropped=2)
    assert [each["code"] for each in File(project.path).trials] == [project.code.digest]


def test_rows_of_a_kind_that_is_another_now_go_and_those_of_other_kinds_stay(project):
    rotary = code.kind_hash("Position.rotary")
    project.finish(project.body(0, kinds={"Norm.none": "old"}), project.body(1, kinds={"Position.rotary": rotary}))
    assert project.record() == counts(new=2, dropped=1)
    assert [each["parameters"]["seed"] for each in File(project.path).trials] == [1]


# Accepting a change


def test_a_sample_holds_the_cheapest_row_of_every_setting_of_words():
    bodies = [{"parameters": {"seed": s, "arm": a, "causal": c, "width": [w]}, "seconds": 10 * w + s}
              for s in range(3, -1, -1) for a in "ab" for c in (True, False) for w in (1, 2)]  # fmt: skip
    chosen = [body["parameters"] for body in sample_of(bodies)]
    assert {(each["arm"], each["causal"]) for each in chosen} == {(a, c) for a in "ab" for c in (True, False)}
    assert len(chosen) == 4 and all(each["seed"] == 0 and each["width"] == [1] for each in chosen)


CELL = """
import math

{beside}

def scaled(x, kind):
    return x * (1 if kind == "plain" else 2)

def measured(seed, kind):
    return {{"value": scaled(math.sqrt(seed), kind), "other": 1}}

def steady(seed):
    return {{"value": seed}}

def trained(seed):
    from lab import trace

    for step in range(40):
        trace.step(step, 2.0 / (step + 1))
    return {{"loss": 0.05}}

raise RuntimeError("no cell runs")
"""


class Recorded:
    """A notebook with two trials, the record of their rows, and the cell as it is edited."""

    def __init__(self, folder):
        self.notebook, self.path = folder / "mine.ipynb", folder / "record" / "mine.jsonl"
        self.write()
        self.sweep("measured", {"seed": [2, 3], "kind": ["plain", "twice"]})
        self.sweep("steady", {"seed": [2, 3]})

    def sweep(self, name, grid, **labels):
        """Record the trials of a grid, by this machine or as the labels say."""
        with cells.as_module(self.notebook, [name]) as module:
            used = []
            sources = trials.Sources("mine", store=self.path.parents[1] / "store")
            trials.sweep(getattr(module, name), grid, sources=sources, used=used)
        file = File(self.path)
        bodies = [each.body | {"labels": each.body["labels"] | {"commit": HEAD} | labels} for each in used]
        file.rewrite(file.trials + bodies)

    def write(self, old="", new="", beside=""):
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL.format(beside=beside).replace(old, new))])
        nbformat.write(book, self.notebook)

    def accept(self, why="a clearer line", jobs=1):
        return accept(self.notebook, self.path, why, data_hash=lambda name: None, jobs=jobs)

    def counts(self):
        """{trial: how many of its rows are (fresh, accepted, stale)}, and what changed."""
        file = File(self.path)
        with status.of_record(self.notebook, file.trials, file.accepted, lambda name: None) as (_, found):
            return {each.trial: (len(each.fresh), len(each.accepted), len(each.stale)) for each in found}, sorted(
                {name for each in found for name in each.changed()}
            )


@pytest.fixture
def recorded(tmp_path):
    return Recorded(tmp_path)


def test_rows_are_fresh_until_what_their_trial_leads_to_is_edited(recorded):
    assert recorded.counts() == ({"measured": (4, 0, 0), "steady": (2, 0, 0)}, [])
    recorded.write(beside="def unused():\n    return 1")
    assert recorded.counts() == ({"measured": (4, 0, 0), "steady": (2, 0, 0)}, [])
    recorded.write("x * (1", "x * (1.0")
    assert recorded.counts() == ({"measured": (0, 0, 4), "steady": (2, 0, 0)}, ["scaled"])
    recorded.write("def steady", "def steadier")
    assert recorded.counts()[0] == {"measured": (4, 0, 0), "steady": (0, 0, 2)}, "a trial that is gone"


def test_a_change_that_moves_no_digit_is_accepted(recorded):
    before = recorded.path.read_text()
    assert recorded.accept() == ({}, []) and recorded.path.read_text() == before, "nothing is stale"
    recorded.write("x * (1", "x * (1.0")
    assert recorded.accept() == ({"measured": 4}, [])
    (line,) = File(recorded.path).accepted
    assert (line["checked"], line["compared"], line["changed"]) == (2, "equal", ["scaled"])
    assert line["why"] == "a clearer line" and {"machine", "arithmetic", "date", "changes"} <= set(
        File(recorded.path).runs[line["run"]]
    )
    assert recorded.counts() == ({"measured": (0, 4, 0), "steady": (2, 0, 0)}, [])
    recorded.write("x * (1", "(1.0) * x * (1")
    assert recorded.counts()[0]["measured"] == (0, 0, 4), "another edit was not accepted"
    assert recorded.accept("once more") == ({"measured": 4}, []) and len(File(recorded.path).accepted) == 1


def test_rows_that_count_go_on_counting_when_others_of_their_code_are_accepted(recorded):
    file = File(recorded.path)
    kinds = {"plain": {"Mask.none": "older"}, "twice": {"Mask.causal": "older"}}
    bodies = [body | {"kinds": kinds.get(body["parameters"].get("kind"), {})} for body in file.trials]
    file.rewrite(bodies)
    recorded.write("x * (1", "x * (1.0")
    assert recorded.accept() == ({"measured": 4}, [])
    file = File(recorded.path)
    file.accepted[0]["new"]["kinds"]["Mask.causal"] = "before its last edit"
    file.rewrite(file.trials)
    assert recorded.counts()[0]["measured"] == (0, 2, 2)
    assert recorded.accept() == ({"measured": 2}, []) and recorded.counts()[0]["measured"] == (0, 4, 0)


@pytest.mark.slow
def test_workers_accept_and_refuse_as_this_process_does(recorded):
    recorded.write("x * (1", "x * (1.0")
    assert recorded.accept(jobs=2) == ({"measured": 4}, [])
    recorded.write("else 2)", "else 3)")
    counted, (fault,) = recorded.accept(jobs=2)
    assert counted == {} and "value is" in fault


@pytest.mark.parametrize("old, new, fault", [
    ("else 2)", "else 3)", r'measured .*"twice".*value is .*, recorded'),
    ('"other": 1', '"other": 1, "more": 2', "measured .*"),
    ("def measured(seed, kind)", "def measured(seed, kind, rate=1)", "measured .*its parameters have changed"),
    ("math.sqrt(seed)", "math.sqrt(nowhere)", "measured .*fails here: NameError"),
    ("def measured(seed, kind)", "def measured(seed, kind=NOWHERE)", "measured .*cannot be run apart.*NameError"),
    ("def measured", "def renamed", "measured .*cannot be run apart.*AttributeError"),
], ids=["a digit", "a column", "a parameter", "an error", "a constant", "a name"])  # fmt: skip
def test_a_change_is_refused_by_the_name_of_the_trial_whose_digits_move(recorded, old, new, fault):
    recorded.write(old, new)
    counted, faults = recorded.accept()
    assert counted == {} and len(faults) == 1 and re.search(fault, faults[0]), faults
    assert recorded.counts()[0] == {"measured": (0, 0, 4), "steady": (2, 0, 0)} and not File(recorded.path).accepted


def test_a_trial_that_keeps_its_digits_is_accepted_beside_one_that_does_not(recorded):
    recorded.write("else 2)", "else 3)", beside="def unused():\n    return 1")
    text = recorded.notebook.read_text().replace('{\\"value\\": seed}', '{\\"value\\": seed + 0}')
    recorded.notebook.write_text(text)
    counted, faults = recorded.accept()
    assert counted == {"steady": 2} and len(faults) == 1 and faults[0].startswith("measured")


@pytest.mark.parametrize("old, new, agrees", [
    ("0.05", "0.06", True), ("range(40)", "range(30)", True), ("(step + 1)", "(step + 1 + step / 50)", False),
])  # fmt: skip
def test_on_another_arithmetic_the_beginning_of_a_training_is_compared(recorded, old, new, agrees):
    """What comes after it may round otherwise there, whatever the edit."""
    recorded.sweep("trained", {"seed": [2, 3]}, arithmetic="another")
    recorded.write(old, new)
    counted, faults = recorded.accept()
    assert counted == ({"trained": 2} if agrees else {}) and bool(faults) is not agrees
    assert [line["compared"] for line in File(recorded.path).accepted] == ["equal up to rounding"] * agrees


def test_a_committed_run_is_told_by_what_its_trials_rest_on(recorded):
    bodies = File(recorded.path).trials
    with status.of_record(recorded.notebook, bodies, [], {"corpus": "c"}.get) as (_, found):
        made = {each.trial: {"code": each.state.code.digest} for each in found}
        run = {"commit": HEAD, "record": {"trials": made}, "corpus": "c", "parameters": {}, "ledger": "l", "cells": "k"}

        def told(**changes):
            return status.changes_of_run(run | changes, found, {"corpus": "c"}.get, ledger="l", cells="k")

        assert told() == told(cells="") == told(corpus="") == []
        assert told(cells="j", corpus="d", ledger="m") == ["another text", "other cells", "other claims"]
        edited = {"trials": made | {"steady": {"code": "other"}, "gone": {"code": "x"}}}
        assert told(record=edited) == ["older code: gone, steady"]
        assert told(kinds={f"Norm.{name}": "k" for name in "abcde"})[0].endswith("Norm.d and 1 more")
    assert is_older(["another text", "other claims"]) and not is_older(["other claims"])


@pytest.mark.parametrize("run, words", [
    (None, "none"),
    ({}, "by no commit; other cells"),
    ({"commit": "f" * 40}, "by commit ffffffff, which is not here; other cells"),
], ids=["no run", "unknown", "another"])  # fmt: skip
def test_a_committed_run_is_told_in_words(run, words):
    assert words_of(run, ["other cells"]) == words
