"""A run that was killed at any moment is finished by the next one, with the tables of an undisturbed run."""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

import pandas as pd
import psutil
import pytest
from dask.distributed import Client
from typer.testing import CliRunner

from lab import batch, parameters, results, workers
from lab.cli import app

FOLDER = "results/.test-batch"
COMMAND = [sys.executable, "-m", "lab.cli", "run", "1.6", "--profile", "smoke", "--jobs", "1", "--results", FOLDER]


@pytest.fixture(scope="module", autouse=True)
def clean_folder():
    shutil.rmtree(results.project_root() / FOLDER, ignore_errors=True)
    yield
    shutil.rmtree(results.project_root() / FOLDER, ignore_errors=True)


@pytest.fixture(scope="module")
def job():
    return batch.plan(["1.6"], "smoke", results.project_root() / FOLDER)[0]


def start():
    return subprocess.Popen(
        COMMAND, cwd=results.project_root(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def tables(job):
    return {p.name: pd.read_csv(p) for p in sorted((job.folder / "tables").glob("*.csv"))}


@pytest.fixture(scope="module")
def undisturbed(job):
    process = start()
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert job.to_do() is None
    return tables(job)


def test_second_run_does_nothing(undisturbed, job):
    before = (job.folder / "run.json").read_bytes()
    process = start()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "done already" in out
    assert (job.folder / "run.json").read_bytes() == before


def test_damaged_table_is_named_and_made_again(undisturbed, job):
    table = job.folder / "tables" / "unique.csv"
    table.write_bytes(table.read_bytes()[:-40])
    assert "tables/unique.csv" in job.to_do()
    (job.folder / "run.json").write_text("{")
    assert "run.json" in job.to_do()


def test_killed_runs_are_finished_by_the_next(undisturbed, job):
    random.seed(0)
    shutil.rmtree(results.project_root() / FOLDER / ".trials")
    for _ in range(2):
        process = start()
        time.sleep(random.uniform(2, 9))
        process.send_signal(signal.SIGKILL)
        process.wait()
    process = start()
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    for name, table in tables(job).items():
        pd.testing.assert_frame_equal(table, undisturbed[name], check_exact=True)


def test_killed_kernel_is_reported_and_earlier_results_stay(undisturbed, job):
    process = subprocess.Popen([*COMMAND, "--fresh"], cwd=results.project_root(), stderr=subprocess.PIPE, text=True)
    kernels, deadline = [], time.time() + 60
    while not kernels and time.time() < deadline:
        kernels = [
            c for c in psutil.Process(process.pid).children(recursive=True) if "ipykernel" in " ".join(c.cmdline())
        ]
        time.sleep(0.2)
    time.sleep(3)
    os.kill(kernels[0].pid, signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "kernel died" in err
    assert (job.folder / "run.json").exists()


@pytest.fixture
def cluster():
    """The address of a Dask scheduler on this machine, and its three workers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, dask = f"tcp://127.0.0.1:{port}", [sys.executable, "-m", "dask"]
    scheduler = [*dask, "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    worker = [*dask, "worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny"]
    processes = [
        subprocess.Popen(command, cwd=results.project_root(), stderr=subprocess.DEVNULL)
        for command in (scheduler, worker, worker, worker)
    ]
    yield address, processes[1:]
    for process in processes[::-1]:
        process.terminate()
        process.wait(30)


def test_a_cluster_that_loses_a_worker_gives_the_same_tables(undisturbed, job, cluster):
    address, processes = cluster
    shutil.rmtree(results.project_root() / FOLDER / ".trials")
    with Client(address, timeout=60) as client:
        client.wait_for_workers(3, timeout=60)
    process = subprocess.Popen(
        [*COMMAND, "--cluster", address], cwd=results.project_root(), stderr=subprocess.PIPE, text=True
    )
    time.sleep(8)
    processes[0].kill()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert f"{address}: 3 workers" in err
    for name, table in tables(job).items():
        pd.testing.assert_frame_equal(table, undisturbed[name], check_exact=True)


def test_a_cluster_that_is_not_there_is_refused_before_anything_starts(job, monkeypatch):
    monkeypatch.setattr(workers, "CONNECT_SECONDS", 1)
    result = CliRunner().invoke(app, [*COMMAND[3:], "--cluster", "tcp://127.0.0.1:9"])
    assert result.exit_code == 2 and "tcp://127.0.0.1:9" in result.output and "dask scheduler" in result.output


def test_jobs_are_refused_before_anything_starts(job):
    with pytest.raises(parameters.Refused, match="d_model"):
        batch.plan(["1.6"], "smoke", job.results, {"d_model": -1})
