"""Arguments of the command line: their types, and functions that read or refuse them."""

from pathlib import Path
from typing import Annotated

import typer

# Arguments and options of several commands.
Notebooks = Annotated[
    list[str] | None,
    typer.Argument(help="1.4, 04, 04_head_count or path/to/mine.ipynb; none: all exercises."),
]
Lessons = Annotated[
    list[str] | None, typer.Argument(help="1.4, 04 or 04_head_count; none: all that there are.")
]
Profile = Annotated[str, typer.Option(help="smoke or quick.")]
Jobs = Annotated[int, typer.Option(min=0, help="Trials at once; 0: one a core.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Cluster = Annotated[str, typer.Option(help="A Dask scheduler, such as tcp://host:8786.")]
Parameters = Annotated[
    list[str] | None, typer.Option("-p", metavar="NAME=VALUE", help="A parameter; may be repeated.")
]


def refuse(error):
    """Print the error and exit with status 2."""
    typer.echo(f"lab: {error}", err=True)
    raise typer.Exit(2)


def assignments(items):
    """{name: value} of the items NAME=VALUE, each value read by `read_value`.

    Raises Refused where an item has another form or a name is given twice.
    """
    from lab.parameters import Refused, read_value

    values = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals:
            raise Refused(f"-p {item!r}: write NAME=VALUE")
        if name in values:
            raise Refused(f"-p {item!r}: {name} is given twice")
        values[name] = read_value(text)
    return values


def place_of(text):
    """The folder that `--results` names. Raises Refused where the text is no path."""
    from lab.parameters import Refused

    if not text.strip() or "\0" in text:
        raise Refused(f"--results {text!r}: name a folder")
    return Path(text).expanduser().resolve()


def check_device(wanted):
    """Raise ValueError where this machine lacks the device."""
    if wanted not in ("auto", "cpu"):  # else torch need not be imported
        from lab.device import available

        available(wanted)
