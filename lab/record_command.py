"""The command record: it puts trials under git, accepts changes of code, and reports what is stale."""

import os
from typing import Annotated

import typer

Lessons = Annotated[
    list[str] | None, typer.Argument(help="1.4, 04 or 04_head_count; none: all that there are.")
]


def record(
    notebooks: Lessons = None,
    status: Annotated[
        bool, typer.Option("--status", help="What is stale, and what it takes; nothing runs.")
    ] = False,
    accept: Annotated[
        str, typer.Option(metavar="WHY", help="Keep stale rows where no digit moves.")
    ] = "",
    strict: Annotated[
        bool, typer.Option("--strict", help="With --status: exit 1 where something is stale.")
    ] = False,
):
    """Write the trials of finished runs, made by a clean commit, to results/record."""
    from lab import files
    from lab.trials import record as trials

    root = files.project_root() / "results"
    chosen = [files.notebook_of(name) for name in notebooks or []]
    if status:
        raise typer.Exit(1 if told(chosen or files.notebooks()) and strict else 0)
    recorded = [path for path in files.notebooks() if record_of(path).exists()]
    if accept:
        chosen = [path for path in chosen or recorded if path in recorded]
        raise typer.Exit(1 if any([accepted(notebook, accept) for notebook in chosen]) else 0)
    chosen = chosen or recorded
    for notebook in chosen:
        finished = root / "runs" / "quick" / notebook.stem
        stored = root / ".trials" / f"{notebook.stem}.jsonl"
        found = trials.record_run(notebook, finished, stored, record_of(notebook), data_hash())
        said = ", ".join(f"{n} {what}" for what, n in found.items() if n) or "no trials"
        typer.echo(f"{notebook.stem}: {said}")


def record_of(notebook):
    """The path of a notebook's record."""
    from lab.files import project_root

    return project_root() / "results" / "record" / f"{notebook.stem}.jsonl"


def data_hash():
    """A function that returns the present hash of a data source or file from its name."""
    from functools import lru_cache

    from lab.files import project_root
    from lab.study import DATA
    from lab.trials.sweep import Sources

    return lru_cache(Sources("", store=project_root(), data=DATA, root=project_root()).data_hash)


def accepted(notebook, why):
    """Accept stale rows of a notebook's record whose digits agree; returns the faults of others."""
    from lab.trials import record as trials

    about = {"data_hash": data_hash(), "jobs": os.cpu_count() or 1, "report": typer.echo}
    counted, faults = trials.accept(notebook, record_of(notebook), why, **about)
    said = ", ".join(f"{n} rows of {name} accepted" for name, n in counted.items())
    typer.echo(
        f"{notebook.stem}: {said or ('nothing is accepted' if faults else 'nothing is stale')}"
    )
    for fault in faults:
        typer.echo(f"{notebook.stem}: stays stale: {fault}", err=True)
    return faults


# Status


def status_of(notebook, data):
    """(statuses, run, changes) of a notebook.

    These are a [Status] of its recorded trials, its committed run or None, and what has changed
    since that run, a list of texts.
    """
    from lab import files
    from lab.claims import claims
    from lab.trials import cells, status
    from lab.trials.store import File

    run = files.read_run(files.project_root() / "results" / "quick" / notebook.stem)
    trials = (run or {}).get("record", {}).get("trials", {})
    now = {"ledger": claims.ledger_hash(notebook), "cells": cells.hash_of(notebook)}
    file = File(record_of(notebook))
    with status.of_record(notebook, file.trials, file.accepted, data, trials) as (_, found):
        return found, run, status.changes_of_run(run, found, data, **now) if run else []


def is_older(changes):
    """Whether `changes` of a committed run hold more than other claims."""
    from lab.trials.status import OTHER_CLAIMS

    return bool({*changes} - {OTHER_CLAIMS})


def told(notebooks):
    """Print the status of the notebooks' records and committed runs.

    Returns whether any row is stale or any run older.
    """
    from lab.trials.status import shortened

    data, totals = data_hash(), [0, 0, 0, 0, 0]
    typer.echo(f"{'':28}{'fresh':>6}{'accepted':>9}{'stale':>6}{'minutes':>8}  committed run")
    for notebook in notebooks:
        found, run, changes = status_of(notebook, data)
        fresh, accepted_, stale = (
            sum(len(getattr(each, kind)) for each in found)
            for kind in ("fresh", "accepted", "stale")
        )
        minutes = sum(body["seconds"] for each in found for body in each.stale) / 60
        row = f"{notebook.stem:28}{fresh:6}{accepted_:9}{stale:6}{minutes:8.1f}"
        typer.echo(f"{row}  {words_of(run, changes)}")
        if changed := sorted({name for each in found for name in each.changed()}):
            typer.echo(f"{'':28}changed: {shortened(changed)}")
        row = fresh, accepted_, stale, minutes, is_older(changes)
        totals = [total + one for total, one in zip(totals, row, strict=True)]
    fresh, accepted_, stale, minutes, older_runs = totals
    typer.echo(
        f"record: {fresh} rows fresh, {accepted_} accepted, {stale} stale "
        f"({minutes:.0f} minutes of one core to run anew); "
        f"{older_runs} committed runs by older code"
    )
    return stale or older_runs


def words_of(run, changes):
    """The commit of a committed run, and the changes since, in words."""
    if run is None:
        return "none"
    from lab import files

    commit = run.get("commit", "")
    here = "" if files.is_here(commit) else ", which is not here"
    return "; ".join([f"by commit {commit[:8]}{here}" if commit else "by no commit", *changes])
