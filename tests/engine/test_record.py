"""The record: read as written, merged by lines, never believed where code, kinds, data or digits are not its own.

Of `lab.engine.checks`.
"""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest
import torch

from lab.engine import arithmetic, checks, store, trials
from lab.engine.record import Contradiction, File, Record, State, digits
from lab.engine.recording import KEPT
from lab.tasks.corpus import corpus_hash

LABELS = {"machine": "a machine", "arithmetic": "a1", "device": "cpu", "threads": 1, "torch": "2", "python": "3.11",
          "commit": "c0ffee", "date": "2026-01-01"}  # fmt: skip


def noisy(seed, width, steps):
    """A training in small: losses of a curve, an accuracy of 50 items, a number that no seed moves."""
    import torch

    from lab import trace

    generator = torch.Generator().manual_seed(seed)
    loss = torch.tensor(2.0)
    for step in range(steps):
        batch = torch.randn(8, generator=generator)
        trace.step(step, loss, (batch,))
        loss = 0.9 * loss + 0.01 * batch.mean() + 0.1 / width
    return {"loss": loss.item(), "accuracy": round((loss.item() * 1000) % 50) / 50, "parameters": width**2}


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


def test_checks_find_a_changed_digit_and_come_to_every_row(recorded, tmp_path):
    cursor, names = tmp_path / "cursor", set()
    _, used = recorded()
    for _ in range(40):
        found = checks.spot_check(used, 0.05, cursor)
        assert found.findings and all(each.agrees and each.part == "all digits" for each in found.findings)
        names |= {each.key for each in found.findings}
    assert names == {each.key for each in used}
    file = File(recorded.file.path)
    file.trials[7]["columns"]["loss"] += 1e-7
    file.write()
    _, used = recorded()
    (alarm,) = checks.alarms(checks.spot_check(used, 20, tmp_path / "new cursor"))
    assert alarm.parameters == file.trials[7]["parameters"] and "loss is" in str(alarm)


def test_a_check_starts_no_training_but_those_that_it_checks(tmp_path, monkeypatch):
    """A width is chosen by the recorded table; by what the check finds it would be another, and none runs for that."""
    sources = trials.Sources(store=tmp_path / "store", record=Record([tmp_path / "record"]), recorded_only=True)

    def chosen(sources):
        tried = trials.sweep(noisy, {"seed": 9, "width": [4, 8, 16], "steps": 40}, sources=sources, used=(used := []))
        best = int(tried.width[tried.loss.idxmin()])
        grid = {"seed": [0, 1], "width": best, "steps": 40}
        return best, trials.sweep(noisy, grid, sources=sources, used=used).loss.tolist(), used

    best, _, used = chosen(trials.Sources(store=tmp_path / "first"))
    trials.sweep(noisy, {"seed": [0, 1], "width": 4, "steps": 40}, sources=trials.Sources(store=tmp_path), used=used)
    file = record_of(used, tmp_path / "record" / "n.jsonl")
    for each in file.trials:
        each["columns"]["loss"] -= each["parameters"] == {"seed": 9, "width": 4, "steps": 40}
    file.write()
    before, run, ran = chosen(sources), checks.run_trial, []
    monkeypatch.setattr(checks, "run_trial", lambda trial, point, **on: ran.append(point) or run(trial, point, **on))
    found = checks.spot_check(before[2], 60, tmp_path / "cursor")
    assert (best, before[0]) == (16, 4) and [f.parameters["width"] for f in checks.alarms(found)] == [4]
    drawn = [each.body["parameters"] for each in before[2]]
    assert ran and all(point in drawn for point in ran) and not list((tmp_path / "store").rglob("*.json"))
    assert chosen(sources)[:2] == before[:2]


def training(seed, learning_rate):
    """A byte model in small."""
    from lab.models import Transformer
    from lab.recipes.byte_model import byte_model, validation_loss
    from lab.training import fit

    config, task, schedule = byte_model(20, batch=8, context=32, n_layers=1, learning_rate=learning_rate)
    model = Transformer(config, seed=seed)
    fit(model, task, schedule, seed=seed)
    return {"loss": validation_loss(model, task)}


@pytest.mark.slow
def test_no_false_alarm_where_products_round_otherwise(tmp_path, monkeypatch):
    """Recorded as torch computes, checked with sums in another order: digits move, and within what is allowed."""

    def halves(x, weight, bias=None):
        middle = x.shape[-1] // 2
        found = x[..., :middle] @ weight[:, :middle].mT + x[..., middle:] @ weight[:, middle:].mT
        return found if bias is None else found + bias

    grid = {"seed": range(4), "learning_rate": [0.003, 0.01]}
    trials.sweep(training, grid, sources=trials.Sources(store=tmp_path / "store"), used=(used := []))
    record_of(used, tmp_path / "record" / "n.jsonl", arithmetic="another")
    known = {"record": Record([tmp_path / "record"]), "data": {"corpus": corpus_hash}}
    sources = trials.Sources(store=tmp_path, recorded_only=True, **known)
    trials.sweep(training, grid, sources=sources, used=(drawn := []))
    monkeypatch.setattr("torch.nn.functional.linear", halves)
    found = checks.spot_check(drawn, 600, tmp_path / "cursor")
    assert len(found.findings) == 8 and {each.part for each in found.findings} == {"all numbers"}
    assert not checks.alarms(found)
    assert any(
        each.here["columns"] != one.body["columns"] for each in found.findings for one in drawn if one.key == each.key
    )


