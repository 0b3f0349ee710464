"""Whatever is killed, and whenever: the next run finishes, and its table is that of an undisturbed one, bit for bit."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import nbformat
import pandas as pd
import psutil
import pytest
from dask.distributed import Client

from lab.engine import trials, workers

pytestmark = pytest.mark.slow
PROJECT = Path(trials.__file__).parents[2]
SWEEP = """
import sys, time
from lab.engine import trials, workers

workers.CONNECT_SECONDS = 3

def slow(seed):
    import contextlib, os, random, time

    while os.path.isdir("TICKETS"):
        with contextlib.suppress(IndexError, FileNotFoundError):
            os.remove(os.path.join("TICKETS", os.listdir("TICKETS")[0]))
            break
        time.sleep(0.02)
    time.sleep(0.05)
    return [{"step": step, "value": random.Random(seed).random() / (step + 1)} for step in range(3)]

if __name__ == "__main__":
    store, out, jobs, cluster = sys.argv[1:]
    table = trials.sweep(slow, {"seed": range(240)}, jobs=int(jobs), cluster=cluster or None,
                         sources=trials.Sources(store=store))
    table.drop(columns="seconds").to_csv(out, index=False)
"""


class Sweeps:
    """Sweeps of one grid in processes of their own, which share a store."""

    def __init__(self, folder):
        self.store, self.script, self.out = folder / "store", folder / "sweep.py", folder / "table.csv"
        self.mark, self.tickets = str(folder), folder / "tickets"
        self.script.write_text(SWEEP.replace("TICKETS", str(self.tickets)))

    def start(self, jobs=1, cluster="", **options):
        command = [sys.executable, self.script, self.store, self.out, str(jobs), cluster]
        environment = os.environ | {"PYTHONPATH": str(PROJECT), "LAB_TEST_MARK": self.mark}
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, **options)

    def allow(self, number):
        """No more trials than so many run from here on, whichever they are; the others wait. None: all run."""
        if self.tickets.exists():
            self.tickets.rename(self.tickets.with_name(f"used {time.monotonic_ns()}"))
        if number is not None:
            (made := self.tickets.with_name("made")).mkdir()
            for each in range(number):
                (made / str(each)).touch()
            made.rename(self.tickets)

    def stored(self):
        return len(list(self.store.rglob("*.json")))

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


def wait_for(condition, seconds=180):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return found


def finished(sweeps, process):
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    wait_for(lambda: not sweeps.alive(), 20)
    return sweeps.out.read_bytes()


def test_runner_killed_fourteen_times(sweeps, undisturbed):
    """Half of the blows fall anywhere from the first import on, half among the trials."""
    chance, kept = random.Random(0), {}
    for blow in range(14):
        process, before = sweeps.start(jobs=1 + blow // 2 % 2), sweeps.stored()
        if blow % 2:
            wait_for(lambda before=before: sweeps.stored() > before)
            time.sleep(chance.uniform(0, 0.3))
        else:
            time.sleep(chance.uniform(0.1, 3))
        process.kill()
        process.communicate()
        wait_for(lambda: not sweeps.alive(), 20)
        now = {path: path.read_bytes() for path in sweeps.store.rglob("*.json")}
        assert {path: now[path] for path in kept} == kept, "what is finished stays as it is"
        kept = now
    assert 7 <= len(kept) < 240 and not sweeps.out.exists()
    assert finished(sweeps, sweeps.start(jobs=2)) == undisturbed
    now = {path: path.read_bytes() for path in sweeps.store.rglob("*.json")}
    assert {path: now[path] for path in kept} == kept and len(now) == 240


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_its_runner(sweeps, blow):
    process = sweeps.start(jobs=2, start_new_session=True)
    wait_for(lambda: sweeps.stored() > 3)
    assert len(sweeps.alive()) >= 3
    if blow == signal.SIGINT:  # as a terminal does: to the whole group
        os.killpg(process.pid, blow)
        assert "KeyboardInterrupt" in process.communicate(timeout=20)[1]
    else:
        process.kill()
        process.wait()
    wait_for(lambda: not sweeps.alive(), 15)
    assert not list(sweeps.store.rglob("*.tmp")) and sweeps.stored() < 240


def test_workers_killed_six_times_in_one_run(sweeps, undisturbed):
    chance = random.Random(1)
    process = sweeps.start(jobs=2)
    for _ in range(6):
        before = sweeps.stored()
        wait_for(lambda before=before: sweeps.stored() > before)
        time.sleep(chance.uniform(0, 0.2))
        at_work = [p for p in sweeps.alive() if p.pid != process.pid and "spawn_main" in " ".join(p.cmdline())]
        chance.choice(at_work).kill()
    assert process.poll() is None, "all blows fell during the run"
    assert finished(sweeps, process) == undisturbed


CELLS = """
import lab
study = lab.study(globals())
---
def slow(seed, notes):
    import time

    with open(notes, "a") as file:
        file.write(f"{seed}\\n")
    time.sleep(0.25)
    return {"square": seed**2}
