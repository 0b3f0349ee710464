"""The command `lab`: run notebooks by papermill, list, show and compare their runs, publish them.

    lab run 1.4 -p seeds=2

All parameters are checked before a kernel starts. A notebook runs in a folder aside, which is moved
to results/runs/PROFILE/NN_slug when it is complete. A notebook that ran with this code, these
claims and these parameters is skipped; one that fails does not stop the others. What a kernel has
to know besides its parameters stands in environment variables: see `environment`.
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

OFTEN = 5  # seconds between two lines of progress
STOPPED = "stopped; finished trials are kept, the same command goes on"
PLAIN = ("ConnectionError", "OSError", "PermissionError", "Refused", "TrialsFailed")
FRONT = """Transformer Lab: what a chapter claims, measured.

  lab run 1.4                 Run a lesson, with its figures and answers
  lab show 1.4                Look at what it found, in the browser
  lab run 1.4 -p seeds=10     Change a number
  lab run notebooks/your_own_idea.ipynb   Try an idea of your own

All lessons: lab list. All commands: lab --help"""


class Commands(typer.core.TyperGroup):
    """Commands that answer refused input in a sentence, and exit with status 2."""

    def invoke(self, context):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError):  # a terminal may know ASCII alone
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
    """Run the notebooks of Transformer Lab and browse what they measured."""
    if context.invoked_subcommand is None:
        print(FRONT)


# Jobs


@dataclass(frozen=True)
class Job:
    """A notebook with its checked parameters, and the folder of its results."""

    notebook: Path
    values: dict
    own: dict  # the values that are not the profile's
    folder: Path

    @property
    def fingerprint(self):
        """The hash of all that a run depends on: notebook, claims, package and parameters."""
        root = files.project_root()
        claims = root / "experiments" / "claims" / f"{self.notebook.stem}.yaml"
        bars = root / "experiments" / "bars.yaml"
        code = [self.notebook, claims, bars, *sorted(Path(__file__).parent.rglob("*.py"))]
        parts = [path.read_bytes() for path in code if path.exists()]
        parts.append(json.dumps(self.values, sort_keys=True).encode())
        return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]

    @property
    def is_done(self):
        """Whether this code ran here with these parameters.

        A notebook of one's own is never done, since it may read any file.
        """
        run = files.read_run(self.folder) or {}
        return (
            self.notebook in files.notebooks()
            and run.get("fingerprint", "") == self.fingerprint
            and (self.folder / "notebook.ipynb").exists()
        )


def plan(names, profile, results, *given):
    """The jobs of the named notebooks, or of all lessons; `given` are (source, {name: value}).

    Raises Refused where a value is not allowed.
    """
    chosen = [files.notebook_of(name) for name in names] or files.notebooks()
    if not chosen:
        raise Refused(files.ALONE)
    jobs = []
    for notebook in dict.fromkeys(chosen):
        named = [values["profile"] for _, values in given if "profile" in values]
        source = parameters.of_profile(notebook, named[-1] if named else profile)
        usual = parameters.validate(notebook, source)
        values = parameters.validate(notebook, source, *given)
        if values.pop("results", ""):
            raise Refused("results: choose the folder with --results")
        own = {name: value for name, value in values.items() if value != usual[name]}
        name = "-".join(filter(None, [notebook.stem, words_of(own)]))
        folder = results / "runs" / values.get("profile", "own") / name
        if any(folder == job.folder for job in jobs):
            raise Refused(f"two notebooks are called {notebook.stem}: run one alone")
        jobs.append(Job(notebook, values, own, folder))
    return jobs


def words_of(own):
    """The suffix of a run's folder from its own parameters, such as seeds-10; "" without any."""
    name = re.sub(r"[^\w.]+", "-", json.dumps(own)).strip("-")
    if len(name) <= 40:
        return name
    return f"{name[:32].rstrip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def assignments(items):
    """{name: value} of the items NAME=VALUE. Raises Refused where one has another form."""
    values = {}
    for item in items or ():
        name, equals, text = item.partition("=")
        if not equals or name in values:
            told = f"{name} is given twice" if equals else "write NAME=VALUE"
            raise Refused(f"-p {item!r}: {told}")
        values[name] = from_anywhere(parameters.read_value(text))
    return values


