"""`lab run --check`: does the current code reproduce the recorded rows?

A recorded line is outdated if its code, or a kind or data that it used, has changed. In each record
file with outdated lines, the current code reruns one point for each set of kinds and data that
these lines used: the point that took the least time. Timings are skipped. If the rows differ from
the record, as they may on another type of processor, the same points are also rerun at the commit
that last wrote the record, in a git worktree, and compared again.

With `--accept`, a record file whose rerun rows all agree gets the hash of the current code.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import typer

from lab import files, runs, trials

TOLERANCE = 1e-6  # relative


def check(jobs, options, accept):
    """Check the record of each job's notebook. Returns whether all rows agree."""
    agreed = True
    with tempfile.TemporaryDirectory(prefix="lab-check-") as place:
        place = Path(place)
        for job in jobs:
            scratch = replace(job, folder=place / "runs" / job.notebook.stem)
            where = {"check": place / "here", "store": place / "store"}
            runs.execute(scratch, **options | where | {"anyway": True})
        for job in jobs:
            name = job.notebook.stem
            results = {
                path: json.loads(path.read_text()) for path in (place / "here" / name).glob("*")
            }
            if not results:
                typer.echo(f"{name}: nothing to check")
            elif any(
                trials.difference(r["rows"], r["recorded"]) > TOLERANCE for r in results.values()
            ):
                run_recorded_commit(job.notebook, place)
            for path, here in sorted(results.items()):
                difference = trials.difference(here["rows"], here["recorded"])
                there = place / "there" / name / path.name
                if difference > TOLERANCE and there.exists():
                    rerun = json.loads(there.read_text())["rows"]
                    difference = trials.difference(here["rows"], rerun)
                trial, rows = path.stem.rpartition("-")[0], len(here["points"])
                typer.echo(
                    f"{name}: {trial}: {rows} rows rerun, "
                    f"largest relative difference {difference:.2g}"
                )
                if difference > TOLERANCE:
                    agreed = False
                elif accept:
                    record = files.project_root() / "results" / "record" / name
                    trials.accept(record, path.name, here)
    return agreed


def run_recorded_commit(notebook, place):
    """Rerun the points of the files in place/here at the commit that last wrote the record."""
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
