"""A run that was killed at any moment is finished by the next one, with the tables of an undisturbed run.

Of `lab.tools.kernel`.
"""

import contextlib
import os
import pty
import random
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
from gate import allow, wait_for
from lab.trials.runs import CHECKOUT
from made import DICE, THROWS
from papermill.parameterize import parameterize_notebook
from typer.testing import CliRunner

from lab.tools import batch, kernel
from lab.tools.cli import app
from lab.trials import runs, workers

pytestmark = pytest.mark.usefixtures("project")
RUN = ["run", "1.1", "--profile", "smoke", "--jobs", "1"]
COMMAND = [sys.executable, "-m", "lab.tools.cli", *RUN]
slow = pytest.mark.slow


def here(*options):
    """The command in this process."""
    return CliRunner().invoke(app, [*RUN, *options])


def start(*options, **more):
    """The command in a process of its own."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([*COMMAND, *options], cwd=CHECKOUT, **streams | more)


@pytest.fixture(scope="module")
def job(project):
    return batch.plan(["1.1"], "smoke", project / "results")[0]


@pytest.fixture(scope="module")
def undisturbed(job):
    """The tables of a run that nothing happened to."""
    result = here()
    assert result.exit_code == 0, result.output
    assert job.to_do() is None
    return tables(job)


@pytest.fixture
def forgotten(undisturbed, project):
    """The file of the trials, which have to run once more."""
    store = project / "results" / ".trials" / f"{DICE}.jsonl"
    store.unlink(missing_ok=True)
    yield store
    allow(project / "gate", None)


def tables(job):
    return {p.name: pd.read_csv(p) for p in sorted((job.folder / "tables").glob("*.csv"))}


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def stored(store):
    """The whole lines of the finished trials."""
    lines = store.read_text().splitlines(keepends=True) if store.exists() else []
    return [line for line in lines if line.startswith('{"trial"') and line.endswith("\n")]


def same_tables(job, undisturbed):
    assert job.to_do() is None and set(tables(job)) == set(undisturbed)
    for name, table in tables(job).items():
        pd.testing.assert_frame_equal(table, undisturbed[name], check_exact=True)


def test_a_second_run_does_nothing(undisturbed, job):
    before = files_of(job.folder)
    result = here()
    assert result.exit_code == 0 and "done already" in result.output
    assert files_of(job.folder) == before


def test_cells_are_counted_with_the_one_that_holds_the_values(monkeypatch, tmp_path):
    def executed(book, _, values, *, kernel_name, language, on_cell_start, **others):
        named = {"kernel_name": kernel_name, "language": language}
        given = parameterize_notebook(book, values, **named) if values else book
        for number, cell in enumerate(given.cells):
            on_cell_start(cell=cell, cell_index=number)
        return given

    heard, cells = [], [nbformat.v4.new_code_cell(text, metadata={"tags": []}) for text in ("a = 1", "a")]
    monkeypatch.setattr("papermill.execute_notebook", executed)
    about = {"papermill": {}, "kernelspec": {"name": "python3", "display_name": "Python 3"}}
    for values in ({"a": 2}, {}):
        book = nbformat.v4.new_notebook(cells=cells, metadata=about)
        kernel.execute(book, values, tmp_path, tmp_path / "log", lambda cell, cells: heard.append((cell, cells)))
    assert heard == [(1, 3), (2, 3), (3, 3), (1, 2), (2, 2)]


def test_a_run_is_done_again_when_code_of_lab_is_another_now_also_what_judges(undisturbed, job, monkeypatch):
    monkeypatch.setattr(batch.place, "files_hash", lambda: "another")
    assert job.to_do() == "code, claims or parameters have changed"


def test_a_run_that_cannot_be_read_is_none(undisturbed, job):
    sound = (job.folder / "run.json").read_bytes()
    (job.folder / "run.json").write_bytes(sound[:-40])
    assert runs.read_run(job.folder) is None and job.to_do() == "run.json cannot be read"
    (job.folder / "run.json").write_bytes(sound)
    assert job.to_do() is None


def kernel_of(process):
    """The kernel that a runner has started, as soon as it is there."""

    def found():
        family = psutil.Process(process.pid).children(recursive=True)
        return next((child for child in family if "ipykernel" in " ".join(child.cmdline())), None)

    return wait_for(found)


# Runs of one's own parameters and notebooks


@slow
def test_a_run_of_ones_own_parameters_says_so_and_leaves_the_others_alone(undisturbed, job):
    before = files_of(job.folder)
    result = here("-p", "seeds=3")
    assert result.exit_code == 0 and f"results/runs/smoke/{DICE}-seeds-3" in result.output, result.output
    mine = batch.plan(["1.1"], "smoke", job.results, {"seeds": 3})[0]
    assert mine.to_do() is None and runs.read_run(mine.folder)["own_parameters"] == {"seeds": 3}
    text = (mine.folder / "notebook.ipynb").read_text("utf-8")
    lines = pd.read_csv(mine.folder / "verdicts.csv")
    assert text.count("own parameters: seeds 3.") == (lines.label == "not judged").sum() > 0
    assert f"Results: `results/runs/smoke/{DICE}-seeds-3`" in text and ".running" not in text
    assert files_of(job.folder) == before


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


@slow
def test_notebooks_of_ones_own_run_in_their_folder(tmp_path):
    (tmp_path / "beside.py").write_text("def twice(x):\n    return 2 * x\n")
    for name, cells in CELLS.items():
        cells = [nbformat.v4.new_code_cell(text, metadata={"tags": [tag] if tag else []}) for tag, text in cells]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / f"{name}.ipynb")
    paths = [f"{name}.ipynb" for name in CELLS]
    done = subprocess.run([*COMMAND[:4], *paths, "--results", "out"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
    found = {name: runs.read_run(tmp_path / "out" / "runs" / "own" / name) for name in CELLS}
    for name, run in found.items():
        assert (run["status"], run["exercise"], run["own_parameters"]) == ("done", name, {})
        assert run["notebook"] == str(tmp_path / f"{name}.ipynb") and run["versions"] and "changes" in run
    assert found["mine"]["parameters"] == {"width": 3, "names": ["a"], "nothing": None}
    text = (tmp_path / "out" / "runs" / "own" / "mine" / "notebook.ipynb").read_text("utf-8")
    assert f"6 ['a'] {tmp_path.name}\\n" in text and "results" not in text, "nothing is put into it"
    assert (tmp_path / "out" / "runs" / "own" / "studied" / "tables" / "found.csv").exists()

    given = ["-p", "width=5", "-p", "names=[b]"]
    done = subprocess.run([*COMMAND[:4], paths[0], *given, "--results", "out"], cwd=tmp_path, capture_output=True)
    place = tmp_path / "out" / "runs" / "own" / "mine-width-5-names-b"
    assert done.returncode == 0 and runs.read_run(place)["own_parameters"] == {"width": 5, "names": ["b"]}
    assert f"10 ['b'] {tmp_path.name}\\n" in (place / "notebook.ipynb").read_text("utf-8")


# Kills


def blow_among_the_trials(forgotten, project, which):
    """A run of which three trials are finished when the runner or its kernel is killed; what those left."""
    allow(project / "gate", 3)
    process = start("--again")
    kernel = kernel_of(process)
    wait_for(lambda: len(stored(forgotten)) == 3)
    (process if which == "runner" else kernel).kill()
    out, _ = process.communicate(timeout=60)
    if which == "kernel":
        assert process.returncode == 1 and "kernel died" in out and "Traceback" not in out, out
    psutil.wait_procs([kernel], timeout=20)
    assert not kernel.is_running(), "the kernel ends with its runner"
    return stored(forgotten)


@pytest.mark.parametrize("which", ["kernel", pytest.param("runner", marks=slow)])
def test_a_killed_run_leaves_earlier_results_and_the_next_one_finishes(which, undisturbed, forgotten, job, project):
    before = files_of(job.folder)
    kept = blow_among_the_trials(forgotten, project, which)
    assert len(kept) == 3 < THROWS and files_of(job.folder) == before
    allow(project / "gate", None)
    result = here("--again")
    assert result.exit_code == 0, result.output
    now = stored(forgotten)
    assert len(now) == THROWS and now[: len(kept)] == kept
    same_tables(job, undisturbed)


@slow
def test_runners_and_kernels_killed_at_any_moment(undisturbed, forgotten, job, project):
    """From the start of the kernel on; one trial at most runs until a blow has fallen, so that some are left."""
    chance, before = random.Random(0), files_of(job.folder)
    for blow in range(4):
        allow(project / "gate", 1)
        process = start("--again")
        kernel = kernel_of(process)
        time.sleep(chance.uniform(0, 4))
        (process if blow % 2 else kernel).kill()
        out, _ = process.communicate(timeout=60)
        assert "Traceback" not in out, out
        psutil.wait_procs([kernel], timeout=20)
        assert not kernel.is_running() and files_of(job.folder) == before, "earlier results stay"
    assert len(stored(forgotten)) <= 4
    allow(project / "gate", None)
    assert here("--again").exit_code == 0
    same_tables(job, undisturbed)


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=slow)])
def test_ctrl_c_in_a_terminal_ends_without_a_traceback(jobs, undisturbed, forgotten, job, project):
    before = files_of(job.folder)
    allow(project / "gate", 1)
    process, terminal = in_a_terminal([*COMMAND[:-1], str(jobs), "--again"])
    kernel = kernel_of(process)
    wait_for(lambda: len(stored(forgotten)) == 1)
    started = kernel.children(recursive=True)
    assert len(started) >= 2 * (jobs - 1), "its workers"
    os.write(terminal, b"\x03")
    out = "".join(read_all(terminal))
    assert process.wait(30) == 130 and "the same command goes on from here" in out, out
    assert "Traceback" not in out and "Error" not in out and "Warning" not in out, out
    psutil.wait_procs([kernel, *started], timeout=20)
    assert not any(each.is_running() for each in [kernel, *started])
    assert files_of(job.folder) == before, "earlier results stay"


@slow
def test_sigterm_ends_a_run_as_ctrl_c_does(undisturbed, forgotten, job, project):
    before = files_of(job.folder)
    allow(project / "gate", 1)
    process = start("--again")
    kernel = kernel_of(process)
    wait_for(lambda: len(stored(forgotten)) == 1)
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "the same command goes on from here" in out, out
    assert "Traceback" not in out and "Error" not in out and "Warning" not in out, out
    psutil.wait_procs([kernel], timeout=20)
    assert not kernel.is_running() and files_of(job.folder) == before, "earlier results stay"


def in_a_terminal(command):
    """A process whose terminal is the other end of the descriptor that comes with it."""
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(CHECKOUT)
        os.execv(command[0], command)
    return psutil.Process(pid), terminal


def read_all(terminal):
    """What is written to a terminal until its process ends."""
    with contextlib.suppress(OSError):
        while data := os.read(terminal, 2**16):
            yield data.decode(errors="replace")


@slow
def test_ctrl_c_twice_ends_at_once(undisturbed, forgotten, job, project):
    allow(project / "gate", 1)
    process = start("--again", start_new_session=True)
    kernel = kernel_of(process)
    wait_for(lambda: len(stored(forgotten)) == 1)
    for _ in range(2):
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    out, _ = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), "a shell calls both 130"
    assert str(CHECKOUT / "lab") not in out, "no traceback of ours"
    psutil.wait_procs([kernel], timeout=20)
    assert not kernel.is_running() and job.to_do() is None, "earlier results stay"


# Places that cannot be written: in a mount namespace of its own, which vanishes with the command

NAMESPACE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]


def within(mount):
    """A command for a shell that mounts, then runs the lab anew; None where this system mounts nothing."""
    try:
        subprocess.run([*NAMESPACE, "sh", "-ec", mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no mount for a test: {getattr(error, 'stderr', error)}")
    command = [*NAMESPACE, "sh", "-ec", f'{mount}\nexec "$@"', "lab", *COMMAND, "--again"]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=300)


@slow
@pytest.mark.parametrize("part, size", [(".trials", "4k"), (".running", "16k"), (".running", "64k")])
def test_a_full_disk_is_named_and_earlier_results_stay(part, size, undisturbed, forgotten, job):
    before, place = files_of(job.folder), f"'{job.results / part}'"
    filled = f"head -c 4096 /dev/zero > {place}/filler" if part == ".trials" else "true"
    done = within(f"mkdir -p {place}; mount -t tmpfs -o size={size} none {place}; {filled}")
    assert done.returncode == 1 and "No space left on device" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and "FAILED" in done.stderr
    assert files_of(job.folder) == before and job.to_do() is None


@slow
def test_read_only_results_are_named_and_stay(undisturbed, job):
    before, place = files_of(job.folder), f"'{job.results}'"
    done = within(f"mount --bind {place} {place}; mount -o remount,ro,bind {place}")
    assert done.returncode == 1 and str(job.results) in done.stderr and "Read-only" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and files_of(job.folder) == before


# Clusters


@pytest.fixture
def cluster():
    """The address of a Dask scheduler on this machine, and it with its two workers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address, dask = f"tcp://127.0.0.1:{port}", [sys.executable, "-m", "dask"]
    scheduler = [*dask, "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    worker = [*dask, "worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny"]
    processes = [
        subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.DEVNULL) for command in (scheduler, worker, worker)
    ]
    yield address, processes
    for process in processes[::-1]:
        process.kill()
        process.wait(30)


