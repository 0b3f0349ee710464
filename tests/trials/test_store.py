"""Finished trials as lines: read as written, merged by lines, never believed where code, kinds, data or digits are not
their own."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pandas as pd
import pytest
from helpers import noisy

from lab.trials import arithmetic
from lab.trials import sweep as trials
from lab.trials.code import RUN
from lab.trials.rows import LABELS, of_body
from lab.trials.state import State
from lab.trials.store import Contradiction, File, digits

MADE_BY = {"machine": "a machine", "arithmetic": "a1", "device": "cpu", "threads": 1, "torch": "2", "python": "3.11",
           "commit": "c0ffee", "date": "2026-01-01"}  # fmt: skip


def body(seed=0, *, code="code", value=1.5, labels=MADE_BY, **fields):
    parameters = {"seed": seed, "width": 8}
    made = {"n": 1, "columns": {"value": value}, "curve": [[0, 2.5]], "batch": "b", "seconds": 3.0, "code": code}
    made |= {"kinds": {}, "data": {}, "labels": labels, "parts": {"m.f": code}}
    return {"trial": "t", "parameters": parameters} | made | fields


def file_of(path, *bodies, accepted=()):
    file = File(path)
    for each in accepted:
        file.add_accepted(each, MADE_BY)
    file.rewrite(bodies)
    return File(path)


def now(code="code", kinds=None, data=None):
    found = SimpleNamespace(digest=code, parts={"m.f": code})
    return State(found, (kinds or {}).get, (data or {}).get)


def test_lines_are_sorted_by_what_they_say_and_read_as_written(tmp_path):
    one = file_of(tmp_path / "a.jsonl", *(body(seed, value=seed / 3) for seed in (3, 1, 2)))
    other = file_of(tmp_path / "b.jsonl", *(body(seed, value=seed / 3) for seed in (2, 3, 1)))
    assert one.path.read_text() == other.path.read_text()
    lines = [json.loads(line) for line in one.path.read_text().splitlines()]
    assert [next(iter(line)) for line in lines] == ["run", "code", "trial", "trial", "trial"]
    assert [line["parameters"]["seed"] for line in lines[2:]] == [1, 2, 3]
    assert one.trials[0]["columns"]["value"] == 1 / 3 and one.trials[0]["labels"] == MADE_BY


def test_what_is_appended_is_read_as_what_is_rewritten(tmp_path):
    whole = file_of(tmp_path / "a.jsonl", *(body(seed, value=seed / 3) for seed in (1, 2, 3)))
    file = File(tmp_path / "b.jsonl")
    for each in whole.trials:
        labels, parts = each.pop("labels"), each.pop("parts")
        assert file.append(each, labels, parts)["labels"] == labels
    assert file.path.read_text() == whole.path.read_text()
    assert File(file.path).trials == file.trials


@pytest.mark.parametrize("left", range(2, 60, 7))
def test_a_line_cut_by_a_kill_costs_its_own_trial_alone(tmp_path, left):
    file = file_of(tmp_path / "a.jsonl", body(1), body(2))
    raw = file.path.read_bytes()
    file.path.write_bytes(raw[:-left])
    with pytest.warns(UserWarning, match="line 4 is damaged"):
        file = File(file.path)
    each = body(3)
    file.append({name: x for name, x in each.items() if name not in ("labels", "parts")}, MADE_BY, each["parts"])
    with pytest.warns(UserWarning, match="line 4 is damaged"):
        assert [found["parameters"]["seed"] for found in File(file.path).trials] == [1, 3]


def test_a_row_agrees_under_its_own_code_kinds_and_data_alone():
    made = body(kinds={"Position.rotary": "k"}, data={"corpus": "d"})
    right = {"kinds": {"Position.rotary": "k"}, "data": {"corpus": "d"}}
    assert now(**right).agrees(made) and now(**right).differences(made) == []
    for wrong, name in [
        ({"code": "other"}, "m.f"),
        ({"kinds": {"Position.rotary": "other"}}, "Position.rotary"),
        ({"kinds": {}}, "Position.rotary"),
        ({"data": {"corpus": "x"}}, "corpus"),
    ]:
        state = now(**right | wrong)
        assert not state.agrees(made) and state.differences(made) == [name]


def test_two_lines_of_one_trial_contradict_each_other_on_one_arithmetic_alone(tmp_path):
    path = file_of(tmp_path / "a.jsonl", body()).path
    text = path.read_text()
    path.write_text(text + text.splitlines()[-1] + "\n")
    assert len(File(path, strict=True).trials) == 1, "the same line twice, as after a merge"
    path.write_text(text + text.splitlines()[-1].replace("1.5", "1.5000000000000002") + "\n")
    with pytest.raises(Contradiction, match="line 4: other digits for t"):
        File(path, strict=True)
    assert [each["columns"]["value"] for each in File(path).trials] == [1.5000000000000002], "the later, of a store"
    elsewhere = MADE_BY | {"arithmetic": "a2"}
    path = file_of(tmp_path / "b.jsonl", body(), body(value=2.5, labels=elsewhere)).path
    assert len(File(path, strict=True).trials) == 2


def test_branches_that_recorded_different_trials_merge_by_hand_of_nobody(tmp_path):
    def git(*arguments):
        command = ["git", "-C", tmp_path, "-c", "user.name=n", "-c", "user.email=e", *arguments]
        subprocess.run(command, check=True, capture_output=True)

    git("init", "-b", "main")
    file_of(tmp_path / "a.jsonl", *(body(seed) for seed in range(20)))
    git("add", ".")
    git("commit", "-m", "base")
    git("checkout", "-b", "mine")
    file_of(tmp_path / "b.jsonl", body(), body(1))
    git("add", ".")
    git("commit", "-m", "mine")
    git("checkout", "main")
    file_of(tmp_path / "c.jsonl", body(), body(2))
    file_of(tmp_path / "a.jsonl", *(body(seed, value=2.5 if seed == 19 else 1.5) for seed in range(20)))
    git("add", ".")
    git("commit", "-m", "theirs")
    git("merge", "mine", "-m", "both")
    assert sum(len(File(path).trials) for path in tmp_path.glob("*.jsonl")) == 24


def change(old, new, **fields):
    sides = [{"code": code, "kinds": kinds, "data": {}} for code, kinds in (old, new)]
    return {"accepted": "t", "old": sides[0], "new": sides[1], "why": "a name"} | fields


def test_an_accepted_change_lets_rows_count_and_no_other_change_does(tmp_path):
    accepted = change(("code", {"Norm.x": "1"}), ("new", {"Norm.x": "2"}))
    file = file_of(tmp_path / "a.jsonl", body(kinds={"Norm.x": "1"}), accepted=[accepted])
    (made,) = file.trials
    assert now("new", {"Norm.x": "2"}).accepts(made, file.accepted)["why"] == "a name"
    assert now("code", {"Norm.x": "1"}).agrees(made), "what it was made by"
    assert now("new", {"Norm.x": "1"}).accepts(made, file.accepted), "a kind that is as it was needs no line"
    for state in (now("new", {"Norm.x": "3"}), now("newer", {"Norm.x": "2"}), now("code", {"Norm.x": "2"})):
        assert state.accepts(made, file.accepted) is None
    assert now("new", {"Norm.x": "2"}).accepts(made | {"trial": "u"}, file.accepted) is None


def test_a_line_that_accepts_goes_with_the_rows_it_was_of(tmp_path):
    file = file_of(tmp_path / "a.jsonl", body(), accepted=[change(("code", {}), ("new", {}))])
    assert len(file.accepted) == 1
    file.rewrite([each | {"code": "newest"} for each in file.trials])
    assert File(file.path).accepted == []


def test_digits_are_what_two_runs_must_agree_on():
    assert digits(body()) == digits(body(seconds=9.0, labels={}))
    assert digits(body()) != digits(body(value=1.5000000000000002))
    assert of_body(body()) == [{"value": 1.5}]


# What a sweep draws from a record


@pytest.fixture
def recorded(tmp_path):
    """A sweep's trials as a record of this machine, and a sweep that draws from it."""
    grid = {"seed": [0, 1, 2, 3, 4], "width": [4, 8], "steps": 40}

    def sweep(**sources):
        used = []
        known = {"store": tmp_path / "other", "record": [tmp_path / "record"]} | sources
        return trials.sweep(noisy, grid, sources=trials.Sources("n", **known), used=used), used

    table, used = sweep(store=tmp_path / "first", record=[])
    sweep.table, sweep.path = table, tmp_path / "record" / "n.jsonl"
    File(sweep.path).rewrite([each.body for each in used])
    return sweep


