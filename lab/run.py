"""The command `lab`: run notebooks with papermill; list, show, compare and publish their runs.

    lab run 1.4 -p seeds=2

All parameters are validated before a kernel starts. A lesson that already ran with the current
code, claims and parameters is skipped, except with --fresh or --anyway. If a notebook fails, the
others still run.
"""

import contextlib
import os
import re
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
import typer.core

from lab import browse, files, parameters, runs
from lab.files import Refused

STOPPED = "stopped; finished trials are cached: rerun to resume"
NO_TRACEBACK = (
    "ChildProcessError",
    "ConnectionError",
    "OSError",
    "PermissionError",
    "Refused",
    "TrialsFailed",
)


class Commands(typer.core.TyperGroup):
    """Commands that report invalid input without a traceback and exit with status 2."""

    def invoke(self, context):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError):  # for terminals without Unicode
                stream.reconfigure(errors="replace", line_buffering=True)
        try:
            return super().invoke(context)
        except Refused as error:
            print(f"lab: {error}", file=sys.stderr)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


@app.callback()
def front():
    """Run the notebooks of Transformer Lab and browse their results."""


@app.command()
def run(
    notebooks: Annotated[
        list[str] | None,
        typer.Argument(help="1.4, 04, 04_head_count or path/to/mine.ipynb; default: all lessons."),
    ] = None,
    profile: Annotated[str, typer.Option(help="quick or smoke.")] = "quick",
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
            "--accept", help="Like --check; then mark record files as current if their rows agree."
        ),
    ] = False,
):
    """Run notebooks; skip finished ones and resume interrupted ones."""
    results = (results or files.project_root() / "results").expanduser().resolve()
    read = parameters.read_file(file) if file else {}
    overrides = [(str(file), {name: absolute_path(value) for name, value in read.items()})]
    overrides.append(("-p", assignments(parameter)))
    todo = runs.plan(notebooks or [], profile, results, *overrides)
    check_device(device)
    options = {"jobs": jobs, "device": device, "cluster": cluster, "fresh": fresh, "anyway": anyway}
    options |= {"store": results / ".trials"}
    if check or accept:
        from lab import check as checking

        if not checking.check(todo, options, accept):
            raise typer.Exit(1)
        return
    failed = []
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
    if failed:
        print(f"{len(failed)} of {len(todo)} failed: {', '.join(failed)}", file=sys.stderr)
        raise typer.Exit(1)


def assignments(items):
    """{name: value} of arguments NAME=VALUE. Raises Refused for other forms."""
    values = {}
    for item in items or ():
        name, equals, text = item.partition("=")
        if not equals:
            raise Refused(f"-p {item!r}: expected NAME=VALUE")
        values[name] = absolute_path(parameters.read_value(text))
    return values


def absolute_path(value):
    """Make an existing path absolute, since notebooks run in another folder.

    A string counts as a path if it contains a separator or has a suffix. Returns other values
    unchanged.
    """
    if isinstance(value, str) and (os.sep in value or Path(value).suffix) and os.path.exists(value):
        return str(Path(value).resolve())
    return value


def check_device(device):
    """Raise Refused if the device is not available."""
    if device in ("auto", "cpu"):
        return
    from lab.device import available  # imports torch

    try:
        available(device)
    except ValueError as error:
        raise Refused(f"--device: {error}") from None


@contextlib.contextmanager
def locked(results):
    """Hold the lock of the results folder. Raises Refused if it is taken or not writable."""
    from filelock import FileLock, Timeout

    try:
        results.mkdir(parents=True, exist_ok=True)
        lock = FileLock(results / ".lock").acquire(timeout=0)
    except Timeout:
        hint = "wait for it or choose another folder with --results"
        raise Refused(f"another `lab run` is using {results}; {hint}") from None
    except OSError as error:
        hint = "choose another folder with --results"
        raise Refused(f"{error.filename or results}: {error.strerror}; {hint}") from None
    with lock:
        yield


def explain(error):
    """The cell and the cause of a failure, as text."""
    from papermill.exceptions import PapermillExecutionError

    if isinstance(error, PapermillExecutionError):
        cell = f"cell {error.cell_index + 1}"
        if error.ename in NO_TRACEBACK:
            full = "No space left" in error.evalue
            hint = "; free some space or choose another folder with --results" if full else ""
            return f"{cell}: {error.ename}: {error.evalue}{hint}"
        if not error.traceback:  # the cell is a magic
            return f"{cell}: {error.source.strip().splitlines()[0]}: {error.evalue or 'failed'}"
        return f"{cell}: " + re.sub("\x1b\\[[0-9;]*m", "", "\n".join(error.traceback))
    if type(error).__name__ == "DeadKernelError" or "Kernel died" in str(error):
        return (
            "the kernel died (killed or out of memory); finished trials are cached: rerun to resume"
        )
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}; choose another folder with --results"
    return f"{type(error).__name__}: {error}"


def succeeds(name, job, options):
    """Run a job and print the outcome. Returns whether it succeeded."""
    began = time.time()
    try:
        runs.execute(job, **options)
    except Exception as error:  # the other notebooks still run
        print(f"{name}: FAILED after {time.time() - began:.0f} s\n{explain(error)}")
        return False
    print(f"{name}: done in {time.time() - began:.0f} s")
    run = files.read_run(job.folder)
    for text in (files.answer_of(job.notebook), browse.scorecard(job.folder), run.get("told")):
        if text:
            print(f"\n{text}")
    print(f"\nto open it: lab show {files.shown(job.folder)}")
    return True


@app.command()
def publish(
    notebooks: Annotated[
        list[str] | None, typer.Argument(help="1.4, …; default: all that have a run.")
    ] = None,
):
    """Copy finished runs of a clean commit to results/quick and update the result pages."""
    from lab import publish as pages

    pages.publish([files.notebook_of(name) for name in notebooks or ()])


app.command("list")(browse.lessons)
for command in (browse.show, browse.diff):
    app.command()(command)

if __name__ == "__main__":
    app()
