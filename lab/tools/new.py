"""The command `lab new`: it writes a notebook that runs at once, and the ledger of its claims."""

from pathlib import Path
from typing import Annotated

import typer

from lab.language import tr, using
from lab.tools.arguments import refuse
from lab.tools.browse import speaks

TEMPLATES = Path(__file__).parents[1] / "own"  # notebook.ipynb in both languages, and ledger.yaml


def new(
    name: Annotated[str, typer.Argument(help="Such as mine, or ideas/mine: the folder is made.")],
    language: Annotated[
        str, typer.Option(envvar="LAB_LANGUAGE", help="Of its prose: en or zh.")
    ] = "en",
):
    """Make NAME.ipynb (parameters, question, experiment, card) and NAME.yaml, its claims.

    The notebook runs as it is.
    """
    import re

    path = Path(name).expanduser().resolve()
    path = path.with_suffix("") if path.suffix in (".ipynb", ".yaml") else path
    slug = re.sub(r"[^a-z0-9]+", "-", path.name.lower()).strip("-")
    speaks(language)
    if not slug:
        refuse(f"{name!r}: a name needs an ASCII letter or digit")
    files = [path.with_name(f"{path.name}.ipynb"), path.with_name(f"{path.name}.yaml")]
    if there := [str(file) for file in files if file.exists()]:
        refuse(f"{' and '.join(there)} already exists: choose another name")
    with using(language):
        write(files, path.name, slug)
    typer.echo("\n".join(map(str, files)))
    typer.echo(f"to run it: lab run {files[0]}, or open it in JupyterLab")


def write(files, name, slug):
    """Write the notebook and the ledger from the templates, in the language in use."""
    import json

    import nbformat

    from lab.language import language, translated
    from lab.trials.runs import write_text

    claim = tr("My encoding still copies at twice the length where rotary does not.")
    ledger = (TEMPLATES / "ledger.yaml").read_text("utf-8")
    write_text(files[1], ledger.replace("NAME", name).replace("SLUG", slug).replace("CLAIM", claim))
    book = translated(nbformat.read(TEMPLATES / "notebook.ipynb", 4), language(), alone=True)
    home = json.dumps(str(files[0].parent))
    for cell in book.cells:
        cell.source = (
            cell.source.replace("NAME", name).replace("SLUG", slug).replace('"HOME"', home)
        )
    write_text(files[0], nbformat.writes(book) + "\n")
