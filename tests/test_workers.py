"""Worker processes: failures, kills and interrupts, locally and on a cluster. See test_kills for killed sweeps."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from dask.distributed import LocalCluster

from lab import workers


def double(point):
    if point == 3:
        raise ZeroDivisionError("no such luck")
    return 2 * point


def deadly(point):
    """Kills its process at "deadly"."""
    if point == "deadly":
        os.kill(os.getpid(), signal.SIGKILL)
    return len(point)


def stuck_at_1(point):
    return threading.Event().wait() if point else "passed"


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


def test_death_of_a_worker_stops_the_sweep_and_the_next_one_has_new_workers():
    with pytest.raises(ChildProcessError, match="a worker process died .* rerun to resume"):
        list(workers.outcomes(deadly, ["one", "deadly", "three"], jobs=2))
    assert dict(workers.outcomes(double, [1, 2], jobs=2)) == {1: 2, 2: 4}


def test_interrupted_calls_do_not_block_the_next_ones():
    stopped = workers.outcomes(stuck_at_1, [0, 1, 1, 1], jobs=2)
    assert next(stopped) == (0, "passed")
    with pytest.raises(KeyboardInterrupt):
        stopped.throw(KeyboardInterrupt)
    assert dict(workers.outcomes(double, [1, 2], jobs=2)) == {1: 2, 2: 4}


BUSY = """
import test_workers
from lab import workers

for _, outcome in workers.outcomes(test_workers.stuck_at_1, [0, 1, 1], jobs=2):
    print(outcome, flush=True)
"""


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_workers_exit_with_their_process(signum):
    """Ctrl-C reaches all processes, as in a terminal; kill -9 only the parent."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen([sys.executable, "-c", BUSY], env=os.environ | {"PYTHONPATH": path}, **streams) as process:
        assert process.stdout.readline() == "passed\n"
        children = psutil.Process(process.pid).children()
        os.killpg(process.pid, signum) if signum == signal.SIGINT else process.kill()
        _, said = process.communicate()
    assert said.count("KeyboardInterrupt") == (signum == signal.SIGINT), said
    assert len(children) >= 2 and not psutil.wait_procs(children, timeout=30)[1]


def cluster_of(n_workers):
    return LocalCluster(n_workers=n_workers, processes=False, dashboard_address=":0")


def test_cluster_gives_the_same_outcomes():
    with cluster_of(1) as cluster:
        outcomes = dict(workers.outcomes(double, [1, 2, 3], cluster=cluster.scheduler_address))
    assert isinstance(outcomes.pop(3), ZeroDivisionError) and outcomes == {1: 2, 2: 4}


def test_error_says_whether_scheduler_or_workers_are_missing(monkeypatch):
    monkeypatch.setattr(workers, "CONNECT_SECONDS", 0.3)
    with pytest.raises(ConnectionError, match="no Dask scheduler responds at tcp://127.0.0.1:1"):
        list(workers.outcomes(double, [1], cluster="tcp://127.0.0.1:1"))
    with cluster_of(0) as cluster, pytest.raises(ConnectionError, match="has no workers: start `dask worker"):
        list(workers.outcomes(double, [1], cluster=cluster.scheduler_address))


def test_error_without_worker_processes_suggests_jobs_1(monkeypatch):
    def refused(*arguments, **options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(workers, "ProcessPoolExecutor", refused)
    monkeypatch.setattr(workers, "pools", {})
    with pytest.raises(OSError, match="cannot start worker processes .*Read-only file system.*: use --jobs 1"):
        list(workers.outcomes(double, [1, 2], jobs=2))


def test_pool_is_reused():
    list(workers.outcomes(double, [1, 2], jobs=2))
    first = workers.pool(2)
    assert workers.pool(2) is first
    workers.stop(first)
    assert 2 not in workers.pools


def test_stopping_a_pool_keeps_the_others(monkeypatch):
    killed, other = workers.processes(1), object()
    monkeypatch.setattr(workers, "pools", {1: killed, 2: other})
    workers.stop(killed)
    assert workers.pools == {2: other}
