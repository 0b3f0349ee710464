"""What a run shows: how far it is, a line for each notebook, and why one failed."""

import json
import os
import re
import tempfile
import time
from pathlib import Path

from papermill.exceptions import PapermillExecutionError
from rich.console import Console
from rich.live import Live

from lab.engine import batch, runs
from lab.engine.record import File


def run_all(todo, options, again=False):
    """Run the jobs that are not done, showing how far they are. Returns the notebooks that failed.

    With options.fresh all trials run here, and what an interrupted run of that kind finished is skipped. At the
    deadline it ends; `again` executes notebooks that are done from the trials that are there.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    failed, left, began = [], [], time.time()
    anew = batch.Anew(todo[0].results) if options.fresh and todo else None
    if anew:
        console.print(f"all trials run here: {estimate(todo, options)}")
    for place, job in enumerate(todo, 1):
        name = f"[{place}/{len(todo)}] {job.notebook.stem}"
        reason = why(job, anew, again)
        if reason is None:
            console.print(f"{name}: done already")
            continue
        if options.deadline and time.time() > options.deadline:
            left.append(job)
            continue
        console.print(f"{name}: {reason}", markup=False)
        start = time.time()
        with (
            tempfile.TemporaryDirectory() as folder,
            progress_line(console, name, Path(folder) / "sweep.json") as watch,
        ):
            try:
                job.run(options.model_copy(update={"progress": Path(folder) / "sweep.json"}), watch)
                error = None
            except Exception as raised:  # a failed notebook does not stop the others
                error = raised
        took = time.time() - start
        if getattr(error, "ename", "") == "OutOfTime":
            left.append(job)
            console.print(f"{name}: out of time after {took:.0f} s; {error.evalue}", markup=False)
        elif error:
            failed.append((job, error))
            console.print(f"{name}: FAILED after {took:.0f} s")
            console.print(explain(job, error), markup=False)
        else:
            console.print(f"{name}: done in {took:.0f} s, {runs.shown(job.folder)}", markup=False)
            if told := (runs.read_run(job.folder) or {}).get("record", {}).get("told"):
                console.print(f"  {told}", markup=False)
            if anew:
                anew.finish(job)
    if left:
        console.print(f"{len(left)} notebooks are left; the same command goes on from here")
    elif anew and not failed:
        anew.close()
    if failed:
        names = ", ".join(job.notebook.stem for job, _ in failed)
        console.print(f"{len(failed)} of {len(todo)} failed ({names}) in {time.time() - began:.0f} s")
    return failed


def why(job, anew, again):
    """Why a notebook runs, in words, or None where it is done."""
    if anew:
        return None if anew.done(job) else "anew"
    return "again, as asked" if again else job.to_do()


def estimate(todo, options):
    """How long the recorded trials of these notebooks took, in words."""
    files = [File(folder / f"{job.notebook.stem}.jsonl") for job in todo for folder in options.record]
    seconds = sum(body["seconds"] for file in files for body in file.trials)
    cores = options.jobs or os.cpu_count() or 1
    lacking = sum(not file.trials for file in files)
    said = f"about {seconds / cores / 60:.0f} minutes on {cores} cores by the record"
    return said + (f", and {lacking} notebooks of which it tells nothing" if lacking else "")


SAID_IN_WORDS = (
    "TrialsFailed",
    "NotRecorded",
    "ConnectionError",
    "OSError",
    "PermissionError",
)  # a traceback would add nothing


def explain(job, error):
    """What went wrong in which cell; a dead kernel is named as such."""
    if isinstance(error, PapermillExecutionError):
        if error.ename in SAID_IN_WORDS:
            return f"cell {error.cell_index + 1}: {error.ename}: {error.evalue}"
        said = re.sub("\x1b\\[[0-9;]*m", "", "\n".join(error.traceback))
        return f"cell {error.cell_index + 1}: {error.ename}: {said}"
    if type(error).__name__ == "DeadKernelError" or "Kernel died" in str(error):  # while it ran, or before it answered
        said = "the kernel died (killed, or out of memory); finished trials are kept, run again to go on"
    else:
        said = f"{type(error).__name__}: {error}"
    return "\n".join([said, *getattr(error, "__notes__", ())]).rstrip()


class progress_line:
    """A live line on a terminal, a plain line for every cell elsewhere: cell, trials done, elapsed, remaining."""

    def __init__(self, console, name, file):
        self.console, self.name, self.file = console, name, file
        self.began, self.cell, self.cells = time.time(), 0, 0
        self.sweep_began = {}

    def __enter__(self):
        self.live = Live(get_renderable=self.text, console=self.console, refresh_per_second=2, transient=True)
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_):
        if self.console.is_terminal:
            self.live.stop()

    def __call__(self, cell, cells):
        self.cell, self.cells = cell, cells

    def text(self):
        elapsed = time.time() - self.began
        line = f"{self.name}: cell {self.cell}/{self.cells}, {elapsed:.0f} s"
        try:
            sweep = json.loads(self.file.read_text())
        except (OSError, ValueError):
            return line
        first, done_first = self.sweep_began.setdefault(sweep["sweep"], (time.time(), sweep["done"]))
        line += f", {sweep['sweep']} {sweep['done']}/{sweep['total']} trials"
        line += f" on {sweep['workers']} workers" if sweep["workers"] > 1 else ""
        if sweep["left"] is not None:
            return line + f", about {sweep['left']:.0f} s left"
        if sweep["done"] > done_first:
            rate = (time.time() - first) / (sweep["done"] - done_first)
            line += f", about {rate * (sweep['total'] - sweep['done']):.0f} s left"
        return line