@slow
def test_a_cluster_that_loses_a_worker_and_then_its_scheduler(undisturbed, forgotten, job, cluster, project):
    address, processes = cluster
    with Client(address, timeout=60) as client:
        client.wait_for_workers(2, timeout=60)
    allow(project / "gate", 3)
    process = start("--again", "--cluster", address)
    wait_for(lambda: len(stored(forgotten)) == 3)
    processes[1].kill()
    allow(project / "gate", None)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert f"{address}: 2 workers, 2 trials at once" in out
    same_tables(job, undisturbed)

    before = files_of(job.folder)
    forgotten.unlink()
    allow(project / "gate", 3)
    process = start("--again", "--cluster", address)
    wait_for(lambda: len(stored(forgotten)) == 3)
    processes[0].kill()
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 1 and "ConnectionError: the cluster went away" in out, out
    assert "Traceback" not in out and files_of(job.folder) == before, "earlier results stay"


def test_a_cluster_that_is_not_there_is_refused_before_anything_starts(monkeypatch):
    monkeypatch.setattr(workers, "CONNECT_SECONDS", 1)
    result = here("--cluster", "tcp://127.0.0.1:9")
    assert result.exit_code == 2 and "tcp://127.0.0.1:9" in result.output and "dask scheduler" in result.output
