"""The output of `lab run`: progress, a line for each notebook, and why one failed."""

import re
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from papermill.exceptions import PapermillExecutionError
from rich.console import Console
from rich.text import Text

from lab import runs
from lab.claims import cards, claims, report
from lab.parameters import exercise_of
from lab.tools.browse import question

OFTEN = 30  # seconds between two lines of progress in a log
NO_TRACEBACK = (
    "TrialsFailed",
    "ConnectionError",
    "OSError",
    "PermissionError",
)  # errors whose message is enough


def run_all(todo, options, again=False):
    """Run the jobs that are not done, showing progress; returns [(job, error)] of the failed ones.

    With options.fresh, a run with trials from the record is not done. `again` executes also
    notebooks that are done, from their stored trials.
    """
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    finished, failed, began = [], [], time.time()
    if options.fresh:
        console.print("`lab list` has the minutes that each lesson takes without the record")
    for place, job in enumerate(todo, 1):
        name = f"[{place}/{len(todo)}] {job.notebook.stem}"
        reason = "again, as asked" if again else job.to_do(options.fresh)
        if reason is None:
            console.print(f"{name}: done already")
            continue
        console.print(f"{name}: {reason}")
        start = time.time()
        error = run_one(job, options, console)
        took = time.time() - start
        if error:
            failed.append((job, error))
            console.print(f"{name}: FAILED after {took:.0f} s")
            console.print(explain(job, error))
            continue
        finished.append(job)
        console.print(f"{name}: done in {took:.0f} s, {runs.shown(job.folder)}")
        if told := (runs.read_run(job.folder) or {}).get("record", {}).get("told"):
            console.print(f"  {told}")
    for told in at_the_end(finished):
        console.print(told)
    if failed:
        names = ", ".join(job.notebook.stem for job, _ in failed)
        console.print(
            f"{len(failed)} of {len(todo)} failed ({names}) in {time.time() - began:.0f} s"
        )
    return failed


def run_one(job, options, console):
    """Run one notebook, showing progress; returns the error that it failed with, or None."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.txt"
        now = Running(job.notebook.stem, file)
        with shown(console, now):
            try:
                job.run(options.model_copy(update={"progress": file}), now.hear)
            except Exception as error:  # a failed notebook does not stop the others
                return error
    return None


def explain(job, error):
    """The cell and the error of a failed job, in words."""
    if isinstance(error, PapermillExecutionError):
        if error.ename in NO_TRACEBACK:
            full = "No space left" in error.evalue  # errno stayed in the kernel
            room = "; make room: delete results/.trials" if full else ""
            return f"cell {error.cell_index + 1}: {error.ename}: {error.evalue}{room}"
        if not error.traceback:  # a magic failed
            first = error.source.strip().partition("\n")[0]
            return f"cell {error.cell_index + 1}: {first}: {error.evalue or 'failed'}"
        said = re.sub("\x1b\\[[0-9;]*m", "", "\n".join(error.traceback))
        return f"cell {error.cell_index + 1}: {error.ename}: {said}"
    # a kernel dies while a cell runs, or before it answers
    if type(error).__name__ == "DeadKernelError" or "Kernel died" in str(error):
        said = (
            "the kernel died (killed, or out of memory); "
            "finished trials are kept, run again to go on"
        )
    else:
        said = f"{type(error).__name__}: {error}"
    return "\n".join([said, *getattr(error, "__notes__", ())]).rstrip()


def at_the_end(finished):
    """Yield the lines on what the finished jobs found, where it is, and how to open it.

    A single job shows all its claims; several jobs show the claims whose label differs from that in
    the published run.
    """
    for job in finished:
        table, before, by_id = claims.read_verdicts(job.folder), published(job), ledger_of(job)
        yield cards.in_one(title(job), report.label_counts(table))
        shown = ""
        for row in claims.by_part(table).itertuples():
            was = before.get((row.id, row.part), row.label)
            if len(finished) == 1 or was != row.label:
                yield cards.in_text(by_id.get(row.id), row, was, again=row.id == shown)
                shown = row.id
    if finished:
        places = dict.fromkeys(
            runs.shown(job.folder if len(finished) == 1 else job.folder.parent) for job in finished
        )
        yield f"Executed notebook, tables and figures: {', '.join(places)}"
        yield f"To look at it: lab show {address(finished[-1])}"


def title(job):
    """The number and question of a notebook; the stem of one that is not the project's."""
    if job.foreign:
        return job.notebook.stem
    return f"{exercise_of(job.notebook)} {question(job.notebook)}"


def ledger_of(job):
    """All claims by id, with those of a ledger that has the name and folder of the notebook."""
    by_id, beside = claims.known(), job.notebook.with_suffix(".yaml")
    if job.foreign and beside.exists():
        with suppress(ValueError):  # the file is no ledger
            by_id = by_id | claims.own_ledger(beside)
    return by_id


def address(job):
    """The arguments of `lab show` that open a run."""
    if not job.usual or job.results != runs.project_root() / "results":
        here = Path.cwd()
        return str(job.folder.relative_to(here) if job.folder.is_relative_to(here) else job.folder)
    profile = "" if job.profile == "quick" else f" --profile {job.profile}"
    return exercise_of(job.notebook) + profile


def published(job):
    """{(claim, part): label} of the published run of the same lesson; {} where there is none."""
    if not job.usual:
        return {}
    table = claims.read_verdicts(runs.published(job.profile, job.notebook.stem))
    return {(row.id, row.part): row.label for row in table.itertuples()}


@contextmanager
def shown(console, now, often=OFTEN):
    """Show the progress `now`, a Running, during the block.

    A terminal shows it in place; elsewhere a line is printed every `often` seconds.
    """
    if console.is_terminal:
        with console.status(now, refresh_per_second=2):
            yield
        return
    over = threading.Event()

    def tell():
        while not over.wait(often):
            console.print(f"  {now}", markup=False)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


class Running:
    """The progress of a notebook: its cell, seconds, and the bar of the sweep that runs in it."""

    def __init__(self, name, file):
        self.name, self.file, self.began = name, file, time.time()
        self.cell, self.cells = 0, 0

    def hear(self, cell, cells):
        self.cell, self.cells = cell, cells

    def __rich__(self):
        return Text(str(self))

    def __str__(self):
        seconds = time.time() - self.began
        line = f"{self.name}: cell {self.cell}/{self.cells}, {seconds:.0f} s"
        with suppress(OSError):
            if sweep := self.file.read_text("utf-8"):
                line += f", {sweep}"
        return line
