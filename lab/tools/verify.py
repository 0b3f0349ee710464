"""The command verify: it runs recorded trials again here."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from lab.tools.arguments import Lessons


def verify(
    notebooks: Lessons = None,
    minutes: Annotated[
        float, typer.Option(min=0, help="How long; a training that has begun may be cut off.")
    ] = 2,
    record: Annotated[
        Path | None, typer.Option(help="Folder of recorded trials; the project's by default.")
    ] = None,
):
    """Run recorded trials again here, each time others; exit 1 where one differs."""
    from lab.tools.record import data_hash
    from lab.trials import parameters, runs
    from lab.trials import verify as trials

    results = runs.project_root() / "results"
    folder = record or results / "record"
    chosen = [parameters.notebook_of(name) for name in notebooks or []] or parameters.notebooks()
    pairs = [(notebook, folder / f"{notebook.stem}.jsonl") for notebook in chosen]
    there = [pair for pair in pairs if pair[1].exists()]
    if not there:
        raise parameters.Refused(
            f"{folder} holds no record of {', '.join(notebook.stem for notebook in chosen)}"
        )
    cursor = results / ".verified"
    found = trials.verify(
        there, 60 * minutes, cursor, data_hash=data_hash(), report=lambda one: typer.echo(one)
    )
    counts = Counter("DIFFERS" if result.differs else result.found for result in found)
    typer.echo(
        ", ".join(f"{n} {word}" for word, n in counts.items()) or "no recorded trial counts today"
    )
    raise typer.Exit(1 if counts["DIFFERS"] else 0)
