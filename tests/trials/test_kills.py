"""Whatever is killed, and whenever: the next run finishes, and its table is that of an undisturbed one, bit for bit."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter

import nbformat
import pandas as pd
import psutil
import pytest
from dask.distributed import Client
from gate import SOURCE, allow, wait_for

from lab.files import CHECKOUT
from lab.trials import sweep as trials
from lab.trials import workers

TOTAL = 40
SWEEP = f"""
import sys
from lab.trials import sweep as trials
from lab.trials import workers

workers.CONNECT_SECONDS = 3

{SOURCE}

def drawn(seed):
    import random

    pass_gate("GATE")
    return [{{"step": step, "value": random.Random(seed).random() / (step + 1)}} for step in range(3)]

if __name__ == "__main__":
    store, out, jobs, cluster = sys.argv[1:]
    table = trials.sweep(drawn, {{"seed": range({TOTAL})}}, jobs=int(jobs), cluster=cluster or None,
                         sources=trials.Sources("n", store=store))
    table.drop(columns="seconds").to_csv(out, index=False)
"""
slow = pytest.mark.slow


def lines_of(path):
    """The whole lines of the finished trials in a store file."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if line.startswith('{"trial"') and line.endswith("\n")]


class Sweeps:
    """Sweeps of one grid in processes of their own, which share a store and a gate."""

    def __init__(self, folder):
        self.store, self.script, self.out = folder / "store", folder / "sweep.py", folder / "table.csv"
        self.mark, self.gate = str(folder), folder / "gate"
        self.script.write_text(SWEEP.replace("GATE", str(self.gate)))

    def start(self, jobs=1, cluster="", **options):
        command = [sys.executable, self.script, self.store, self.out, str(jobs), cluster]
        environment = os.environ | {"PYTHONPATH": str(CHECKOUT), "LAB_TEST_MARK": self.mark}
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, **options)

    def stored(self):
        return len(lines_of(self.store / "n.jsonl"))

    def alive(self):
        """All processes that descend from a sweep, orphans included: the mark is handed down to them."""
        found = []
        for process in psutil.process_iter():
            try:
                marked = process.environ().get("LAB_TEST_MARK") == self.mark
                found += [process] if marked and process.status() != psutil.STATUS_ZOMBIE else []
            except psutil.Error:
                pass
        return found


@pytest.fixture
def sweeps(tmp_path):
    return Sweeps(tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    calm = Sweeps(tmp_path_factory.mktemp("calm"))
    _, err = (process := calm.start()).communicate(timeout=120)
    assert process.returncode == 0, err
    return calm.out.read_bytes()


def finished(sweeps, process):
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    wait_for(lambda: not sweeps.alive())
    return sweeps.out.read_bytes()


@slow
def test_runner_killed_four_times(sweeps, undisturbed):
    """Half of the blows fall anywhere from the first import on, half among the trials."""
    chance, kept, file = random.Random(0), [], sweeps.store / "n.jsonl"
    for blow in range(4):
        allow(sweeps.gate, 8)
        process, before = sweeps.start(jobs=1 + blow // 2), sweeps.stored()
        if blow % 2:
            wait_for(lambda before=before: sweeps.stored() > before)
        else:
            time.sleep(chance.uniform(0.1, 3))
        process.kill()
        process.communicate()
        wait_for(lambda: not sweeps.alive())
        now = lines_of(file)
        assert now[: len(kept)] == kept, "what is finished stays as it is"
        kept = now
    assert 2 <= len(kept) <= 32 < TOTAL and not sweeps.out.exists()
    allow(sweeps.gate, None)
    assert finished(sweeps, sweeps.start(jobs=2)) == undisturbed
    now = lines_of(file)
    assert now[: len(kept)] == kept and len(now) == TOTAL


@slow
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_its_runner(sweeps, blow):
    allow(sweeps.gate, 4)
    process = sweeps.start(jobs=2, start_new_session=True)
    wait_for(lambda: sweeps.stored() == 4)
    assert len(sweeps.alive()) >= 3
    if blow == signal.SIGINT:  # as a terminal does: to the whole group
        os.killpg(process.pid, blow)
        assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
    else:
        process.kill()
        process.wait()
    wait_for(lambda: not sweeps.alive())
    assert sweeps.stored() == 4


@pytest.mark.parametrize("blows", [1, pytest.param(3, marks=slow)])
def test_a_killed_worker_costs_no_more_than_its_trials_in_flight(sweeps, undisturbed, blows):
    """At every blow both workers wait with a trial; the others know nothing of it."""
    chance = random.Random(1)
    allow(sweeps.gate, 4)
    process = sweeps.start(jobs=2)
    for blow in range(1, blows + 1):
        wait_for(lambda blow=blow: sweeps.stored() == 4 * blow)
        at_work = [p for p in sweeps.alive() if p.pid != process.pid and "spawn_main" in " ".join(p.cmdline())]
        victim = chance.choice(at_work)
        victim.kill()
        victim.wait()  # or it might take a ticket with it
        allow(sweeps.gate, 4 if blow < blows else None)
    assert finished(sweeps, process) == undisturbed


CELLS = f"""
import lab
study = lab.study("mine", globals())
---
{SOURCE}
---
def noted(seed):
    with open("NOTES", "a") as file:
        file.write(f"{{seed}}\\n")
    pass_gate("GATE")
    return {{"square": seed**2}}
---
study.table("found", study.sweep(noted, {{"seed": range(12)}})[["seed", "square"]])
---
study.finish()
"""


@slow
def test_a_killed_run_of_everything_resumes(sweeps, tmp_path):
    """No trial is begun twice but the one that was in flight, and what was stored stays as it was."""
    notes, store = tmp_path / "notes", tmp_path / "out" / ".trials"
    text = CELLS.replace("NOTES", str(notes)).replace("GATE", str(sweeps.gate))
    cells = [nbformat.v4.new_code_cell(part.strip("\n")) for part in text.split("---")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "mine.ipynb")

    def stored():
        return lines_of(store / "mine.jsonl")

    def start():
        command = [
            sys.executable,
            "-m",
            "lab.run",
            "run",
            "mine.ipynb",
            "--fresh",
            "--jobs",
            "1",
            "--results",
            "out",
        ]
        environment = os.environ | {"PYTHONPATH": str(CHECKOUT), "LAB_TEST_MARK": sweeps.mark}
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)

    allow(sweeps.gate, 3)
    process = start()
    wait_for(lambda: len(stored()) == 3)
    process.kill()
    process.communicate()
    wait_for(lambda: not sweeps.alive())
    kept = stored()
    allow(sweeps.gate, None)
    process = start()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    table = pd.read_csv(tmp_path / "out" / "runs" / "own" / "mine" / "tables" / "found.csv")
    assert table.square.tolist() == [seed**2 for seed in range(12)]
    now = stored()
    assert now[: len(kept)] == kept
    begun = Counter(notes.read_text().split())
    assert len(begun) == len(now) == 12 and sum(begun.values()) == 13, "the one in flight when the runner was killed"


class Cluster:
    """A Dask scheduler and three workers on this machine, as its user starts them."""

    def __init__(self, *options):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{self.port}"
        self.scheduler = self.dask("scheduler", "--host", "127.0.0.1", "--port", str(self.port))
        self.workers = [self.dask("worker", self.address, "--no-nanny", *options) for _ in range(3)]
        with Client(self.address, timeout=60) as client:
            client.wait_for_workers(3, timeout=60)

    def dask(self, *arguments):
        command = [sys.executable, "-m", "dask", *arguments, "--no-dashboard"]
        places = (CHECKOUT, CHECKOUT / "tests", CHECKOUT / "tests" / "trials")
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))}
        return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    def stop(self):
        for process in [*self.workers, self.scheduler]:
            process.kill()
            process.wait()


