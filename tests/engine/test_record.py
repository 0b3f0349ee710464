"""The record: read as written, merged by lines, never believed where code, kinds, data or digits are not its own."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest
import torch
from helpers import noisy

from lab.engine import arithmetic, store, trials
from lab.engine.record import Contradiction, File, Record, State, digits
from lab.engine.recording import KEPT

LABELS = {"machine": "a machine", "arithmetic": "a1", "device": "cpu", "threads": 1, "torch": "2", "python": "3.11",
          "commit": "c0ffee", "date": "2026-01-01"}  # fmt: skip


def body(seed=0, *, run="r", code="code", value=1.5, **fields):
    parameters = {"seed": seed, "width": 8}
    made = {"n": 1, "columns": {"value": value}, "curve": [[0, 2.5]], "batch": "b", "seconds": 3.0, "code": code}
    return {"trial": "t", "parameters": parameters} | made | {"kinds": {}, "data": {}, "run": run} | fields


def file_of(path, *bodies, accepted=()):
    file = File(path)
    run = file.add_run(LABELS)
    file.codes = {each["code"]: {"parts": {"m.f": each["code"]}} for each in bodies}
    file.trials, file.accepted = [each | {"run": run} for each in bodies], [each | {"run": run} for each in accepted]
    file.write()
    return File(path)


def now(code="code", kinds=None, data=None):
    return State(code, (kinds or {}).get, (data or {}).get)


def test_lines_are_sorted_by_what_they_say_and_read_as_written(tmp_path):
    one = file_of(tmp_path / "a.jsonl", *(body(seed, value=seed / 3) for seed in (3, 1, 2)))
    other = file_of(tmp_path / "b.jsonl", *(body(seed, value=seed / 3) for seed in (2, 3, 1)))
    assert one.path.read_text() == other.path.read_text()
    lines = [json.loads(line) for line in one.path.read_text().splitlines()]
    assert [next(iter(line)) for line in lines] == ["run", "code", "trial", "trial", "trial"]
    assert [line["parameters"]["seed"] for line in lines[2:]] == [1, 2, 3]
    assert one.trials[0]["columns"]["value"] == 1 / 3


def test_a_row_is_found_under_its_own_code_kinds_and_data_alone(tmp_path):
    file_of(tmp_path / "a.jsonl", body(kinds={"Position.rotary": "k"}, data={"corpus": "d"}))
    record, point = Record([tmp_path]), {"width": 8, "seed": 0}
    right = {"kinds": {"Position.rotary": "k"}, "data": {"corpus": "d"}}
    assert record.find("t", point, now(**right))["columns"] == {"value": 1.5}
    assert record.find("t", point, now(**right))["labels"]["machine"] == "a machine"
    assert record.find("t", point | {"seed": 1}, now(**right)) is None and record.find("u", point, now(**right)) is None
    for wrong in ({"code": "other"}, {"kinds": {"Position.rotary": "other"}}, {"kinds": {}}, {"data": {"corpus": "x"}}):
        state = now(**right | wrong)
        assert record.find("t", point, state) is None
        assert record.earlier("t", point)["seconds"] == 3.0
        assert state.differences(record.earlier("t", point), {"m.f": state.code})


def test_two_lines_of_one_trial_with_other_digits_are_refused(tmp_path):
    path = file_of(tmp_path / "a.jsonl", body()).path
    text = path.read_text()
    path.write_text(text + text.splitlines()[-1] + "\n")
    assert len(File(path).trials) == 1, "the same line twice, as after a merge"
    path.write_text(text + text.splitlines()[-1].replace("1.5", "1.5000000000000002") + "\n")
    with pytest.raises(Contradiction, match="line 4: other digits for t"):
        File(path)
    path.write_text(text + "{half a line\n")
    with pytest.raises(ValueError, match="line 4: no line of a record"):
        File(path)


def test_branches_that_recorded_different_trials_merge_by_hand_of_nobody(tmp_path):
    def git(*arguments):
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=n", "-c", "user.email=e", *arguments], check=True,
                       capture_output=True)  # fmt: skip

    git("init", "-b", "main")
    file_of(tmp_path / "a.jsonl", *(body(seed) for seed in range(20)))
    git("add", "."), git("commit", "-m", "base"), git("checkout", "-b", "mine")
    file_of(tmp_path / "b.jsonl", body(), body(1))
    git("add", "."), git("commit", "-m", "mine"), git("checkout", "main")
    file_of(tmp_path / "c.jsonl", body(), body(2))
    file_of(tmp_path / "a.jsonl", *(body(seed, value=2.5 if seed == 19 else 1.5) for seed in range(20)))
    git("add", "."), git("commit", "-m", "theirs"), git("merge", "mine", "-m", "both")
    assert sum(len(file.trials) for file in Record([tmp_path]).files) == 24


def change(old, new, **fields):
    sides = [{"code": code, "kinds": kinds, "data": {}} for code, kinds in (old, new)]
    return {"accepted": "t", "old": sides[0], "new": sides[1], "why": "a name"} | fields


def test_an_accepted_change_lets_rows_count_and_no_other_change_does(tmp_path):
    accepted = change(("code", {"Norm.x": "1"}), ("new", {"Norm.x": "2"}))
    file_of(tmp_path / "a.jsonl", body(kinds={"Norm.x": "1"}), accepted=[accepted])
    record, point = Record([tmp_path]), {"seed": 0, "width": 8}
    found = record.find("t", point, now("new", {"Norm.x": "2"}))
    assert found["labels"]["accepted"] == "a name" and found["code"] == "new"
    assert "accepted" not in record.find("t", point, now("code", {"Norm.x": "1"}))["labels"], "what it was made by"
    assert record.find("t", point, now("new", {"Norm.x": "1"})), "a kind that is as it was needs no line"
    for state in (now("new", {"Norm.x": "3"}), now("newer", {"Norm.x": "2"}), now("code", {"Norm.x": "2"})):
        assert record.find("t", point, state) is None
    assert record.find("u", point, now("new", {"Norm.x": "2"})) is None


def test_a_line_that_accepts_goes_with_the_rows_it_was_of(tmp_path):
    file = file_of(tmp_path / "a.jsonl", body(), accepted=[change(("code", {}), ("new", {}))])
    assert len(file.accepted) == 1
    file.trials = [each | {"code": "newest"} for each in file.trials]
    file.write()
    assert File(file.path).accepted == []


def record_of(used, path, **labels):
    """The file of these trials as recorded by this machine, but for its labels."""
    file = File(path)
    run = file.add_run(LABELS | {"arithmetic": used[0].body["arithmetic"]} | labels)
    file.trials = [{name: each.body[name] for name in KEPT} | {"run": run} for each in used]
    file.codes = {each.body["code"]: {"parts": each.body["parts"]} for each in used}
    file.write()
    return file


@pytest.fixture
def recorded(tmp_path):
    """A sweep's trials as a record of this machine, and a sweep that draws from it."""
    grid = {"seed": [0, 1, 2, 3, 4], "width": [4, 8], "steps": 40}

    def sweep(**sources):
        used = []
        known = trials.Sources(**{"store": tmp_path / "other", "record": Record([tmp_path / "record"])} | sources)
        return trials.sweep(noisy, grid, sources=known, used=used), used

    table, used = sweep(store=tmp_path / "first", record=Record([]))
    sweep.table, sweep.file = table, record_of(used, tmp_path / "record" / "n.jsonl")
    return sweep


