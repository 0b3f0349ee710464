"""Workers: as many as this process may use, and a way out where none can start. Kills are in test_kills."""

import os

import pytest

from lab import workers


def double(point):
    if point == 3:
        raise ZeroDivisionError("no such luck")
    return 2 * point


def test_as_many_workers_as_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    assert workers.cores() == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert workers.cores() == 1


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_stands_in_place_of_a_result(jobs):
    found = dict(workers.outcomes(double, [1, 2, 3, 4], jobs=jobs))
    assert isinstance(found.pop(3), ZeroDivisionError) and found == {1: 2, 2: 4, 4: 8}


def test_where_no_process_can_start_the_message_names_the_way_out(monkeypatch):
    def refused(*arguments, **options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(workers, "ProcessPoolExecutor", refused)
    monkeypatch.setattr(workers, "_pools", {})
    with pytest.raises(OSError, match="no worker process can start here .*Read-only file system.*: use --jobs 1"):
        list(workers.outcomes(double, [1, 2], jobs=2))


def test_a_pool_stays_for_the_next_sweep():
    list(workers.outcomes(double, [1, 2], jobs=2))
    first = workers.pool(2)
    assert workers.is_started(2) and workers.pool(2) is first
    workers.stop(first)
    assert not workers.is_started(2)
