"""Whatever is killed, and whenever: the next run finishes, and its table is that of an undisturbed one, bit for bit."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

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
    import random, time

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
        self.script.write_text(SWEEP)
        self.mark = str(folder)

    def start(self, jobs=1, cluster="", **options):
        command = [sys.executable, self.script, self.store, self.out, str(jobs), cluster]
        environment = os.environ | {"PYTHONPATH": str(PROJECT), "LAB_TEST_MARK": self.mark}
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, **options)

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


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return found


def finished(sweeps, process):
    _, err = process.communicate(timeout=120)
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
    chance = random.Random(2)
    for _ in range(2):
        cluster = Cluster("--nthreads", "1")
        try:
            process, before = sweeps.start(cluster=cluster.address), sweeps.stored()
            wait_for(lambda before=before: sweeps.stored() > before)
            time.sleep(chance.uniform(0, 0.2))
            cluster.scheduler.kill()
            _, err = process.communicate(timeout=60)
        finally:
            cluster.stop()
        assert process.returncode == 1 and "ConnectionError: the cluster went away" in err, err
        assert before < sweeps.stored() < 240
    cluster = Cluster("--nthreads", "1")
    try:
        process, before = sweeps.start(cluster=cluster.address), sweeps.stored()
        for worker in cluster.workers[:2]:
            wait_for(lambda before=before: sweeps.stored() > before)
            worker.kill()
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