def test_a_record_and_no_store_make_the_recorded_table(recorded, tmp_path):
    table, used = recorded(recorded_only=True)
    labels = list(trials.LABELS)
    pd.testing.assert_frame_equal(table.drop(columns=labels), recorded.table.drop(columns=labels))
    assert {each.origin for each in used} == {"record"} and not list((tmp_path / "other").rglob("*.json"))


def test_what_the_record_lacks_runs_or_is_said_to_be_missing(recorded, tmp_path):
    file = File(recorded.file.path)
    file.trials = [each for each in file.trials if each["parameters"]["seed"] != 3]
    file.write()
    with pytest.raises(trials.NotRecorded, match='2 of 10 trials of noisy are not in the record.*"seed": 3'):
        recorded(recorded_only=True)
    table, used = recorded()
    assert [each.origin for each in used].count("run") == 2 == len(list((tmp_path / "other").rglob("*.json")))
    labels = list(trials.LABELS)
    pd.testing.assert_frame_equal(table.drop(columns=labels), recorded.table.drop(columns=labels))


def test_digits_are_what_two_runs_must_agree_on():
    assert digits(body()) == digits(body(seconds=9.0, run="other"))
    assert digits(body()) != digits(body(value=1.5000000000000002))
    assert store.rows(body()) == [{"value": 1.5}]


def test_two_users_draw_from_one_read_only_layer_at_once(recorded, tmp_path):
    """A class's shared folder: each has a store of his own, nobody writes to the layer."""
    before = recorded.file.path.read_bytes()
    recorded.file.path.chmod(0o444)
    recorded.file.path.parent.chmod(0o555)
    try:
        with ThreadPoolExecutor(2) as users:
            tables = list(users.map(lambda user: recorded(store=tmp_path / user, recorded_only=True)[0], ("a", "b")))
    finally:
        recorded.file.path.parent.chmod(0o755)
    pd.testing.assert_frame_equal(*tables)
    assert recorded.file.path.read_bytes() == before and len(list(recorded.file.path.parent.iterdir())) == 1


# The arithmetic, of which a key holds the hash


def test_the_digest_of_an_arithmetic_is_of_its_digits_alone(monkeypatch):
    digest = arithmetic.digest.__wrapped__
    own = digest()
    assert digest() == own and len(own) == 12
    torch.manual_seed(1)
    assert digest() == own, "it draws from a generator of its own"
    softmax = torch.Tensor.softmax

    def otherwise(x, *dim):
        return softmax(x, *dim) * (1 + 2**-23)

    monkeypatch.setattr(torch.Tensor, "softmax", otherwise)
    assert digest() != own, "one operation that rounds otherwise"


def test_a_store_keeps_the_trials_of_each_arithmetic_apart(tmp_path, monkeypatch):
    """So a folder that two machines share gives each its own digits."""

    def origins(name):
        monkeypatch.setattr(arithmetic, "digest", lambda device="cpu", threads=1: name)
        sources = trials.Sources(store=tmp_path)
        trials.sweep(noisy, {"seed": [0, 1], "width": 4, "steps": 3}, sources=sources, used=(used := []))
        assert {each.body["arithmetic"] for each in used} == {name}
        return [each.origin for each in used]

    assert [origins(name) for name in ("here", "there", "here")] == [["run"] * 2, ["run"] * 2, ["store"] * 2]
