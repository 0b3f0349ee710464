"""What a run shows: how far it is, a line for each notebook, and why one failed."""

import json
import os
import re
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

from papermill.exceptions import PapermillExecutionError
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lab.engine import batch, runs
from lab.engine.record import File
from lab.language import tr


def run_all(todo, options, again=False):
    """Run the jobs that are not done, showing how far they are. Returns the notebooks that failed.

    With options.fresh all trials run here, and what an interrupted run of that kind finished is skipped. At the
    deadline it ends, though the first notebook begins in any case; `again` executes notebooks that are done from the
    trials that are there.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    finished, failed, left, began = [], [], [], time.time()
    board = Board(console, todo)
    anew = batch.Anew(todo[0].results) if options.fresh and todo else None
    if anew:
        console.print(f"all trials run here: {estimate(todo, options)}")
    for place, job in enumerate(todo, 1):
        name = f"[{place}/{len(todo)}] {job.notebook.stem}"
        reason = why(job, anew, again)
        if reason is None:
            board.say(job, tr("done already"), f"{name}: done already")
            continue
        if options.deadline and time.time() > options.deadline and (finished or failed or left):
            left.append(job)
            continue
        board.say(job, tr("starts"), f"{name}: {reason}")
        start = time.time()
        with (
            tempfile.TemporaryDirectory() as folder,
            board.running(job, Path(folder) / "sweep.json") as watch,
        ):
            try:
                job.run(options.model_copy(update={"progress": Path(folder) / "sweep.json"}), watch)
                error = None
            except Exception as raised:  # a failed notebook does not stop the others
                error = raised
        took = time.time() - start
        if getattr(error, "ename", "") == "OutOfTime":
            left.append(job)
            board.say(job, tr("out of time"), f"{name}: out of time after {took:.0f} s; {error.evalue}")
        elif error:
            failed.append((job, error))
            board.say(job, tr("FAILED after {took:.0f} s", took=took), f"{name}: FAILED after {took:.0f} s")
            console.print(explain(job, error), markup=False)
        else:
            said = f"{name}: done in {took:.0f} s, {runs.shown(job.folder)}"
            board.say(job, tr("done in {took:.0f} s", took=took), said)
            finished.append(job)
            if told := (runs.read_run(job.folder) or {}).get("record", {}).get("told"):
                console.print(f"  {told}", markup=False)
            if anew:
                anew.finish(job)
    board.close()
    for line in at_the_end(finished):
        console.print(line, markup=False)
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
            full = "No space left" in error.evalue  # the number of the error stayed in the kernel
            room = tr("; make room: lab clean --keep 500MB") if full else ""
            return f"cell {error.cell_index + 1}: {error.ename}: {error.evalue}{room}"
        said = re.sub("\x1b\\[[0-9;]*m", "", "\n".join(error.traceback))
        return f"cell {error.cell_index + 1}: {error.ename}: {said}"
    if type(error).__name__ == "DeadKernelError" or "Kernel died" in str(error):  # while it ran, or before it answered
        said = "the kernel died (killed, or out of memory); finished trials are kept, run again to go on"
    else:
        said = f"{type(error).__name__}: {error}"
    return "\n".join([said, *getattr(error, "__notes__", ())]).rstrip()


def at_the_end(finished):
    """Where the results of finished jobs are, what changed against the committed run, and what to open next."""
    if not finished:
        return
    places = dict.fromkeys(runs.shown(job.folder.parent) for job in finished)
    yield tr("Results: {places}", places=", ".join(places))
    told = [line for job in finished if job.name is None for line in changed(job.folder)]
    if told:
        yield tr("Other than in the published run:")
        yield from (f"  {line}" for line in told)
    last = finished[-1]
    here = last.folder == runs.place_of_run("quick", last.notebook.stem)
    yield tr("To look at it: {command}", command=f"lab show {last.notebook.stem if here else last.folder}")


def changed(folder):
    """The verdicts of a run that are not those of the published one, a line each."""
    import pandas as pd

    def words(path):
        table = pd.read_csv(path / "verdicts.csv")
        return dict(zip(table.id, table.verdict, strict=True))

    published = runs.published(folder.parent.name, folder.name)
    if not (published / "verdicts.csv").exists():
        return []
    before, now = words(published), words(folder)
    return [f"{name}: {before[name]} → {word}" for name, word in now.items() if before.get(name, word) != word]


class Board:
    """On a terminal one live table of all notebooks, at most as wide as it; plain lines elsewhere."""

    def __init__(self, console, todo):
        self.console, self.states = console, {job.folder: (job.notebook.stem, tr("to do")) for job in todo}
        self.now = self.live = None
        if console.is_terminal:
            self.live = Live(get_renderable=self.table, console=console, refresh_per_second=2)
            self.live.start()

    def say(self, job, state, line):
        """The state of a notebook in the table; the whole line where there is none."""
        self.states[job.folder] = (job.notebook.stem, state)
        if not self.live:
            self.console.print(line, markup=False)

    @contextmanager
    def running(self, job, file):
        """A function that hears of every cell; the table tells it while the block runs."""
        self.now, name = Running(file), job.notebook.stem
        self.states[job.folder] = (name, self.now)
        try:
            yield self.now.hear
        finally:
            self.now = None

    def table(self):
        """Notebook and state: no line is wrapped, what is too long is cut."""
        shown = Table(box=None, show_header=False, padding=(0, 2, 0, 0), expand=False)
        shown.add_column(no_wrap=True, max_width=26)
        shown.add_column(no_wrap=True, overflow="ellipsis")
        states = list(self.states.values())
        most = max(4, self.console.height - 2)
        if len(states) > most:  # what runs stays in sight
            at = next((i for i, (_, state) in enumerate(states) if isinstance(state, Running)), len(states))
            start = max(0, min(at - most // 2, len(states) - most))
            states = states[start : start + most]
        for name, state in states:
            shown.add_row(Text(name), Text(str(state)))
        return shown

    def close(self):
        if self.live:
            self.live.stop()


class Running:
    """How far a notebook is: its cell, trials done, elapsed, remaining."""

    def __init__(self, file):
        self.file, self.began, self.cell, self.cells, self.sweeps = file, time.time(), 0, 0, {}

    def hear(self, cell, cells):
        self.cell, self.cells = cell, cells

    def __str__(self):
        cell = {"cell": self.cell, "cells": self.cells, "seconds": time.time() - self.began}
        line = tr("cell {cell}/{cells}, {seconds:.0f} s", **cell)
        try:
            sweep = json.loads(self.file.read_text())
        except (OSError, ValueError):
            return line
        first, before = self.sweeps.setdefault(sweep["sweep"], (time.time(), sweep["done"]))
        line += ", " + tr("{done}/{total} trials", done=sweep["done"], total=sweep["total"])
        left = sweep["left"]
        if left is None and sweep["done"] > before:
            left = (time.time() - first) / (sweep["done"] - before) * (sweep["total"] - sweep["done"])
        return line if left is None else f"{line}, " + tr("about {left:.0f} s left", left=left)
