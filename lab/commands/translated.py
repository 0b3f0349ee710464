"""Notebooks in another language than English, to be opened in JupyterLab: `python -m lab.commands.translated zh`.

They stand in notebooks/LANGUAGE, made from the notebooks and their catalogues; what was edited there stays as it is.
"""

import sys

import nbformat

from lab.engine import parameters, runs
from lab.language import catalogue, translated

MADE = "lab_made"  # metadata: the hash of what was written


def write(language, folder=None):
    """Write the translated notebooks to `folder`; returns the paths of those that were left since they were edited."""
    folder, edited = folder or runs.project_root() / "notebooks" / language, []
    for notebook in parameters.notebooks():
        if not catalogue(language, notebook).exists():
            continue
        book, path = translated(nbformat.read(notebook, 4), notebook, language), folder / notebook.name
        book.metadata[MADE] = hash_of(book)
        there = nbformat.read(path, 4) if path.exists() else None
        if there and there.metadata.get(MADE) != hash_of(there):
            edited.append(path)
        elif not there or hash_of(there) != hash_of(book):  # else its outputs stay
            runs.write_text(path, nbformat.writes(book))
    return edited


def hash_of(book):
    """Of the sources of all cells."""
    return runs.text_hash("\0".join(cell.source for cell in book.cells))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("python -m lab.commands.translated LANGUAGE")
    for left in write(sys.argv[1]) if sys.argv[1] != "en" else ():
        print(f"{runs.shown(left)} was edited here and stays as it is")
