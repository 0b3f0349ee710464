"""Timings run in fresh processes; sittings are kept, used again, and added as time goes by."""

import json
import os
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from lab.trials import sittings
from lab.trials.sweep import Sources, TrialsFailed

BEGAN = datetime(2026, 11, 26, 15, 0, tzinfo=UTC)


def ran(n=1):
    if os.environ.get("LAB_TEST_KILL"):
        os.kill(os.getpid(), 9)
    return [{"arm": arm, "pid": os.getpid()} for arm in ("once", "again")]


def other(n=1):
    return {"pid": 0}


@pytest.fixture
def sources(tmp_path):
    return Sources("n", store=tmp_path)


@pytest.mark.slow
def test_every_process_is_fresh_and_one_that_is_killed_costs_itself(sources, monkeypatch):
    first = sittings.sweep(ran, {"n": [1, 2]}, 1, sources=sources)
    assert first.groupby("repeat").pid.nunique().tolist() == [1], "all points of a process"
    monkeypatch.setenv("LAB_TEST_KILL", "1")
    with pytest.raises(TrialsFailed, match="exit code -9"):
        sittings.sweep(ran, {"n": [1, 2]}, 2, sources=sources)
    monkeypatch.delenv("LAB_TEST_KILL")
    both = sittings.sweep(ran, {"n": [1, 2]}, 2, sources=sources)
    assert both.pid.nunique() == 2 and os.getpid() not in set(both.pid)
    assert set(both[both.repeat == 0].pid) == set(first.pid), "what finished before is kept"


@pytest.fixture
def clock(monkeypatch):
    """The time that it is, to be moved, and the processes that ran: they are pretended."""
    here = SimpleNamespace(now=BEGAN, ran=[])

    class Clock(datetime):
        @classmethod
        def now(cls, zone=None):
            return here.now

    def in_a_process(call, packed, points):
        here.ran.append(len(points))
        for point in points:
            rows = {"n": 1, "columns": {"process": len(here.ran)}, "curve": [], "batch": ""}
            yield point, rows | {"seconds": 1.0, "kinds": [], "data": {}, "threads": call.keywords["threads"]}

    monkeypatch.setattr(sittings, "datetime", Clock)
    monkeypatch.setattr(sittings, "in_a_fresh_process", in_a_process)
    return here


def later(clock, **time):
    clock.now += timedelta(**time)


def test_a_sitting_is_used_again_within_the_hour_and_completed(sources, clock):
    table = sittings.sweep(other, {"n": 1}, 2, sources=sources)
    assert table.repeat.tolist() == [0, 1] and set(table.sitting) == {"2026-11-26T15:00Z"}
    later(clock, minutes=59)
    again = sittings.sweep(other, {"n": 1}, 2, sources=sources)
    assert again.equals(table) and clock.ran == [1, 1], "nothing runs"
    wider = sittings.sweep(other, {"n": [1, 2]}, 3, sources=sources)
    assert clock.ran == [1, 1, 1, 1, 2] and len(wider) == 6, "what is missing runs, a process at a time"
    assert set(wider.sitting) == {"2026-11-26T15:00Z"}


def test_an_hour_later_a_sitting_is_added_and_the_newest_two_count(sources, clock):
    for _ in range(3):
        used = []
        table = sittings.sweep(other, {"n": 1}, 2, sources=sources, used=used)
        later(clock, minutes=60)
    assert table.repeat.tolist() == [0, 1, 2, 3] and table.process.tolist() == [3, 4, 5, 6]
    assert table.sitting.unique().tolist() == ["2026-11-26T16:00Z", "2026-11-26T17:00Z"]
    assert [body["parameters"]["sitting"] for body in used] == table.sitting.tolist()
    later(clock, days=1)
    sources.recorded_only = True
    assert sittings.sweep(other, {"n": 1}, 2, sources=sources).equals(table), "nothing new is asked for"


def test_timings_of_other_code_or_threads_are_left_alone(sources, clock):
    sittings.sweep(other, {"n": 1}, 1, sources=sources)
    assert len(sittings.sweep(other, {"n": 1}, 1, sources=sources, threads=2)) == 1
    path = sources.store / "timings" / "n.jsonl"
    text = path.read_text()
    (code,) = {line["code"] for line in map(json.loads, text.splitlines()) if "parts" in line}
    path.write_text(text.replace(code, "another"))
    assert len(sittings.sweep(other, {"n": 1}, 1, sources=sources)) == 1
    assert clock.ran == [1, 1, 1]


def test_a_rehearsal_has_the_columns_of_a_timing():
    table = sittings.rehearsed(ran, {"n": [1, 2]}, 2)
    assert set(table.pid) == {os.getpid()} and table.repeat.tolist() == [0] * 4 + [1] * 4
    assert table.sitting.str.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\dZ").all()
