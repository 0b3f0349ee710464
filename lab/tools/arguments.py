"""What is given on the command line, read or refused."""

import re
from pathlib import Path
from typing import Annotated

import typer

# What several commands take.
Notebooks = Annotated[
    list[str] | None,
    typer.Argument(help="1.4, 04, 04_head_count or path/to/mine.ipynb; none: all exercises."),
]
Lessons = Annotated[
    list[str] | None, typer.Argument(help="1.4, 04 or 04_head_count; none: all that there are.")
]
Profile = Annotated[str, typer.Option(help="smoke, quick or full.")]
Jobs = Annotated[int, typer.Option(min=0, help="Trials at once; 0: one a core.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")]
Cluster = Annotated[str, typer.Option(help="A Dask scheduler, such as tcp://host:8786.")]
Parameters = Annotated[
    list[str] | None, typer.Option("-p", metavar="NAME=VALUE", help="A parameter; may be repeated.")
]


def refuse(error):
    typer.echo(f"lab: {error}", err=True)
    raise typer.Exit(2)


def assignments(items):
    """{name: value} of NAME=VALUE, each value as `read_value` reads it."""
    from lab.trials.parameters import Refused, read_value

    values = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals:
            raise Refused(f"-p {item!r}: NAME=VALUE is wanted")
        if name in values:
            raise Refused(f"-p {item!r}: {name} is given twice; once is allowed")
        values[name] = read_value(text)
    return values


def seconds(text):
    """The seconds that 30s, 5m, 2h or 0 mean. BadParameter for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])|0", text.strip())
    if not found:
        raise typer.BadParameter(f"{text!r} is no time: say the unit: 30s, 10m, 2h")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]] if found[1] else 0.0


def place_of(text):
    """The folder that `--results` names. Refused where it names none."""
    from lab.trials.parameters import Refused

    if not text.strip() or "\0" in text:
        raise Refused(f"--results {text!r}: a folder is wanted")
    return Path(text).expanduser().resolve()


def check_device(wanted):
    """ValueError for a device that is not there; torch is asked only where it matters."""
    if wanted not in ("auto", "cpu"):
        from lab.device import available

        available(wanted)