def test_a_record_and_no_store_make_the_recorded_table(recorded, tmp_path):
    table, used = recorded(recorded_only=True)
    labels = list(LABELS)
    pd.testing.assert_frame_equal(table.drop(columns=labels), recorded.table.drop(columns=labels))
    assert {each.origin for each in used} == {"record"} and not (tmp_path / "other").exists()


def test_what_the_record_lacks_runs_or_is_said_to_be_missing(recorded, tmp_path):
    file = File(recorded.path)
    file.rewrite([each for each in file.trials if each["parameters"]["seed"] != 3])
    with pytest.raises(trials.NotRecorded, match='2 of 10 trials of noisy are not in the record.*"seed": 3'):
        recorded(recorded_only=True)
    table, used = recorded()
    assert [each.origin for each in used].count("run") == 2 == len(File(tmp_path / "other" / "n.jsonl").trials)
    labels = list(LABELS)
    pd.testing.assert_frame_equal(table.drop(columns=labels), recorded.table.drop(columns=labels))


def test_of_rows_of_older_code_it_is_told_what_changed_and_how_long_they_took(recorded, capsys):
    file = File(recorded.path)
    older = {"code": "older", "seconds": 12.0}
    file.rewrite([each | older | {"parts": each["parts"] | {RUN: "older"}} for each in file.trials])
    told = f"10 ran before a change in {RUN}: they took 2.0 minutes of one core"
    with pytest.raises(trials.NotRecorded, match=told):
        recorded(recorded_only=True)
    _, used = recorded()
    assert {each.origin for each in used} == {"run"}
    assert capsys.readouterr().out == f"10 of 10 trials of noisy run here; {told}\n"


