"""The front page of `lab`, and the commands list and show."""

import re
from pathlib import Path
from typing import Annotated

import typer

from lab.language import in_language, tr, using
from lab.tools.arguments import refuse

WIDEST = 37  # characters of a question, so that a line has 80
Language = Annotated[str, typer.Option(envvar="LAB_LANGUAGE", help="en or zh.")]


def front():
    """The text of `lab` without a command: five things to do, each with an example."""
    rows = [
        (tr("Run a lesson, with its figures and verdicts"), "lab run 1.4"),
        (tr("Look at what it found, in the browser"), "lab show 1.4"),
        (tr("Change a number and set the runs side by side"), "lab run 1.4 -p seeds=10"),
        (tr("Try an idea of your own, judged"), "lab new mine"),
        (tr("Read everything as a book"), "lab book --open"),
    ]
    width = max(len(command) for _, command in rows)
    lines = [f"  {command.ljust(width)}   {said}" for said, command in rows]
    more = tr(
        "All lessons: lab list. All commands: lab --help. Is all here that is needed? lab doctor"
    )
    return "\n".join(
        [tr("Transformer Lab: what a chapter claims, measured."), "", *lines, "", more]
    )


def lessons(language: Language = "en"):
    """The lessons: question, minutes of the last run, minutes without the record, and state."""
    from rich.table import Table

    from lab.trials import parameters

    speaks(language)
    with using(language):
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column(tr("lesson"))
        table.add_column(tr("question"), max_width=WIDEST, no_wrap=True)
        table.add_column(tr("minutes"), justify="right")
        table.add_column(tr("fresh"), justify="right")
        table.add_column(tr("record"))
        table.add_column(tr("state"))
        for path in parameters.notebooks():
            table.add_row(parameters.exercise_of(path), question(path), *state(path))
        legend = tr("minutes: of the last run; fresh: minutes without the record")
    in_columns(table)
    typer.echo(legend if table.rows else parameters.ALONE)


def in_columns(table):
    """Print a table as plain text, however wide the terminal is."""
    from rich.console import Console

    Console(width=999, highlight=False, markup=False, emoji=False).print(table)


def speaks(language):
    """Exit with status 2 where the package does not have the language."""
    from lab.language import languages

    if language not in languages():
        refuse(f"--language {language!r}: one of {', '.join(languages())}")


def question(notebook):
    """The title of a lesson without its number, in the language in use."""
    from lab.claims.report import opening

    title, _ = opening(notebook)
    return re.sub(r"^1\.\d+\s*", "", title)


def state(notebook):
    """Four texts: minutes of the last quick run, minutes without the record, ✓ or –, and state.

    The mark says whether there is a record; the state is run here, published or not run yet.
    """
    from lab.trials import runs
    from lab.trials.store import seconds

    recorded = seconds(runs.project_root() / "results" / "record" / f"{notebook.stem}.jsonl")
    there = "✓" if recorded else "–"
    run = runs.read_run(folder := runs.latest("quick", notebook.stem))
    if run is None:
        return "", f"{recorded / 60:.1f}" if recorded else "", there, tr("not run yet")
    fresh = recorded or run["core_seconds"]
    published = folder == runs.published("quick", notebook.stem)
    return (
        f"{run['seconds'] / 60:.1f}",
        f"{fresh / 60:.1f}",
        there,
        tr("published") if published else tr("run here"),
    )


def show(
    lesson: Annotated[str, typer.Argument(help="1.4, 04, 04_head_count, or the folder of a run.")],
    figures: Annotated[bool, typer.Option("--figures", help="Only its figures.")] = False,
    profile: Annotated[str, typer.Option(help="Of the run: smoke, quick or full.")] = "quick",
    language: Language = "en",
):
    """Open an executed lesson, or its figures, in the browser; the path is printed as well."""
    import webbrowser

    from lab.trials import parameters, runs

    speaks(language)
    folder = Path(lesson)
    if not (folder / "run.json").exists():
        notebook = parameters.notebook_of(lesson)
        folder = runs.latest(profile, notebook.stem)
        if notebook not in parameters.notebooks():  # its profile is that of its run, if it has one
            there = [runs.place_of_run(each, notebook.stem) for each in (profile, "")]
            folder = next((place for place in there if of_notebook(place, notebook)), there[0])
    if runs.read_run(folder) is None:
        raise parameters.Refused(f"{lesson} has not run at {profile}: use `lab run {lesson}` first")
    with using(language):
        if figures or not (folder / "notebook.ipynb").exists():
            page = figures_page(folder)
        else:
            page = lesson_page(folder)
    typer.echo(page)
    try:
        opened = webbrowser.open(page.as_uri())
    except webbrowser.Error:
        opened = False
    if not opened:
        typer.echo(tr("no browser opened: open this file in one"), err=True)


def of_notebook(folder, notebook):
    """Whether a folder holds a run of a notebook from elsewhere."""
    from lab.trials import runs

    return (runs.read_run(folder) or {}).get("notebook") == str(notebook)


def lesson_page(folder):
    """The path of the executed notebook as an HTML page.

    It is the page of the book, where that is newer than the run, else a page written now.
    """
    from lab.trials import runs

    built = runs.project_root() / "results" / "book" / "exercises" / f"{folder.name}.html"
    source = folder / "notebook.ipynb"
    if (
        built.exists()
        and built.stat().st_mtime >= source.stat().st_mtime
        and folder.parent.name == "quick"
    ):
        return built
    import nbformat
    from nbconvert import HTMLExporter

    book = nbformat.read(source, 4)
    # without parameters of its own, papermill's cell repeats the one above it
    if not (runs.read_run(folder) or {}).get("own_parameters"):
        book.cells = [
            cell
            for cell in book.cells
            if "injected-parameters" not in cell.metadata.get("tags", ())
        ]
    text, _ = HTMLExporter().from_notebook_node(book)  # embed_images closes every <details> at once
    typer.echo(
        tr("formulas need the network on this page; the pages of `lab book` need none"), err=True
    )
    return written(folder, "lesson", text)


def figures_page(folder):
    """The path of a page with all figures of a run and their captions."""
    import html

    from lab.figures import captions_in

    parts = []
    for path in sorted((folder / "figures").glob("*.png")):
        caption = html.escape(in_language(*captions_in(path)) or path.stem)
        image = f'<img src="{path.resolve().as_uri()}" alt="{caption}">'
        parts.append(f"<figure>{image}<figcaption>{caption}</figcaption></figure>")
    title = html.escape(tr("Figures of {name}", name=folder.name))
    head = f'<meta charset="utf-8"><title>{title}</title>'
    body = f'<body style="font-family: sans-serif; margin: 2em"><h1>{title}</h1>'
    return written(folder, "figures", "\n".join(["<!doctype html>", head, body, *parts]))


def written(folder, name, text):
    """The path of the page, written to results/.shown, which git ignores."""
    from lab.trials import runs

    page = runs.project_root() / "results" / ".shown" / f"{folder.name}-{name}.html"
    runs.write_text(page, text)
    return page.resolve()
