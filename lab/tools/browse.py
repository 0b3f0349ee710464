"""The front page of `lab`, and the commands list and show."""

import re
from pathlib import Path
from typing import Annotated

import typer

from lab.tools.arguments import Profile

WIDEST = 37  # characters of a question, so that a line has 80
FRONT = """Transformer Lab: what a chapter claims, measured.

  lab run 1.4                 Run a lesson, with its figures and answers
  lab show 1.4                Look at what it found, in the browser
  lab run 1.4 -p seeds=10     Change a number
  lab run notebooks/your_own_idea.ipynb   Try an idea of your own

All lessons: lab list. All commands: lab --help"""


def lessons():
    """The lessons: question, minutes of the last run, minutes without the record, and state."""
    from rich.table import Table

    from lab import parameters

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("lesson")
    table.add_column("question", max_width=WIDEST, no_wrap=True)
    table.add_column("minutes", justify="right")
    table.add_column("fresh", justify="right")
    table.add_column("record")
    table.add_column("state")
    for path in parameters.notebooks():
        table.add_row(parameters.exercise_of(path), question(path), *state(path))
    in_columns(table)
    legend = "minutes: of the last run; fresh: minutes without the record"
    typer.echo(legend if table.rows else parameters.ALONE)


def in_columns(table):
    """Print a table as plain text, however wide the terminal is."""
    from rich.console import Console

    Console(width=999, highlight=False, markup=False, emoji=False).print(table)


def question(notebook):
    """The title of a lesson without its number."""
    from lab.claims.report import opening

    title, _ = opening(notebook)
    return re.sub(r"^1\.\d+\s*", "", title)


def state(notebook):
    """Four texts: minutes of the last quick run, minutes without the record, yes or no, and state.

    The third says whether there is a record; the state is run here, published or not run yet.
    """
    from lab import runs
    from lab.trials.store import seconds

    recorded = seconds(runs.project_root() / "results" / "record" / f"{notebook.stem}.jsonl")
    there = "yes" if recorded else "no"
    run = runs.read_run(folder := runs.latest("quick", notebook.stem))
    if run is None:
        return "", f"{recorded / 60:.1f}" if recorded else "", there, "not run yet"
    fresh = recorded or run["core_seconds"]
    published = folder == runs.published("quick", notebook.stem)
    return (
        f"{run['seconds'] / 60:.1f}",
        f"{fresh / 60:.1f}",
        there,
        "published" if published else "run here",
    )


def show(
    lesson: Annotated[str, typer.Argument(help="1.4, 04, 04_head_count, or the folder of a run.")],
    profile: Profile = "quick",
):
    """Open an executed lesson in the browser; the path is printed as well."""
    import webbrowser

    from lab import parameters, runs

    folder = Path(lesson)
    if not (folder / "run.json").exists():
        notebook = parameters.notebook_of(lesson)
        folder = runs.latest(profile, notebook.stem)
        if notebook not in parameters.notebooks():  # its profile is that of its run, if it has one
            there = [runs.place_of_run(each, notebook.stem) for each in (profile, "")]
            folder = next((place for place in there if of_notebook(place, notebook)), there[0])
    if runs.read_run(folder) is None:
        raise parameters.Refused(f"{lesson} has not run at {profile}: use `lab run {lesson}` first")
    page = lesson_page(folder)
    typer.echo(page)
    try:
        opened = webbrowser.open(page.as_uri())
    except webbrowser.Error:
        opened = False
    if not opened:
        typer.echo("no browser opened: open this file in one", err=True)


def of_notebook(folder, notebook):
    """Whether a folder holds a run of a notebook from elsewhere."""
    from lab import runs

    return (runs.read_run(folder) or {}).get("notebook") == str(notebook)


def lesson_page(folder):
    """The path of the executed notebook as an HTML page, results/.shown, which git ignores."""
    import nbformat
    from nbconvert import HTMLExporter

    from lab import runs

    book = nbformat.read(folder / "notebook.ipynb", 4)
    # without parameters of its own, papermill's cell repeats the one above it
    if not (runs.read_run(folder) or {}).get("own_parameters"):
        book.cells = [
            cell
            for cell in book.cells
            if "injected-parameters" not in cell.metadata.get("tags", ())
        ]
    text, _ = HTMLExporter().from_notebook_node(book)  # embed_images closes every <details> at once
    typer.echo("formulas need the network on this page", err=True)
    page = runs.project_root() / "results" / ".shown" / f"{folder.name}.html"
    runs.write_text(page, text)
    return page.resolve()
