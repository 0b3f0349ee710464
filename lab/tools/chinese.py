"""The command `lab zh`: notebooks for JupyterLab that show Chinese and fold the English."""

from pathlib import Path
from typing import Annotated

import typer

from lab.language import sides, translated
from lab.tools.arguments import Lessons

MADE = "lab_made"  # key of the metadata that holds the hash of what was written


def zh(
    notebooks: Lessons = None,
    to: Annotated[Path | None, typer.Option(help="The folder for them; else notebooks/zh.")] = None,
):
    """Write copies of notebooks with Chinese first and English folded; edited copies are kept."""
    from lab.trials import parameters, runs

    folder = to or runs.project_root() / "notebooks" / "zh"
    chosen = [parameters.notebook_of(name) for name in notebooks or []] or parameters.notebooks()
    for edited in write(chosen, folder):
        typer.echo(f"{runs.shown(edited)} was edited here and stays as it is")
    typer.echo(runs.shown(folder))


def write(notebooks, folder):
    """Write Chinese copies of the notebooks that hold both languages.

    Returns the paths of the copies that were edited, which are left as they are.
    """
    import nbformat

    from lab.trials import runs

    edited = []
    for notebook in notebooks:
        book, path = nbformat.read(notebook, 4), folder / notebook.name
        if not any(sides(cell.source)[1] for cell in book.cells if cell.cell_type == "markdown"):
            continue
        book = translated(book, "zh")
        book.metadata[MADE] = hash_of(book)
        there = nbformat.read(path, 4) if path.exists() else None
        if there and there.metadata.get(MADE) != hash_of(there):
            edited.append(path)
        elif not there or hash_of(there) != hash_of(book):  # else its outputs stay
            runs.write_text(path, nbformat.writes(book))
    return edited


def hash_of(book):
    """The hash of the sources of all cells."""
    from lab.trials import runs

    return runs.text_hash("\0".join(cell.source for cell in book.cells))
