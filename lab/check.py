"""`lab run --check`: does this code give the digits of the recorded rows?

Of every file of the record that today's code does not make, the cheapest row of each set of noted
kinds runs here. Where it differs from the record, as between two types of processor, it also runs in
a worktree of the commit that last wrote the record of the notebook. `--accept` gives a file the name
of today's code where all of these rows agree.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import typer

from lab import files, run, trials

AGREE = 1e-6  # largest relative difference of two numbers that agree


def check(jobs, options, accept):
    """Check the record of the notebooks of these jobs; returns whether all rows agree."""
    agreed = True
    with tempfile.TemporaryDirectory(prefix="lab-check-") as place:
        place = Path(place)
        for job in jobs:
            scratch = replace(job, folder=place / "runs" / job.notebook.stem)
            where = {"check": place / "here", "store": place / "store", "progress": place / "sweep"}
            with run.progress(place / "sweep"):
                run.execute(scratch, **options | where | {"anyway": True})
        for job in jobs:
            name = job.notebook.stem
            results = {
                path: json.loads(path.read_text()) for path in (place / "here" / name).glob("*")
            }
            if not results:
                typer.echo(f"{name}: nothing to check")
            elif any(furthest(here, here["recorded"]) > AGREE for here in results.values()):
                before(job.notebook, place)
            for path, here in sorted(results.items()):
                apart = furthest(here, here["recorded"])
                there = place / "there" / name / path.name
                if apart > AGREE and there.exists():
                    apart = furthest(here, json.loads(there.read_text())["rows"])
                trial, rows = path.stem.rpartition("-")[0], len(here["points"])
                typer.echo(f"{name}: {trial}: {rows} rows run again, {in_words(apart)}")
                if apart > AGREE:
                    agreed = False
                elif accept:
                    record = files.project_root() / "results" / "record" / name
                    trials.accept(record, path.name, here)
    return agreed


def furthest(here, rows):
    """The largest relative difference between the rows that ran here and others of these points."""
    return max(trials.apart(here["rows"][name], rows.get(name, "")) for name in here["rows"])


def in_words(apart):
    return "all digits equal" if apart == 0 else f"at most {apart:.2g} apart"


def before(notebook, place):
    """Run the rows that `here` asks for with the commit that last wrote the record of a notebook."""
    root, name = files.project_root(), notebook.stem
    log = ["git", "-C", root, "log", "-1", "--format=%H", "--", f"results/record/{name}"]
    commit = subprocess.run(log, capture_output=True, text=True, check=True).stdout.strip()
    tree = place / commit
    if not tree.exists():
        make = ["git", "-C", root, "worktree", "add", "--quiet", "--detach", tree, commit]
        subprocess.run(make, check=True)
    kernel = {"PYTHONPATH": str(tree), "LAB_PROJECT": str(tree)}
    kernel["LAB_CHECK"] = str(place / "there")
    command = [sys.executable, "-m", "lab.run", "run", name, "--anyway"]
    command += ["--results", str(place / "before")]
    try:
        subprocess.run(command, cwd=tree, env=os.environ | kernel, stdout=subprocess.DEVNULL)
    finally:
        remove = ["git", "-C", root, "worktree", "remove", "--force", tree]
        subprocess.run(remove, check=True)