---
study.table("found", study.sweep(slow, {"seed": range(60), "notes": "NOTES"})[["seed", "square"]])
---
study.finish()
"""


def test_a_killed_run_of_everything_resumes_and_a_budget_ends_it_in_time(sweeps, tmp_path):
    """No trial is begun twice but the one that was in flight, and what was stored stays as it was."""
    notes, stored = tmp_path / "notes", lambda: {p: p.read_bytes() for p in tmp_path.glob("out/.trials/**/*.json")}
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS.replace("NOTES", str(notes)).split("---")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "mine.ipynb")

    def start(*options):
        command = [sys.executable, "-m", "lab.cli", "run", "mine.ipynb", "--fresh", "--jobs", "1", "--results", "out"]
        environment = os.environ | {"PYTHONPATH": str(PROJECT), "LAB_TEST_MARK": sweeps.mark}
        return subprocess.Popen([*command, *options], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)

    process = start("--budget", "1h")
    wait_for(lambda: len(stored()) >= 3)
    process.kill()
    process.communicate()
    wait_for(lambda: not sweeps.alive(), 20)
    kept, began = stored(), time.monotonic()
    assert 3 <= len(kept) < 60
    process = start("--budget", "10s")
    _, err = process.communicate(timeout=180)
    assert process.returncode == 0 and "1 notebooks are left; the same command goes on from here" in err, err
    assert time.monotonic() - began < 10 + 60 and "Traceback" not in err, "its kernel had to start and to end"
    assert len(kept) <= len(stored()) < 60 and not (tmp_path / "out" / "runs").exists()
    process = start()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    table = pd.read_csv(tmp_path / "out" / "runs" / "mine" / "tables" / "found.csv")
    assert table.square.tolist() == [seed**2 for seed in range(60)]
    now = {path.name: text for path, text in stored().items()}
    assert {path.name: now[path.name] for path in kept} == {path.name: text for path, text in kept.items()}
    begun = Counter(notes.read_text().split())
    assert len(begun) == len(now) == 60 and sum(begun.values()) <= 61


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
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (PROJECT, PROJECT / "tests" / "engine")))}
        return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    def stop(self):
        for process in [*self.workers, self.scheduler]:
            process.kill()
            process.wait()


def test_scheduler_killed_twice_then_workers_of_a_cluster(sweeps, undisturbed):
    """Work is left at every blow, however quick the machine: no more than sixty trials may run until it has fallen."""
    chance = random.Random(2)
    for blow in range(2):
        sweeps.allow(60)
        cluster = Cluster("--nthreads", "1")
        try:
            process, before = sweeps.start(cluster=cluster.address), sweeps.stored()
            wait_for(lambda before=before: sweeps.stored() > before)
            time.sleep(chance.uniform(0, 0.2))
            cluster.scheduler.kill()
            _, err = process.communicate(timeout=180)
        finally:
            cluster.stop()
        assert process.returncode == 1 and "ConnectionError: the cluster went away" in err, err
        assert before < sweeps.stored() <= 60 * (1 + blow)
    sweeps.allow(60)
    cluster = Cluster("--nthreads", "1")
    try:
        process, before = sweeps.start(cluster=cluster.address), sweeps.stored()
        wait_for(lambda: sweeps.stored() > before)
        for worker in cluster.workers[:2]:
            worker.kill()
        assert process.poll() is None and sweeps.stored() <= 180
        sweeps.allow(None)
        assert finished(sweeps, process) == undisturbed
    finally:
        cluster.stop()


def where_and_when(seed):
    import os
    import time

    began = time.time()
    time.sleep(0.05)
    return {"pid": os.getpid(), "began": began, "ended": time.time()}


def test_a_worker_with_a_gpu_takes_one_trial_at_a_time(tmp_path):
    cluster, seen = Cluster("--nthreads", "4", "--resources", "GPU=1"), []
    try:
        sources = trials.Sources(store=tmp_path)
        table = trials.sweep(where_and_when, {"seed": range(24)}, sources=sources, cluster=cluster.address,
                             progress=lambda done, total, at_work, left: seen.append(at_work))  # fmt: skip
        with workers.connected(cluster.address) as client:
            assert sum(workers.slots(client)[0].values()) == 3
            with pytest.raises(RuntimeError, match="same commit"):
                workers.agreed(client, lambda: __import__("nonsuch"))
    finally:
        cluster.stop()
    assert set(seen) == {3} and table.pid.nunique() == 3
    for _, one in table.sort_values("began").groupby("pid"):
        assert (one.began.iloc[1:].values >= one.ended.iloc[:-1].values).all()


def test_asking_workers_of_a_scheduler_that_died():
    cluster = Cluster()
    try:
        with workers.connected(cluster.address) as client:
            cluster.stop()
            with pytest.raises(ConnectionError, match="no worker answers"):
                workers.agreed(client, os.getpid)
    finally:
        cluster.stop()
