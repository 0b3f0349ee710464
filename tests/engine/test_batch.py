"""A run that was killed at any moment is finished by the next one, with the tables of an undisturbed run.

Of `lab.engine.kernel`.
"""

import contextlib
import json
import os
import pty
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

import nbformat
import pandas as pd
import psutil
import pytest
from dask.distributed import Client
from typer.testing import CliRunner

from lab.cli import app, under_test
from lab.engine import batch, parameters, runs, workers
from lab.ledger import summary

pytestmark = pytest.mark.slow
FOLDER = "results/.test-batch"
COMMAND = [sys.executable, "-m", "lab.cli", "run", "1.6", "--profile", "smoke", "--jobs", "1", "--results", FOLDER]


@pytest.fixture(scope="module", autouse=True)
def clean_folder():
    shutil.rmtree(runs.project_root() / FOLDER, ignore_errors=True)
    yield
    shutil.rmtree(runs.project_root() / FOLDER, ignore_errors=True)


@pytest.fixture(scope="module")
def job():
    return batch.plan(["1.6"], "smoke", runs.project_root() / FOLDER, under_test=under_test)[0]


def start():
    return subprocess.Popen(
        COMMAND, cwd=runs.project_root(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
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


def test_truncated_files_are_named(undisturbed, job):
    for name in ("tables/unique.csv", "verdicts.csv", "run.json"):
        sound = (job.folder / name).read_bytes()
        (job.folder / name).write_bytes(sound[:-40])
        assert name in job.to_do()
        (job.folder / name).write_bytes(sound)


def test_a_flipped_bit_anywhere_is_noticed(undisturbed, job):
    """In run.json, in the verdicts and in a table: it is named as the reason to run again, and no reader stumbles."""
    chance = random.Random(0)
    for name in ("run.json", "verdicts.csv", "tables/unique.csv"):
        sound = (job.folder / name).read_bytes()
        for bit in chance.sample(range(8 * len(sound)), 60):
            harmed = bytearray(sound)
            harmed[bit // 8] ^= 1 << bit % 8
            (job.folder / name).write_bytes(harmed)
            run = runs.read_run(job.folder)
            if name != "run.json":
                assert job.to_do() == f"{name} is not as the run left it"
            elif run is not None:  # the flip hit the name of the checksum
                assert all(run[key] == value for key, value in json.loads(sound).items() if key != "sha256")
            else:
                assert job.to_do() == "run.json cannot be read"
            if bit % 6 == 0:
                summary.overview(job.folder.parent)
        (job.folder / name).write_bytes(sound)
    assert job.to_do() is None


def kernel_of(process):
    """The kernel that a runner has started, as soon as it is there."""
    deadline = time.time() + 60
    while time.time() < deadline:
        for child in psutil.Process(process.pid).children(recursive=True):
            if "ipykernel" in " ".join(child.cmdline()):
                return child
        time.sleep(0.1)
    raise TimeoutError("no kernel was started")


def finished_as(undisturbed, job):
    """The next run finishes, and its tables are those of the undisturbed one."""
    process = start()
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert job.to_do() is None and set(tables(job)) == set(undisturbed)
    for name, table in tables(job).items():
        pd.testing.assert_frame_equal(table, undisturbed[name], check_exact=True)


# Runs of one's own parameters and notebooks


def test_a_run_of_ones_own_parameters_says_so_and_leaves_the_others_alone(undisturbed, job):
    before = {path: path.read_bytes() for path in job.folder.rglob("*") if path.is_file()}
    command = [*COMMAND, "-p", "offsets=100", "--name", "near"]
    done = subprocess.run(command, cwd=runs.project_root(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and f"{FOLDER}/runs/06_sinusoidal_rotation-near" in done.stderr, done.stderr
    mine = batch.plan(["1.6"], "smoke", job.results, {"offsets": 100}, name="near", under_test=under_test)[0]
    assert mine.to_do() is None and runs.read_run(mine.folder)["own_parameters"] == {"offsets": 100}
    text = (mine.folder / "notebook.ipynb").read_text("utf-8")
    verdicts = pd.read_csv(mine.folder / "verdicts.csv")
    assert text.count("| holds for | own parameters: offsets 100 |") == (verdicts.verdict == "not judged").sum() > 0
    assert f"Results: `{FOLDER}/runs/06_sinusoidal_rotation-near`" in text and ".running" not in text
    assert {path: path.read_bytes() for path in job.folder.rglob("*") if path.is_file()} == before


CELLS = {
    "mine": [
        ("parameters", "width = 3\nnames: list = ['a']\nnothing = None"),
        ("", "import beside\nfrom pathlib import Path\nprint(beside.twice(width), names, Path.cwd().name)"),
    ],
    "plain": [("", "print('no lab at all')")],
    "studied": [
        ("", "import lab\nstudy = lab.study(globals())"),
        ("", "import pandas as pd\nstudy.table('found', pd.DataFrame({'x': [1]}))"),
        ("", "study.finish()"),
    ],
}


def test_notebooks_of_ones_own_run_in_their_folder(tmp_path):
    (tmp_path / "beside.py").write_text("def twice(x):\n    return 2 * x\n")
    for name, cells in CELLS.items():
        cells = [nbformat.v4.new_code_cell(text, metadata={"tags": [tag] if tag else []}) for tag, text in cells]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / f"{name}.ipynb")
    paths = [f"{name}.ipynb" for name in CELLS]
    done = subprocess.run([*COMMAND[:4], *paths, "--results", "out"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
    found = {name: runs.read_run(tmp_path / "out" / "runs" / name) for name in CELLS}
    for name, run in found.items():
        assert (run["status"], run["exercise"], run["own_parameters"]) == ("done", name, {})
        assert run["notebook"] == str(tmp_path / f"{name}.ipynb") and run["versions"] and "changes" in run
        assert runs.damaged(tmp_path / "out" / "runs" / name, run) == []
    assert found["mine"]["parameters"] == {"width": 3, "names": ["a"], "nothing": None}
    text = (tmp_path / "out" / "runs" / "mine" / "notebook.ipynb").read_text("utf-8")
    assert f"6 ['a'] {tmp_path.name}\\n" in text and "results" not in text, "nothing is put into it"
    assert (tmp_path / "out" / "runs" / "studied" / "tables" / "found.csv").exists()

    given = ["-p", "width=5", "-p", "names=[b]"]
    done = subprocess.run([*COMMAND[:4], paths[0], *given, "--results", "out"], cwd=tmp_path, capture_output=True)
    place = tmp_path / "out" / "runs" / "mine-width-5-names-b"
    assert done.returncode == 0 and runs.read_run(place)["own_parameters"] == {"width": 5, "names": ["b"]}
    assert f"10 ['b'] {tmp_path.name}\\n" in (place / "notebook.ipynb").read_text("utf-8")


# Kills


def test_killed_runners_and_kernels_leave_nothing_and_the_next_run_finishes(undisturbed, job):
    chance = random.Random(0)
    shutil.rmtree(runs.project_root() / FOLDER / ".trials")
    before = {path: path.read_bytes() for path in job.folder.rglob("*") if path.is_file()}
    for blow in range(6):
        process = start()
        kernel = kernel_of(process)
        time.sleep(chance.uniform(0, 4))
        (process if blow % 2 else kernel).kill()
        out, _ = process.communicate(timeout=60)
        if not blow % 2:
            assert process.returncode == 1 and "kernel died" in out and "Traceback" not in out, out
        psutil.wait_procs([kernel], timeout=20)
        assert not kernel.is_running(), "the kernel ends with its runner"
        assert {path: path.read_bytes() for path in before} == before, "earlier results stay"
    finished_as(undisturbed, job)


def test_ctrl_c_in_a_terminal_ends_without_a_traceback(undisturbed, job):
    shutil.rmtree(runs.project_root() / FOLDER / ".trials" / "taught_table", ignore_errors=True)
    process, terminal = in_a_terminal([*COMMAND[:-4], "--jobs", "2", "--results", FOLDER, "--again"])
    kernel = kernel_of(process)
    wait_for(lambda: len(kernel.children(recursive=True)) >= 2)  # its workers
    started = kernel.children(recursive=True)
    os.write(terminal, b"\x03")
    out = "".join(read_all(terminal))
    assert process.wait(30) == 130 and "the same command goes on from here" in out, out
    assert "Traceback" not in out and "Error" not in out and "Warning" not in out, out
    psutil.wait_procs([kernel, *started], timeout=20)
    assert not any(each.is_running() for each in [kernel, *started])
    assert job.to_do() is None, "earlier results stay"


def in_a_terminal(command):
    """A process whose terminal is the other end of the descriptor that comes with it."""
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(runs.project_root())
        os.execv(command[0], command)
    return psutil.Process(pid), terminal


def read_all(terminal):
    """What is written to a terminal until its process ends."""
    with contextlib.suppress(OSError):
        while data := os.read(terminal, 2**16):
            yield data.decode(errors="replace")


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def test_ctrl_c_twice_ends_at_once_and_the_next_run_finishes(undisturbed, job):
    process = subprocess.Popen(
        [*COMMAND, "--again"], cwd=runs.project_root(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    kernel = kernel_of(process)
    for _ in range(2):
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, _ = process.communicate(timeout=20)
    assert process.returncode in (130, -signal.SIGINT), "a shell calls both 130"
    assert str(runs.project_root() / "lab") not in out, "no traceback of ours"
    psutil.wait_procs([kernel], timeout=20)
    assert not kernel.is_running() and job.to_do() is None, "earlier results stay"


# Places that cannot be written: in a mount namespace of its own, which vanishes with the command

NAMESPACE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]


def within(mount):
    """A command for a shell that mounts, then runs the lab anew; None where this system mounts nothing."""
    try:
        subprocess.run([*NAMESPACE, "sh", "-ec", mount], cwd=runs.project_root(), check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no mount for a test: {getattr(error, 'stderr', error)}")
    command = [*NAMESPACE, "sh", "-ec", f'{mount}\nexec "$@"', "lab", *COMMAND, "--again"]
    return subprocess.run(command, cwd=runs.project_root(), capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("part, size", [(".trials", "4k"), (".running", "16k"), (".running", "200k")])
def test_a_full_disk_is_named_and_earlier_results_stay(part, size, undisturbed, job):
    shutil.rmtree(runs.project_root() / FOLDER / ".trials" / "taught_table", ignore_errors=True)
    place = f"{FOLDER}/{part}"
    done = within(f"mkdir -p {place}; mount -t tmpfs -o size={size} none {place}")
    assert done.returncode == 1 and "No space left on device" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "FAILED" in done.stderr
    assert {path: pd.read_csv(job.folder / "tables" / path).shape for path in undisturbed} == {
        path: table.shape for path, table in undisturbed.items()
    }
    assert job.to_do() is None


def test_read_only_results_are_named_and_stay(undisturbed, job):
    done = within(f"mount --bind {FOLDER} {FOLDER}; mount -o remount,ro,bind {FOLDER}")
    assert done.returncode == 1 and FOLDER in done.stderr and "Read-only" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and job.to_do() is None


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
        subprocess.Popen(command, cwd=runs.project_root(), stderr=subprocess.DEVNULL)
        for command in (scheduler, worker, worker, worker)
    ]
    yield address, processes
    for process in processes[::-1]:
        process.terminate()
        process.wait(30)


def test_a_cluster_that_loses_a_worker_and_then_its_scheduler(undisturbed, job, cluster):
    address, processes = cluster
    shutil.rmtree(runs.project_root() / FOLDER / ".trials")
    with Client(address, timeout=60) as client:
        client.wait_for_workers(3, timeout=60)
    command = [*COMMAND, "--again", "--cluster", address]
    process = subprocess.Popen(command, cwd=runs.project_root(), stderr=subprocess.PIPE, text=True)
    kernel_of(process)
    time.sleep(random.Random(1).uniform(0, 4))
    processes[1].kill()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert f"{address}: 3 workers, 3 trials at once" in err
    for name, table in tables(job).items():
        pd.testing.assert_frame_equal(table, undisturbed[name], check_exact=True)

    shutil.rmtree(runs.project_root() / FOLDER / ".trials" / "taught_table")
    process = subprocess.Popen(command, cwd=runs.project_root(), stderr=subprocess.PIPE, text=True)
    kernel_of(process)
    processes[0].kill()  # the scheduler, before the notebook asks for it
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1 and "ConnectionError: no Dask scheduler answers" in err, err
    assert "Traceback" not in err and job.to_do() is None, "earlier results stay"


def test_a_cluster_that_is_not_there_is_refused_before_anything_starts(job, monkeypatch):
    monkeypatch.setattr(workers, "CONNECT_SECONDS", 1)
    result = CliRunner().invoke(app, [*COMMAND[3:], "--cluster", "tcp://127.0.0.1:9"])
    assert result.exit_code == 2 and "tcp://127.0.0.1:9" in result.output and "dask scheduler" in result.output


def test_jobs_are_refused_before_anything_starts(job):
    with pytest.raises(parameters.Refused, match="d_model"):
        batch.plan(["1.6"], "smoke", job.results, {"d_model": -1})
