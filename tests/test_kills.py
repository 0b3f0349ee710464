"""Killed sweeps: the next sweep completes with bitwise identical results.

The fast suite has kills of `lab run` (test_run) and of workers (test_workers), and partial lines (test_trials).
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pandas as pd
import psutil
import pytest
from dask.distributed import Client
from gate import SOURCE, allow, wait_for

TOTAL = 24
PROJECT = Path(__file__).parents[1]
SWEEP = f"""
import sys
from pathlib import Path

from lab import trials, workers

workers.CONNECT_SECONDS = 3
trials.MIN_PARALLEL_SECONDS = -1  # use workers from the second trial on

{SOURCE}

def drawn(seed):
    import random

    pass_gate("GATE")
    return [{{"step": step, "value": random.Random(seed).random() / (step + 1)}} for step in range(3)]

store, out, jobs, cluster = sys.argv[1:]
place = trials.Place("n", Path(store), jobs=int(jobs), cluster=cluster)
table = trials.sweep(drawn, {{"seed": range({TOTAL})}}, place)
table.drop(columns="seconds").to_csv(out, index=False)
"""
ROWS = [(seed, step, random.Random(seed).random() / (step + 1)) for seed in range(TOTAL) for step in range(3)]
EXPECTED = pd.DataFrame(ROWS, columns=["seed", "step", "value"]).to_csv(index=False).encode()
pytestmark = pytest.mark.slow


class Sweeps:
    """Runs one sweep in separate scripts without a __main__ guard; the scripts share a store and a gate."""

    def __init__(self, folder):
        self.store, self.script, self.out = folder / "store", folder / "sweep.py", folder / "table.csv"
        self.mark, self.gate = str(folder), folder / "gate"
        self.script.write_text(SWEEP.replace("GATE", str(self.gate)))

    def start(self, jobs=1, cluster="", **options):
        command = [sys.executable, self.script, self.store, self.out, str(jobs), cluster]
        environment = os.environ | {"PYTHONPATH": str(PROJECT), "LAB_TEST_MARK": self.mark}
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, **options)

    def lines(self):
        """The complete lines of finished trials in the store."""
        texts = [path.read_text() for path in self.store.glob("n/drawn-*.jsonl")]
        lines = [line for text in texts for line in text.splitlines(keepends=True)]
        return [line for line in lines if line.startswith('{"at"') and line.endswith("\n")]

    def alive(self):
        """All descendants of a sweep, including orphans, found by an environment variable that they inherit."""
        processes = []
        for process in psutil.process_iter():
            try:
                marked = process.environ().get("LAB_TEST_MARK") == self.mark
                processes += [process] if marked and process.status() != psutil.STATUS_ZOMBIE else []
            except psutil.Error:
                pass
        return processes


@pytest.fixture
def sweeps(tmp_path):
    return Sweeps(tmp_path)


def finished(sweeps, process):
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    wait_for(lambda: not sweeps.alive())
    return sweeps.out.read_bytes()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_killed_sweep_resumes_and_its_workers_exit(sweeps, signum):
    allow(sweeps.gate, 4)
    process = sweeps.start(jobs=2, start_new_session=True)
    wait_for(lambda: len(sweeps.lines()) == 4)
    assert len(sweeps.alive()) >= 3
    os.killpg(process.pid, signum) if signum == signal.SIGINT else process.kill()
    _, err = process.communicate(timeout=60)
    wait_for(lambda: not sweeps.alive(), seconds=5)
    kept = sweeps.lines()
    assert len(kept) == 4 and ("KeyboardInterrupt" in err) == (signum == signal.SIGINT)
    with next(sweeps.store.glob("n/drawn-*.jsonl")).open("a") as file:
        file.write(kept[0][:30])  # a partial line
    allow(sweeps.gate, None)
    assert finished(sweeps, sweeps.start(jobs=2)) == EXPECTED
    assert sweeps.lines()[:4] == kept and len(sweeps.lines()) >= TOTAL


def test_two_sweeps_share_a_store(sweeps):
    first, second = sweeps.start(), sweeps.start()
    assert finished(sweeps, first) == EXPECTED
    assert finished(sweeps, second) == EXPECTED


class Cluster:
    """A local Dask scheduler with two workers, started from the command line."""

    def __init__(self, package=PROJECT):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{port}"
        self.package = package
        self.scheduler = self.dask("scheduler", "--host", "127.0.0.1", "--port", str(port))
        options = ("--no-nanny", "--nthreads", "1")
        self.workers = [self.dask("worker", self.address, *options) for _ in range(2)]
        with Client(self.address, timeout=60) as client:
            client.wait_for_workers(2, timeout=60)

    def dask(self, *arguments):
        command = [sys.executable, "-m", "dask", *arguments, "--no-dashboard"]
        environment = os.environ | {"PYTHONPATH": str(self.package)}
        return subprocess.Popen(command, env=environment, cwd=self.package, stderr=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in [*self.workers, self.scheduler]:
            process.kill()
            process.wait()


def test_sweep_resumes_after_losing_the_cluster(sweeps):
    allow(sweeps.gate, 6)
    with Cluster() as cluster:
        process = sweeps.start(cluster=cluster.address)
        wait_for(lambda: len(sweeps.lines()) == 6)
        cluster.scheduler.kill()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "lost the connection to the cluster" in err, err
    allow(sweeps.gate, None)
    with Cluster() as cluster:
        assert finished(sweeps, sweeps.start(cluster=cluster.address)) == EXPECTED
    assert len(sweeps.lines()) == TOTAL


def test_cluster_workers_with_different_code_are_refused(sweeps, tmp_path):
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT / "lab", tmp_path / "other" / "lab", ignore=ignored)
    with (tmp_path / "other" / "lab" / "state.py").open("a") as file:
        file.write("\nOTHER = 1\n")
    with Cluster(tmp_path / "other") as cluster:
        _, err = sweeps.start(cluster=cluster.address).communicate(timeout=60)
    assert "lab.state differs on this worker: install the same commit" in err
    assert not sweeps.lines()
