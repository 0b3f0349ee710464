"""The command `lab`: run notebooks with papermill; list, show, compare and publish their runs.

    lab run 1.4 -p seeds=2

All parameters are validated before a kernel starts. The results of a run are written to a temporary
folder, which is moved to results/runs/PROFILE/NN_slug on success. Lessons that already ran with
the current code, claims and parameters are skipped, except with --fresh or --anyway. A failure does
not stop the other notebooks. Kernels are configured by environment variables: see `environment`.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
import typer.core

from lab import browse, files, parameters
from lab.files import Refused

PROGRESS_SECONDS = 5
STOPPED = "stopped; finished trials are cached: rerun to resume"
NO_TRACEBACK = ("ConnectionError", "OSError", "PermissionError", "Refused", "TrialsFailed")
FRONT = """Transformer Lab: measure what a textbook chapter claims.

  lab run 1.4                 Run a lesson and print its answers
  lab show 1.4                Open its figures and answers in the browser
  lab run 1.4 -p seeds=10     Change a parameter
  lab run notebooks/your_own_idea.ipynb   Test your own idea

All lessons: lab list. All commands: lab --help"""


class Commands(typer.core.TyperGroup):
    """Commands that report invalid input without a traceback and exit with status 2."""

    def invoke(self, context):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError):  # for ASCII terminals
                stream.reconfigure(errors="replace", line_buffering=True)
        try:
            return super().invoke(context)
        except Refused as error:
            print(f"lab: {error}", file=sys.stderr)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=Commands, invoke_without_command=True, add_completion=False, pretty_exceptions_enable=False
)


@app.callback()
def front(context: typer.Context):
    """Run the notebooks of Transformer Lab and browse their results."""
    if context.invoked_subcommand is None:
        print(FRONT)


# Jobs


@dataclass(frozen=True)
class Job:
    """A notebook, its validated parameters, and the folder of its results."""

    notebook: Path
    values: dict
    own: dict  # values that differ from the profile
    folder: Path

    @property
    def fingerprint(self):
        """The hash of notebook, claims, package and parameters."""
        root = files.project_root()
        claims = root / "experiments" / "claims" / f"{self.notebook.stem}.yaml"
        bars = root / "experiments" / "bars.yaml"
        code = [self.notebook, claims, bars, *sorted(Path(__file__).parent.rglob("*.py"))]
        parts = [path.read_bytes() for path in code if path.exists()]
        parts.append(json.dumps(self.values, sort_keys=True).encode())
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]

    @property
    def is_done(self):
        """Whether a lesson's results are current. A user's notebook always runs again."""
        run = files.read_run(self.folder) or {}
        return (
            self.notebook in files.notebooks()
            and run.get("fingerprint", "") == self.fingerprint
            and (self.folder / "notebook.ipynb").exists()
        )


def plan(names, profile, results, *overrides):
    """The jobs of the named notebooks, or of all lessons; `overrides` are (source, {name: value}).

    Raises Refused if a value is invalid.
    """
    chosen = [files.notebook_of(name) for name in names] or files.notebooks()
    if not chosen:
        raise Refused(files.ALONE)
    jobs = []
    for notebook in dict.fromkeys(chosen):
        named = [values["profile"] for _, values in overrides if "profile" in values]
        source = parameters.of_profile(notebook, named[-1] if named else profile)
        usual = parameters.validate(notebook, source)
        values = parameters.validate(notebook, source, *overrides)
        if values.pop("results", ""):
            raise Refused("results: choose the folder with --results")
        own = {name: value for name, value in values.items() if value != usual[name]}
        name = "-".join(filter(None, [notebook.stem, suffix_of(own)]))
        folder = results / "runs" / values.get("profile", "own") / name
        if any(folder == job.folder for job in jobs):
            raise Refused(f"two notebooks are called {notebook.stem}: run them separately")
        jobs.append(Job(notebook, values, own, folder))
    return jobs


def suffix_of(own):
    """The suffix of a run's folder, such as seeds-10; "" if no value differs from the profile."""
    name = re.sub(r"[^\w.]+", "-", json.dumps(own)).strip("-")
    if len(name) <= 40:
        return name
    return f"{name[:32].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def assignments(items):
    """{name: value} of arguments NAME=VALUE. Raises Refused for any other form."""
    values = {}
    for item in items or ():
        name, equals, text = item.partition("=")
        if not equals or name in values:
            message = f"{name} is set twice" if equals else "expected NAME=VALUE"
            raise Refused(f"-p {item!r}: {message}")
        values[name] = absolute_path(parameters.read_value(text))
    return values


def absolute_path(value):
    """The value; an existing path becomes absolute, since notebooks run in another folder."""
    if isinstance(value, str) and (os.sep in value or Path(value).suffix) and os.path.exists(value):
        return str(Path(value).resolve())
    return value


# One run


