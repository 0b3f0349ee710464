"""What enters the record: rows of clean runs of this machine; none is replaced in silence or carried over a digit."""

import json
from types import SimpleNamespace

import pytest

from lab.engine import provenance, recording, runs, store
from lab.engine.record import File, Record, State
from lab.engine.recording import CannotRecord, record_run, sample_of

HEAD = "c0ffee"


def body(seed=0, value=1.5, code="new", **fields):
    made = {"trial": "t", "parameters": {"seed": seed, "rate": seed % 2}, "n": 1, "columns": {"value": value}}
    made |= {
        "curve": [],
        "batch": "",
        "seconds": 1.0 + seed,
        "code": code,
        "kinds": {},
        "data": {},
        "parts": {"m.t": code},
    }
    return made | {"arithmetic": "a1", "device": "cpu", "threads": 1, "torch": "2"} | fields


@pytest.fixture
def project(tmp_path, monkeypatch):
    """finish(*bodies): a finished run of these trials at a clean commit; record(): its rows enter the record."""
    place = SimpleNamespace(commit=HEAD, changes=False, path=tmp_path / "record" / "n.jsonl", gone=())
    monkeypatch.setattr(provenance, "is_here", lambda commit: commit not in place.gone)
    monkeypatch.setattr(provenance, "commit", lambda: {"commit": place.commit, "changes": place.changes})

    def finish(*bodies, **run):
        keys = []
        for number, each in enumerate(bodies):
            (tmp_path / "trials" / "t").mkdir(parents=True, exist_ok=True)
            keys.append(f"{number:016d}")
            store.write(tmp_path / "trials" / "t", keys[-1], each)
        state = {"t": {"code": bodies[0]["code"], "keys": keys}}
        about = {"machine": "m", "versions": {"python": "3.11"}, "commit": place.commit, "changes": place.changes}
        (tmp_path / "run").mkdir(exist_ok=True)
        runs.write_run(tmp_path / "run", about | {"record": {"trials": state}} | run)

    place.finish = finish
    place.record = lambda **options: record_run(tmp_path / "run", tmp_path / "trials", place.path, **options)
    return place


def test_rows_of_a_clean_run_enter_and_stay(project):
    project.finish(body(0), body(1))
    assert project.record() == {"new": 2, "same": 0, "replaced": 0, "dropped": 0}
    first = project.path.read_text()
    assert project.record()["same"] == 2 and project.path.read_text() == first
    found = Record([project.path.parent]).find("t", {"seed": 1, "rate": 1}, State("new", {}.get, {}.get))
    assert found["labels"]["commit"] == HEAD and found["labels"]["machine"] == "m" and found["parts"] == {"m.t": "new"}


def test_a_row_whose_commit_is_gone_gets_that_of_a_run_with_its_digits(project):
    project.finish(body(0), body(1))
    project.record()
    project.gone, project.commit = (HEAD,), "b" * 40
    project.finish(body(0), body(1, value=2.5))
    with pytest.raises(CannotRecord, match="--because"):
        project.record()
    project.finish(body(0))
    assert project.record() == {"new": 0, "same": 1, "replaced": 0, "dropped": 0}
    file = File(project.path)
    commits = {each["parameters"]["seed"]: file.runs[each["run"]]["commit"] for each in file.trials}
    assert commits == {0: "b" * 40, 1: HEAD}


def test_a_commit_is_here_or_not():
    assert provenance.is_here(provenance.commit()["commit"]) and not provenance.is_here("f" * 40)


@pytest.mark.parametrize("changes", [True, None])
def test_a_run_beside_a_commit_is_refused(project, changes):
    project.finish(body(), changes=changes)
    with pytest.raises(CannotRecord, match="not made by a commit alone"):
        project.record()


def test_no_run_a_lost_trial_and_a_file_from_elsewhere_are_refused(project, tmp_path):
    with pytest.raises(CannotRecord, match="no finished run"):
        project.record()
    project.finish(body(data={"/home/somebody/text.txt": "h"}))
    with pytest.raises(CannotRecord, match="read /home/somebody/text.txt"):
        project.record()
    project.finish(body(data={"corpus /home/somebody": "h"}))
    with pytest.raises(CannotRecord, match="read corpus /home/somebody"):
        project.record()
    project.finish(body(data={"corpus": "h", "lab/tasks/co2_weekly.txt": "h"}))
    assert project.record()["new"] == 1
    next((tmp_path / "trials" / "t").glob("*.json")).unlink()
    with pytest.raises(CannotRecord, match="lacks a trial"):
        project.record()


