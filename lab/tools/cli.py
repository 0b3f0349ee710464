"""The command `lab`: everything that can be done from a terminal."""

import traceback
from pathlib import Path
from typing import Annotated

import typer
import typer.core

from lab.tools import arguments, browse, record
from lab.tools.arguments import assignments, check_device, place_of, refuse
from lab.tools.execution import execute, mended

LAB = Path(__file__).parents[1]


class Commands(typer.core.TyperGroup):
    """Commands that answer a ValueError of lab, or a folder that cannot be written to, in a sentence.

    A ValueError that a library raised is a fault of the code, and keeps its traceback.
    """

    def invoke(self, context):
        try:
            return super().invoke(context)
        except ValueError as error:
            raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
            if not Path(raised_in).is_relative_to(LAB):
                raise
            refuse(error)
        except OSError as error:
            if not (way_out := mended(error, runs=False)):
                raise
            typer.echo(f"lab: {error.filename}: {error.strerror}{way_out}", err=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=Commands,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Run the notebooks of Transformer Lab and browse what they measured.",
)
app.command("list")(browse.lessons)


@app.callback()
def front(context: typer.Context):
    """Run the notebooks of Transformer Lab and browse what they measured."""
    if context.invoked_subcommand is None:
        typer.echo(browse.FRONT)


@app.command()
def run(
    notebooks: arguments.Notebooks = None,
    profile: arguments.Profile = "quick",
    jobs: arguments.Jobs = 0,
    device: arguments.Device = "auto",
    cluster: arguments.Cluster = "",
    parameter: arguments.Parameters = None,
    file: Annotated[Path | None, typer.Option("-f", help="A YAML file of parameters.")] = None,
    results: Annotated[
        str | None, typer.Option(help="Folder for results; the project's own by default.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Take nothing from the record.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Execute what is done once more, from its trials.")
    ] = False,
):
    """Run notebooks; finished ones are skipped, interrupted ones go on where they stopped."""
    from lab import runs
    from lab.tools import batch

    options = {"jobs": jobs, "device": device, "cluster": cluster, "fresh": fresh}
    folder = place_of(results) if results is not None else runs.project_root() / "results"
    overrides = assignments(parameter or [])
    if not cluster:  # the workers of a cluster check their own
        check_device(device)
    todo = batch.plan(notebooks or [], profile, folder, overrides, file=file)
    failed = execute(todo, folder, runs.Options(**options), again)
    raise typer.Exit(1 if failed else 0)


for command in (record.record, record.publish, browse.show):
    app.command()(command)


if __name__ == "__main__":
    app()