def execute(job, fresh=False, anyway=False, **options):
    """Run a notebook with its results in a temporary folder, moved to job.folder on success.

    The working directory is the notebook's folder, as in JupyterLab. Raises papermill's exceptions,
    and RuntimeError if a lesson does not call study.finish().
    """
    aside = job.folder.with_name(f".{job.folder.name}")  # exclusive: the caller holds the lock
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    began, fingerprint = time.time(), "" if anyway else job.fingerprint
    try:
        with environment(job, aside, fresh, anyway, options):
            executed = run_papermill(job)
        run = files.read_run(aside) or {}
        if not run and job.notebook in files.notebooks():
            raise RuntimeError(f"{job.notebook.name} did not call study.finish()")
        moved = {str(aside): str(job.folder), files.shown(aside): files.shown(job.folder)}
        files.write_text(aside / "notebook.ipynb", tidy(executed, moved))
        about = {"status": "done", "notebook": job.notebook.stem} | run
        about |= {
            "parameters": job.values,
            "own": job.own,
            "seconds": round(time.time() - began, 1),
        }
        files.write_run(aside, about | {"fingerprint": fingerprint})
        files.put(aside, job.folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def environment(job, aside, fresh, anyway, options):
    """Set the environment variables of the job's kernel.

    LAB_RUN: output folder; LAB_NOTEBOOK: the notebook; LAB_STORE: the local cache of trials;
    LAB_RECORD: "none" with --fresh; LAB_PROGRESS: file for the progress line; LAB_CHECK: output
    folder of --check. LAB_JOBS, LAB_DEVICE, LAB_CLUSTER and LAB_ANYWAY: the command-line options.
    """
    variables = {"run": aside, "notebook": job.notebook, "anyway": "1" if anyway else ""} | options
    variables |= {"record": "none"} if fresh else {}
    before = dict(os.environ)
    os.environ |= {f"LAB_{name.upper()}": str(value or "") for name, value in variables.items()}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def run_papermill(job):
    """Execute the notebook of a job; returns the executed notebook."""
    import nbformat
    import papermill
    from papermill.exceptions import PapermillExecutionError

    logging.getLogger("papermill").setLevel(logging.ERROR)
    outputs = []
    try:
        with tempfile.TemporaryDirectory(prefix="lab-") as sockets:
            executed = papermill.execute_notebook(
                nbformat.read(job.notebook, 4),
                None,
                job.values if job.notebook in files.notebooks() else job.own,
                kernel_name="python3",
                language="python",
                progress_bar=False,
                start_timeout=180,
                kernel_manager_class=kernel_manager(sockets),
                on_cell_error=lambda cell, **_: outputs.extend(cell.outputs),
                cwd=job.notebook.parent,
            )
    except PapermillExecutionError as error:  # magics report errors only on stderr
        texts = [output.text for output in outputs if output.get("name") == "stderr"]
        error.evalue = error.evalue or "".join(texts).strip()
        raise
    code = [(i, cell) for i, cell in enumerate(executed.cells, 1) if cell.cell_type == "code"]
    for number, cell in code[:-1]:  # papermill treats sys.exit as success
        if any(output.get("ename") == "SystemExit" for output in cell.outputs):
            raise RuntimeError(f"cell {number} called sys.exit: the cells after it did not run")
    return executed


def kernel_manager(sockets):
    """A kernel manager class whose kernels use sockets in this folder and do not write to stderr.

    TCP ports could be taken by another kernel that starts at the same time.
    """
    from jupyter_client.manager import AsyncKernelManager

    class KernelManager(AsyncKernelManager):
        def __init__(self, **options):
            own = {"transport": "ipc", "connection_file": f"{sockets}/kernel.json"}
            super().__init__(**options | (own if os.name != "nt" else {}))

        async def start_kernel(self, **options):
            await super().start_kernel(**options | {"stderr": subprocess.DEVNULL})

    return KernelManager


def tidy(executed, moved):
    """The text of an executed notebook without papermill metadata and absolute paths.

    `moved` maps paths in the text to their replacements.
    """
    import nbformat

    text = nbformat.writes(executed)
    for before, after in moved.items():
        text = text.replace(before, after)
    notebook = nbformat.reads(text.replace(f"{files.project_root()}/", ""), 4)
    for name in ("papermill", "widgets"):  # without widget state, the static figure is shown
        notebook.metadata.pop(name, None)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata.kernelspec = kernel
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
    return nbformat.writes(notebook)


def explain(error):
    """The cell and the cause of a failed run."""
    from papermill.exceptions import PapermillExecutionError

    if isinstance(error, PapermillExecutionError):
        cell = f"cell {error.cell_index + 1}"
        if error.ename in NO_TRACEBACK:
            full = "No space left" in error.evalue
            hint = "; free some space or choose another folder with --results" if full else ""
            return f"{cell}: {error.ename}: {error.evalue}{hint}"
        if not error.traceback:  # a magic
            return f"{cell}: {error.source.strip().splitlines()[0]}: {error.evalue or 'failed'}"
        return f"{cell}: " + re.sub("\x1b\\[[0-9;]*m", "", "\n".join(error.traceback))
    if type(error).__name__ == "DeadKernelError" or "Kernel died" in str(error):
        return (
            "the kernel died (killed or out of memory); finished trials are cached: rerun to resume"
        )
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}; choose another folder with --results"
    return f"{type(error).__name__}: {error}"


# Running