def test_a_long_training_is_checked_by_its_beginning(recorded):
    _, used = recorded()
    each = used[0]
    assert checks.check(each, 0.0, "cpu").part == "the beginning"
    assert checks.beginning(each.body, {"curve": each.body["curve"][:3], "batch": each.body["batch"]}, exact=True) == ""


CURVE = [[step, 2.0 - step / 10] for step in (0, 1, 2, 9, 16, 32)]


@pytest.mark.parametrize("step, by, batch, exact, fault", [
    (0, 0, "b", True, ""),
    (0, 1e-6, "b", True, "loss"),
    (0, 1e-6, "b", False, ""),
    (0, 1e-4, "b", False, "loss"),
    (9, 1e-4, "b", False, ""),
    (9, 1e-2, "b", False, "loss"),
    (16, 0.5, "b", False, ""),
    (16, 1e-6, "b", True, "loss"),
    (9, None, "b", False, "diverges at step 9"),
    (16, None, "b", False, ""),
    (0, 0, "c", True, "trains on other data"),
    (0, 1e-4, "c", False, "trains on other data"),
    (0, 1e-6, "c", False, ""),
])  # fmt: skip
def test_what_a_beginning_may_differ_by(step, by, batch, exact, fault):
    """On another arithmetic drawn numbers round otherwise too: losses then tell whether the data are the same."""
    here = [[at, None if by is None else loss * (1 + by)] if at == step else [at, loss] for at, loss in CURVE]
    found = checks.beginning({"curve": CURVE, "batch": "b"}, {"curve": here, "batch": batch}, exact=exact)
    assert found.startswith(fault) and bool(found) is bool(fault)


def test_another_first_batch_is_found_where_no_losses_tell():
    one = {"curve": CURVE[:1], "batch": "b"}
    assert checks.beginning(one, one | {"batch": "c"}, exact=False) == "trains on other data"


def on_another(file):
    """Say of a record's file that another arithmetic made it."""
    for labels in file.runs.values():
        labels["arithmetic"] = "another"
    file.write()


@pytest.mark.parametrize("amount, arms", [(1e-8, 0), (0.5, 1)])
def test_on_another_arithmetic_an_end_that_differs_has_its_arm_run(recorded, tmp_path, amount, arms):
    file = File(recorded.file.path)
    for each in file.trials:
        each["columns"]["loss"] += amount * (each["parameters"]["width"] == 4 and each["parameters"]["seed"] == 3)
    on_another(file)
    _, used = recorded()
    found = checks.spot_check(used, 20, tmp_path / "cursor")
    assert len(found.findings) == 10 and {each.part for each in found.findings} == {"all numbers"}
    assert not checks.alarms(found) and not found.short and len(found.arms) == arms
    for arm in found.arms:
        assert {each.parameters["width"] for each in arm} == {4} and len(arm) == 5
        assert [each.parameters["seed"] for each in arm if each.end] == [3] and all(each.here for each in arm)


def slow(seed):
    """A training of a fifth of a second."""
    import time

    from lab import trace

    trace.step(0, 2.0)
    time.sleep(0.2)
    return {"loss": 1.0 + seed}


def test_an_arm_that_does_not_fit_proves_nothing(tmp_path):
    trials.sweep(slow, {"seed": [0, 1, 2]}, sources=trials.Sources(store=tmp_path / "first"), used=(used := []))
    file = record_of(used, tmp_path / "record" / "n.jsonl")
    for each in file.trials:
        each["columns"]["loss"] += 0.5
    on_another(file)
    sources = trials.Sources(store=tmp_path, record=Record([tmp_path / "record"]))
    trials.sweep(slow, {"seed": [0, 1, 2]}, sources=sources, used=(drawn := []))
    found = checks.spot_check(drawn, 0.3, tmp_path / "cursor")
    assert not found.arms and len(found.short) == 1 and all(each.end for each in found.findings)
    assert "1 arms did not fit in the time: about 1 s more." in checks.told(checks.origins(drawn), found)
    assert len(checks.spot_check(drawn, 20, tmp_path / "cursor").arms[0]) == 3


@pytest.mark.parametrize("curve, columns, fault", [
    ([], {"value": 1.5 * 1.1}, True),
    ([], {"value": 1.5 * 1.001}, False),
    ([[0, 2.0]], {"value": 1.5 * 1.1}, False),
    ([], {"value": None}, True),
], ids=["untrained", "rounded", "trained", "gone"])  # fmt: skip
def test_numbers_of_what_is_not_trained_follow_from_its_parameters(monkeypatch, curve, columns, fault):
    each = trials.Used(noisy, "k", body(curve=curve, arithmetic="another"), "record")
    monkeypatch.setattr(checks, "run_trial", lambda *a, **b: {"n": 1, "columns": columns, "curve": curve, "batch": "b"})
    found = checks.check(each, 1.0, "cpu")
    assert bool(found.fault) is fault and bool(found.end) is bool(curve)


def test_one_count_in_many_that_moves_by_an_item_is_no_fault(monkeypatch):
    columns = {f"x{i}": float(i) for i in range(20)}
    each = trials.Used(noisy, "k", body(curve=[], columns=columns, arithmetic="another"), "record")
    here = {"n": 1, "columns": columns | {"x7": 8.0}, "curve": [], "batch": "b"}
    monkeypatch.setattr(checks, "run_trial", lambda *a, **b: here)
    found = checks.check(each, 1.0, "cpu")
    assert not found.fault and found.end == "x7 is 8.0, recorded 7.0"


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