def from_anywhere(value):
    """The value; an existing path is made absolute, since notebooks run in another folder."""
    if isinstance(value, str) and (os.sep in value or Path(value).suffix) and os.path.exists(value):
        return str(Path(value).resolve())
    return value


# One run


def execute(job, fresh=False, anyway=False, **options):
    """Run a notebook aside, then move the complete run into place.

    The working folder is the notebook's own, as in JupyterLab. Raises papermill's exceptions, and
    RuntimeError where a lesson does not finish its study.
    """
    aside = job.folder.with_name(f".{job.folder.name}")  # of this run alone, under the lock
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    began, fingerprint = time.time(), "" if anyway else job.fingerprint
    try:
        with environment(job, aside, fresh, anyway, options):
            executed = by_papermill(job)
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
    """Set the variables that the kernel of this job reads, in the block.

    LAB_RUN is the folder that it writes to, LAB_NOTEBOOK the notebook, LAB_STORE the folder of this
    machine's trials, LAB_RECORD "none" with --fresh, LAB_PROGRESS the file of a sweep's progress.
    LAB_JOBS, LAB_DEVICE, LAB_CLUSTER and LAB_ANYWAY are the options of these names.
    """
    said = {"run": aside, "notebook": job.notebook, "anyway": "1" if anyway else ""} | options
    said |= {"record": "none"} if fresh else {}
    before = dict(os.environ)
    os.environ |= {f"LAB_{name.upper()}": str(value or "") for name, value in said.items()}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def by_papermill(job):
    """The executed notebook of a job. Raises what papermill raises, which alone tells a failure."""
    import nbformat
    import papermill
    from papermill.exceptions import PapermillExecutionError

    logging.getLogger("papermill").setLevel(logging.ERROR)
    said = []
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
                on_cell_error=lambda cell, **_: said.extend(cell.outputs),
                cwd=job.notebook.parent,
            )
    except PapermillExecutionError as error:  # a magic says what is wrong on stderr alone
        texts = [each.text for each in said if each.get("name") == "stderr"]
        error.evalue = error.evalue or "".join(texts).strip()
        raise
    code = [(i, cell) for i, cell in enumerate(executed.cells, 1) if cell.cell_type == "code"]
    for number, cell in code[:-1]:  # for papermill sys.exit is a success
        if any(output.get("ename") == "SystemExit" for output in cell.outputs):
            raise RuntimeError(f"cell {number} called sys.exit: the cells after it did not run")
    return executed


