"""Kills: the next sweep completes with bitwise identical results. Also tests lab.workers."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

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
    import os
    import random

    pass_gate("GATE")
    if os.path.exists("GATE.fatal") and seed == 3:
        os.kill(os.getpid(), 9)
    return [{{"step": step, "value": random.Random(seed).random() / (step + 1)}} for step in range(3)]

store, out, jobs, cluster = sys.argv[1:]
place = trials.Place("n", Path(store), jobs=int(jobs), cluster=cluster)
table = trials.sweep(drawn, {{"seed": range({TOTAL})}}, place)
table.drop(columns="seconds").to_csv(out, index=False)
"""
slow = pytest.mark.slow


class Sweeps:
    """Runs the same sweep in separate scripts, without a __main__ guard; they share a store and a gate."""

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
        """All descendants of a sweep, including orphans: they inherit the mark."""
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


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    sweeps = Sweeps(tmp_path_factory.mktemp("sweeps"))
    _, err = (process := sweeps.start()).communicate(timeout=120)
    assert process.returncode == 0, err
    return sweeps.out.read_bytes()


def finished(sweeps, process):
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    wait_for(lambda: not sweeps.alive())
    return sweeps.out.read_bytes()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGINT])
def test_killed_sweep_resumes_and_its_workers_exit(sweeps, expected, signum):
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
    assert finished(sweeps, sweeps.start(jobs=2)) == expected
    assert sweeps.lines()[:4] == kept and len(sweeps.lines()) >= TOTAL


def test_sweep_survives_a_killed_worker(sweeps, expected):
    allow(sweeps.gate, 4)
    process = sweeps.start(jobs=2)
    wait_for(lambda: len(sweeps.lines()) == 4)
    busy = [p for p in sweeps.alive() if p.pid != process.pid and "spawn_main" in " ".join(p.cmdline())]
    busy[0].kill()
    allow(sweeps.gate, None)
    assert finished(sweeps, process) == expected


def test_trial_that_kills_its_worker_is_the_only_failure(sweeps):
    sweeps.gate.with_name("gate.fatal").touch()
    _, err = (process := sweeps.start(jobs=2)).communicate(timeout=120)
    assert process.returncode == 1 and f"1 of {TOTAL} trials of drawn failed" in err
    assert '{"seed": 3}: RuntimeError: its worker process died' in err
    assert len(sweeps.lines()) == TOTAL - 1


def test_sweep_runs_after_ctrl_c(tmp_path):
    """In one process, as in a notebook: workers of the stopped sweep do not block the next one."""
    gate = tmp_path / "gate"
    allow(gate, 3)
    text = SWEEP.replace("GATE", str(gate)).split("store, out")[0]
    text += f"""
place = trials.Place("n", Path({str(tmp_path)!r}) / "store", jobs=2)
try:
    trials.sweep(drawn, {{"seed": range(8)}}, place)
except KeyboardInterrupt:
    print("stopped", flush=True)
def quick(seed):
    return {{"value": seed}}
print(trials.sweep(quick, {{"seed": range(4)}}, place).value.tolist(), flush=True)
"""
    (tmp_path / "script.py").write_text(text)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "script.py"],
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    store = tmp_path / "store" / "n"
    wait_for(lambda: sum(path.read_text().count('"at"') for path in store.glob("drawn-*")) == 3)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)  # the gate stays closed
    assert out.splitlines() == ["stopped", "[0, 1, 2, 3]"]


def test_two_sweeps_share_a_store(sweeps, expected):
    first, second = sweeps.start(), sweeps.start()
    assert finished(sweeps, first) == expected
    assert finished(sweeps, second) == expected


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


def test_sweep_resumes_after_losing_the_cluster(sweeps, expected):
    allow(sweeps.gate, 6)
    with Cluster() as cluster:
        process = sweeps.start(cluster=cluster.address)
        wait_for(lambda: len(sweeps.lines()) == 6)
        cluster.scheduler.kill()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "lost the connection to the cluster" in err, err
    allow(sweeps.gate, None)
    with Cluster() as cluster:
        assert finished(sweeps, sweeps.start(cluster=cluster.address)) == expected
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


def test_no_scheduler(sweeps):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    began = time.monotonic()
    _, err = sweeps.start(cluster=address).communicate(timeout=60)
    assert f"no Dask scheduler responds at {address}" in err and time.monotonic() - began < 60
