"""Worker processes; kills are in test_kills."""

import os

import pytest

from lab import workers


def double(point):
    if point == 3:
        raise ZeroDivisionError("no such luck")
    return 2 * point


def test_cores_respects_cpu_affinity(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0}, raising=False)
    assert workers.cores() == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert workers.cores() == 1


@pytest.mark.parametrize("jobs", [1, 2])
def test_exception_is_yielded_as_outcome(jobs):
    outcomes = dict(workers.outcomes(double, [1, 2, 3, 4], jobs=jobs))
    assert isinstance(outcomes.pop(3), ZeroDivisionError) and outcomes == {1: 2, 2: 4, 4: 8}


def test_error_without_worker_processes_suggests_jobs_1(monkeypatch):
    def refused(*arguments, **options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(workers, "ProcessPoolExecutor", refused)
    monkeypatch.setattr(workers, "_pools", {})
    with pytest.raises(OSError, match="cannot start worker processes .*Read-only file system.*: use --jobs 1"):
        list(workers.outcomes(double, [1, 2], jobs=2))


def test_pool_is_reused():
    list(workers.outcomes(double, [1, 2], jobs=2))
    first = workers.pool(2)
    assert workers.is_started(2) and workers.pool(2) is first
    workers.stop(first)
    assert not workers.is_started(2)