@app.command()
def run(
    notebooks: Annotated[
        list[str] | None,
        typer.Argument(help="1.4, 04, 04_head_count or path/to/mine.ipynb; default: all lessons."),
    ] = None,
    profile: browse.Profile = "quick",
    parameter: Annotated[
        list[str] | None, typer.Option("-p", metavar="NAME=VALUE", help="May be repeated.")
    ] = None,
    file: Annotated[Path | None, typer.Option("-f", help="YAML file of parameters.")] = None,
    jobs: Annotated[
        int, typer.Option(min=0, help="Parallel trials; 0: one per core, in smoke runs one.")
    ] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    cluster: Annotated[str, typer.Option(help="Dask scheduler, tcp://host:8786.")] = "",
    results: Annotated[Path | None, typer.Option(help="Output folder.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Ignore the record.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Reuse rows of older code.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only rerun a few recorded rows and compare.")
    ] = False,
    accept: Annotated[
        bool,
        typer.Option(
            "--accept", help="Check; make record files current if their rerun rows agree."
        ),
    ] = False,
):
    """Run notebooks; skip finished ones and resume interrupted ones."""
    results = (results or files.project_root() / "results").expanduser().resolve()
    read = parameters.read_file(file) if file else {}
    overrides = [(str(file), {name: absolute_path(value) for name, value in read.items()})]
    overrides.append(("-p", assignments(parameter)))
    todo = plan(notebooks or [], profile, results, *overrides)
    check_hardware(device, cluster)
    options = {"jobs": jobs, "device": device, "cluster": cluster, "fresh": fresh, "anyway": anyway}
    options |= {"store": results / ".trials"}
    if check or accept:
        from lab import check as checking

        if not checking.check(todo, options, accept):
            raise typer.Exit(1)
        return
    failed = []
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with locked(results):
            for number, job in enumerate(todo, 1):
                name = f"[{number}/{len(todo)}] {job.notebook.stem}"
                if job.is_done and not (fresh or anyway):
                    print(f"{name}: up to date")
                elif not succeeds(name, job, options):
                    failed.append(job.notebook.stem)
    except KeyboardInterrupt:
        print(f"\nlab: {STOPPED}", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    if failed:
        print(f"{len(failed)} of {len(todo)} failed: {', '.join(failed)}", file=sys.stderr)
        raise typer.Exit(1)


def check_hardware(device, cluster):
    """Raise Refused if the device is not available or the scheduler does not respond."""
    try:
        if cluster:  # its workers have their own devices
            from distributed import Client

            Client(cluster, timeout=5).close()
        elif device not in ("auto", "cpu"):
            from lab.device import available

            available(device)
    except (OSError, ValueError) as error:
        option = f"--cluster {cluster}: no scheduler responds" if cluster else f"--device: {error}"
        raise Refused(option) from None


@contextlib.contextmanager
def locked(results):
    """Hold the lock of the results folder. Raises Refused if it is taken or not writable."""
    from filelock import FileLock, Timeout

    lock = FileLock(results / ".lock")
    try:
        results.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        hint = "wait for it or choose another folder with --results"
        raise Refused(f"another `lab run` is using {results}; {hint}") from None
    except OSError as error:
        hint = "choose another folder with --results"
        raise Refused(f"{error.filename or results}: {error.strerror}; {hint}") from None
    try:
        yield
    finally:
        lock.release()


def succeeds(name, job, options):
    """Run a job and print the outcome; returns whether it succeeded."""
    began = time.time()
    try:
        with tempfile.TemporaryDirectory() as folder, progress(Path(folder) / "sweep"):
            execute(job, progress=Path(folder) / "sweep", **options)
    except Exception as error:  # a failed notebook does not stop the others
        print(f"{name}: FAILED after {time.time() - began:.0f} s\n{explain(error)}")
        return False
    print(f"{name}: done in {time.time() - began:.0f} s")
    run = files.read_run(job.folder)
    for text in (run.get("answer"), browse.scorecard(job.folder), run.get("told")):
        if text:
            print(f"\n{text}")
    print(f"\n{files.shown(job.folder)}; to open it: lab show {address(job)}")
    return True


def address(job):
    """The argument of `lab show` that opens the job's run."""
    usual = job.folder == files.project_root() / "results" / "runs" / "quick" / job.notebook.stem
    return files.exercise_of(job.notebook) if usual else files.shown(job.folder)


@contextlib.contextmanager
def progress(file):
    """Print the progress line in `file` whenever it changes."""
    done = threading.Event()

    def poll():
        previous = ""
        while not done.wait(PROGRESS_SECONDS):
            line = file.read_text("utf-8") if file.exists() else ""
            if line and line != previous:
                print(f"  {line}")
            previous = line

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@app.command()
def publish(
    notebooks: Annotated[list[str] | None, typer.Argument(help="1.4, …; default: all.")] = None,
):
    """Copy finished runs of a clean commit to results/quick and update the result pages."""
    from lab import publish as pages

    pages.publish([files.notebook_of(name) for name in notebooks or ()])


app.command("list")(browse.lessons)
for command in (browse.show, browse.diff):
    app.command()(command)

if __name__ == "__main__":
    app()
