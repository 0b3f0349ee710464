"""`lab run --check`: does the current code reproduce the recorded rows?

For each record file of older code, the cheapest row of every set of dependencies runs twice on this
machine: with the current code, and in a git worktree of the commit that last wrote the notebook's
record. `--accept` moves a file to the key of the current code if all of these rows agree.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import typer

from lab import files, run

TOLERANCE = 1e-6  # relative


def check(jobs, options, accept):
    """Check the records of the jobs' notebooks; returns whether all rows agree."""
    from lab import trials  # slow import

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
            paths = sorted((place / "here" / name).glob("*.jsonl"))
            if not paths:
                typer.echo(f"{name}: nothing to check")
                continue
            run_recorded_commit(job.notebook, place)
            for path in paths:
                here = json.loads(path.read_text())
                there = place / "there" / name / path.name
                difference = largest_difference(here, there, trials.max_difference)
                trial, rows = path.stem.rpartition("-")[0], len(here["points"])
                typer.echo(f"{name}: {trial}: {rows} rows rerun, {describe(difference)}")
                if difference is None or difference > TOLERANCE:
                    agreed = False
                elif accept:
                    record = files.project_root() / "results" / "record" / name
                    trials.accept(record, path.name, here)
    return agreed


def largest_difference(here, path, max_difference):
    """The largest relative difference to the rows in `path`; None if there is no such file."""
    if not path.exists():
        return None
    there = json.loads(path.read_text())["rows"]
    return max(max_difference(here["rows"][name], there.get(name, "")) for name in here["rows"])


def describe(difference):
    if difference is None:
        return "but the commit that recorded them does not define this trial"
    return "identical" if difference == 0 else f"largest relative difference {difference:.2g}"


def run_recorded_commit(notebook, place):
    """Run the points listed in `here` with the commit that last wrote the notebook's record."""
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