def kernel_manager(sockets):
    """The class of a kernel manager whose kernel listens to sockets in a folder of its own.

    Ports of TCP could be taken by another kernel that starts now. Its stderr is dropped.
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
    """The text of an executed notebook without traces of papermill and of the machine it ran on.

    `moved` is {path in the text: path to replace it}.
    """
    import nbformat

    text = nbformat.writes(executed)
    for before, after in moved.items():
        text = text.replace(before, after)
    notebook = nbformat.reads(text.replace(f"{files.project_root()}/", ""), 4)
    for name in ("papermill", "widgets"):  # without widgets, a static figure is shown
        notebook.metadata.pop(name, None)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata.kernelspec = kernel
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
    return nbformat.writes(notebook)


def explain(error):
    """The cell and the cause of a failed run, in words."""
    from papermill.exceptions import PapermillExecutionError

    if isinstance(error, PapermillExecutionError):
        cell = f"cell {error.cell_index + 1}"
        if error.ename in PLAIN:
            full = "No space left" in error.evalue
            way_out = "; make room, or choose another folder with --results" if full else ""
            return f"{cell}: {error.ename}: {error.evalue}{way_out}"
        if not error.traceback:  # a magic
            return f"{cell}: {error.source.strip().splitlines()[0]}: {error.evalue or 'failed'}"
        return f"{cell}: " + re.sub("\x1b\\[[0-9;]*m", "", "\n".join(error.traceback))
    if type(error).__name__ == "DeadKernelError" or "Kernel died" in str(error):
        told = "the kernel died (killed, or out of memory)"
        return f"{told}; finished trials are kept, the same command goes on"
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}; choose another folder with --results"
    return f"{type(error).__name__}: {error}"


# Running


@app.command()
def run(
    notebooks: Annotated[
        list[str] | None,
        typer.Argument(help="1.4, 04, 04_head_count or path/to/mine.ipynb; none: all lessons."),
    ] = None,
    profile: browse.Profile = "quick",
    parameter: Annotated[
        list[str] | None, typer.Option("-p", metavar="NAME=VALUE", help="May be repeated.")
    ] = None,
    file: Annotated[Path | None, typer.Option("-f", help="A YAML file of parameters.")] = None,
    jobs: Annotated[int, typer.Option(min=0, help="Trials at once; 0: one a core.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    cluster: Annotated[str, typer.Option(help="A Dask scheduler, tcp://host:8786.")] = "",
    results: Annotated[Path | None, typer.Option(help="Folder for results.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Take nothing from the record.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Use rows of older code.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only compare older rows with those of this code.")
    ] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="Check, and keep older rows that agree.")
    ] = False,
):
    """Run notebooks; finished ones are skipped, interrupted ones go on where they stopped."""
    results = (results or files.project_root() / "results").expanduser().resolve()
    read = parameters.read_file(file) if file else {}
    given = [(str(file), {name: from_anywhere(value) for name, value in read.items()})]
    given.append(("-p", assignments(parameter)))
    todo = plan(notebooks or [], profile, results, *given)
    check_places(device, cluster)
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
        with only_one(results):
            for number, job in enumerate(todo, 1):
                name = f"[{number}/{len(todo)}] {job.notebook.stem}"
                if job.is_done and not (fresh or anyway):
                    print(f"{name}: done already")
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


def check_places(device, cluster):
    """Raise Refused where there is no such device here, or no scheduler answers there."""
    try:
        if cluster:  # whose workers have devices of their own
            from distributed import Client

            Client(cluster, timeout=5).close()
        elif device not in ("auto", "cpu"):
            from lab.device import available

            available(device)
    except (OSError, ValueError) as error:
        told = f"--cluster {cluster}: no scheduler answers" if cluster else f"--device: {error}"
        raise Refused(told) from None


@contextlib.contextmanager
def only_one(results):
    """Lock the folder of results in the block.

    Raises Refused where another run holds the lock, or where nothing can be written.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(results / ".lock")
    try:
        results.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        told = "wait for it, or choose another folder with --results"
        raise Refused(f"another `lab run` works on {results}; {told}") from None
    except OSError as error:
        told = "choose another folder with --results"
        raise Refused(f"{error.filename or results}: {error.strerror}; {told}") from None
    try:
        yield
    finally:
        lock.release()


def succeeds(name, job, options):
    """Run a job and tell how it went; whether it is complete."""
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
    print(f"\n{files.shown(job.folder)}; to look at it: lab show {address(job)}")
    return True


def address(job):
    """The argument of `lab show` that opens the run of a job."""
    usual = job.folder == files.project_root() / "results" / "runs" / "quick" / job.notebook.stem
    return files.exercise_of(job.notebook) if usual else files.shown(job.folder)


@contextlib.contextmanager
def progress(file):
    """Print, during the block, what a sweep writes to `file` when it has changed."""
    over = threading.Event()

    def tell():
        before = ""
        while not over.wait(OFTEN):
            sweep = file.read_text("utf-8") if file.exists() else ""
            if sweep and sweep != before:
                print(f"  {sweep}")
            before = sweep

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


@app.command()
def publish(
    notebooks: Annotated[list[str] | None, typer.Argument(help="1.4, …; none: all.")] = None,
):
    """Copy finished runs of a clean commit to results/quick, and rewrite the pages of answers."""
    from lab import publish as pages

    pages.publish([files.notebook_of(name) for name in notebooks or ()])


app.command("list")(browse.lessons)
for command in (browse.show, browse.diff):
    app.command()(command)

if __name__ == "__main__":
    app()