def test_the_very_same_trial_of_another_notebook_counts_and_one_of_its_name_does_not(recorded):
    recorded.path.rename(recorded.path.with_name("m.jsonl"))
    assert {each.origin for each in recorded(recorded_only=True)[1]} == {"record"}
    file = File(recorded.path.with_name("m.jsonl"))
    file.rewrite([each | {"code": "of another one"} for each in file.trials])
    with pytest.raises(trials.NotRecorded):
        recorded(recorded_only=True)


def test_two_users_draw_from_one_read_only_layer_at_once(recorded, tmp_path):
    """A class's shared folder: each has a store of his own, nobody writes to the layer."""
    before = recorded.path.read_bytes()
    recorded.path.chmod(0o444)
    recorded.path.parent.chmod(0o555)
    try:
        with ThreadPoolExecutor(2) as users:
            tables = list(users.map(lambda user: recorded(store=tmp_path / user, recorded_only=True)[0], ("a", "b")))
    finally:
        recorded.path.parent.chmod(0o755)
    pd.testing.assert_frame_equal(*tables)
    assert recorded.path.read_bytes() == before and len(list(recorded.path.parent.iterdir())) == 1


def test_a_store_keeps_the_trials_of_each_arithmetic_apart(tmp_path, monkeypatch):
    """So a folder that two machines share gives each its own digits."""

    def origins(name):
        monkeypatch.setattr(arithmetic, "digest", lambda device="cpu", threads=1: name)
        sources = trials.Sources("n", store=tmp_path)
        trials.sweep(noisy, {"seed": [0, 1], "width": 4, "steps": 3}, sources=sources, used=(used := []))
        assert {each.body["labels"]["arithmetic"] for each in used} == {name}
        return [each.origin for each in used]

    assert [origins(name) for name in ("here", "there", "here")] == [["run"] * 2, ["run"] * 2, ["store"] * 2]