@slow
def test_scheduler_killed_twice_then_workers_of_a_cluster(sweeps, undisturbed):
    """At every blow all workers wait with a trial."""
    for blow in range(1, 3):
        allow(sweeps.gate, 6)
        cluster = Cluster("--nthreads", "1")
        try:
            process = sweeps.start(cluster=cluster.address)
            wait_for(lambda blow=blow: sweeps.stored() == 6 * blow)
            cluster.scheduler.kill()
            _, err = process.communicate(timeout=180)
        finally:
            cluster.stop()
        assert process.returncode == 1 and "ConnectionError: the cluster went away" in err, err
        assert sweeps.stored() == 6 * blow
    allow(sweeps.gate, 6)
    cluster = Cluster("--nthreads", "1")
    try:
        process = sweeps.start(cluster=cluster.address)
        wait_for(lambda: sweeps.stored() == 18)
        for worker in cluster.workers[:2]:
            worker.kill()
        allow(sweeps.gate, None)
        assert finished(sweeps, process) == undisturbed
    finally:
        cluster.stop()


def met(seed, folder):
    """Waits until three processes have been here; how many trials of its own process were under way with it."""
    import os
    import sys
    import time

    sys.under_way = getattr(sys, "under_way", 0) + 1
    open(os.path.join(folder, str(os.getpid())), "w").close()
    while len(os.listdir(folder)) < 3:
        time.sleep(0.01)
    most, sys.under_way = sys.under_way, sys.under_way - 1
    return {"pid": os.getpid(), "at_once": most}


@slow
def test_a_worker_with_a_gpu_takes_one_trial_at_a_time(tmp_path):
    cluster = Cluster("--nthreads", "4", "--resources", "GPU=1")
    (tmp_path / "met").mkdir()
    try:
        sources = trials.Sources("n", store=tmp_path / "store")
        grid = {"seed": range(24), "folder": str(tmp_path / "met")}
        table = trials.sweep(met, grid, sources=sources, cluster=cluster.address)
        with workers.connected(cluster.address) as client:
            assert sum(workers.slots(client)[0].values()) == 3
            with pytest.raises(RuntimeError, match="same commit"):
                workers.agreed(client, lambda: __import__("nonsuch"))
    finally:
        cluster.stop()
    assert table.pid.nunique() == 3 and set(table.at_once) == {1}


@slow
def test_asking_workers_of_a_scheduler_that_died():
    cluster = Cluster()
    try:
        with workers.connected(cluster.address) as client:
            cluster.stop()
            with pytest.raises(ConnectionError, match="no worker answers"):
                workers.agreed(client, os.getpid)
    finally:
        cluster.stop()