def test_a_valid_row_is_replaced_for_a_reason_alone(project):
    project.finish(body(0), body(1))
    project.record()
    project.finish(body(0), body(1, value=2.5))
    with pytest.raises(CannotRecord, match="--because"):
        project.record()
    assert project.record(because="a kernel was wrong") == {"new": 0, "same": 1, "replaced": 1, "dropped": 0}
    labels = [File(project.path).runs[each["run"]].get("because") for each in File(project.path).trials]
    assert sorted(labels, key=str) == [None, "a kernel was wrong"]


def test_rows_of_other_code_go_and_those_of_other_parameters_stay(project):
    project.finish(body(0), body(1))
    project.record()
    project.finish(body(2))
    assert project.record() == {"new": 1, "same": 0, "replaced": 0, "dropped": 0}
    project.finish(body(0, code="newer"))
    assert project.record() == {"new": 0, "same": 0, "replaced": 1, "dropped": 2}
    assert [each["code"] for each in File(project.path).trials] == ["newer"]


def test_a_sample_holds_every_value_of_every_parameter():
    bodies = [{"parameters": {"seed": s, "arm": a, "width": w}, "seconds": 10 * w + s}
              for s in range(5) for a in "abc" for w in (1, 2)]  # fmt: skip
    chosen = sample_of(bodies)
    for name in ("seed", "arm", "width"):
        assert {each["parameters"][name] for each in chosen} == {each["parameters"][name] for each in bodies}
    assert len(chosen) < len(bodies) / 3


@pytest.fixture
def stale(project, monkeypatch):
    """A record made at an earlier commit, and what the sample gives now: by default the same digits by other code."""
    project.finish(body(0), body(1), body(2))
    project.record()
    project.commit = "d00d"
    project.now = lambda point: body(point["seed"], code="newer", kinds={"Norm.x": "2"})
    monkeypatch.setattr(provenance, "machine", lambda: {"machine": "m"})
    monkeypatch.setattr(recording, "checkout", lambda commit: __import__("contextlib").nullcontext("there"))

    def run_sample(root, notebook, sample, renamed=None):
        assert notebook == "n"
        make = (lambda point: body(point["seed"])) if root == "there" else project.now
        return {trial: [make(point) for point in points] for trial, points in sample.items()}

    monkeypatch.setattr(recording, "run_sample", run_sample)
    return project


def test_rows_are_carried_where_no_digit_moves(stale):
    assert recording.carry("n", stale.path) == {"t": 3}
    (certificate,) = File(stale.path).certificates
    assert certificate["old"]["code"] == "new" and certificate["new"] == {"code": "newer", "kinds": {"Norm.x": "2"}}
    record = Record([stale.path.parent])
    assert record.find("t", {"seed": 2, "rate": 0}, State("newer", {"Norm.x": "2"}.get, {}.get))
    assert record.find("t", {"seed": 2, "rate": 0}, State("newest", {"Norm.x": "2"}.get, {}.get)) is None
    assert recording.carry("n", stale.path) == {"t": 3} and len(File(stale.path).certificates) == 1


def test_carry_refuses_where_one_digit_moves(stale):
    before, right = stale.path.read_text(), stale.now
    stale.now = lambda point: right(point) | ({"columns": {"value": 1.5000000000000002}} if point["seed"] == 1 else {})
    with pytest.raises(CannotRecord, match='"seed": 1.* has other digits now'):
        recording.carry("n", stale.path)
    assert stale.path.read_text() == before
    stale.changes = True
    with pytest.raises(CannotRecord, match="commit first"):
        recording.carry("n", stale.path)


def test_carry_follows_renamed_and_new_parameters(stale):
    def now(point):
        made = body(point["seed"], code="newer")
        return made | {"parameters": {"seed": point["seed"], "speed": point["speed"], "bias": False}}

    stale.now = now
    recording.carry("n", stale.path, renamed={"rate": "speed"})
    (certificate,) = File(stale.path).certificates
    assert certificate["renamed"] == {"rate": "speed"} and certificate["defaults"] == {"bias": False}
    found = Record([stale.path.parent]).find(
        "t", {"seed": 1, "speed": 1, "bias": False}, State("newer", {}.get, {}.get)
    )
    assert found["columns"] == {"value": 1.5} and json.dumps(found["parameters"])
