"""The command `lab`: everything that can be done from a terminal."""

import time
import traceback
from pathlib import Path
from typing import Annotated

import typer
import typer.core

from lab.language import using
from lab.tools import (
    arguments,
    browse,
    chinese,
    new,
    record,
    upkeep,
    verify,
    worker,
)
from lab.tools.arguments import assignments, check_device, place_of, refuse, seconds
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
        typer.echo(browse.front())


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
    record: Annotated[
        list[Path] | None, typer.Option(help="Folder of recorded trials; may be repeated.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Take nothing from the record.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Execute what is done once more, from its trials.")
    ] = False,
    budget: Annotated[str, typer.Option(help="Time after which to end, such as 2h.")] = "",
    recorded_only: Annotated[
        bool, typer.Option("--recorded-only", help="Compute nothing that is missing.")
    ] = False,
    language: Annotated[
        str, typer.Option(envvar="LAB_LANGUAGE", help="en, or zh: a run of its own.")
    ] = "en",
):
    """Run notebooks; finished ones are skipped, interrupted ones go on where they stopped."""
    from lab.tools import batch
    from lab.trials import runs

    options = {"jobs": jobs, "device": device, "cluster": cluster, "fresh": fresh}
    options |= {"recorded_only": recorded_only}
    options |= {"deadline": time.time() + seconds(budget)} if budget else {}
    options |= {"record": [path.resolve() for path in record]} if record else {}
    folder = place_of(results) if results is not None else runs.project_root() / "results"
    overrides = assignments(parameter or [])
    if not cluster:  # the workers of a cluster check their own
        check_device(device)
    with using(language):
        told = {"file": file, "speak": language}
        todo = batch.plan(notebooks or [], profile, folder, overrides, **told)
        failed = execute(todo, folder, runs.Options(**options), again)
    raise typer.Exit(1 if failed else 0)


@app.command()
def claims(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Exercises, or ids of claims; none: all.")
    ] = None,
    exercise: Annotated[
        str, typer.Option(help="Only of this one: 1.4, 04, 04_head_count or beyond.")
    ] = "",
    label: Annotated[str, typer.Option(help="Only parts with this label.")] = "",
    profile: Annotated[str, typer.Option(help="Answers of smoke, quick or full.")] = "quick",
):
    """List claims with their labels, named ones with every line; exit 1 where one is pending."""
    from lab.claims import cards, report
    from lab.claims import claims as ledger
    from lab.trials import parameters
    from lab.trials.runs import homes

    if label and label not in ledger.LABELS:
        raise parameters.Refused(f"--label {label!r}: one of {', '.join(ledger.LABELS)}")
    if profile not in parameters.PROFILES:
        raise parameters.Refused(
            f"there is no profile {profile!r}; there are {', '.join(parameters.PROFILES)}"
        )
    by_id, notebooks = ledger.ledger(), parameters.notebooks()
    named = [
        (name, path) for name in ids or [] for path in notebooks if parameters.is_called(path, name)
    ]
    asked = {parameters.exercise_of(path) for _, path in named}
    ids = [name for name in ids or [] if name not in dict(named)]
    chosen = {ledger.find(name).id for name in ids}
    chosen |= {claim.id for claim in by_id.values() if claim.exercise in asked}
    if exercise not in ("", ledger.BEYOND):
        exercise = parameters.exercise_of(parameters.notebook_of(exercise))
    table = report.collect(*homes(profile))
    table = table[table.id.isin(chosen or by_id) & ((table.exercise == exercise) | (not exercise))]
    table = table[(table.label == label) | (not label)]
    shown = ""
    for (name, _), lines in table.groupby(["id", "part"], sort=False):
        rows = [*lines.itertuples()]
        typer.echo(cards.in_text(by_id[name], rows, whole=bool(ids), again=name == shown))
        shown = name
    typer.echo(f"{table.id.nunique()} claims: {report.label_counts(table) or 'none'}")
    raise typer.Exit(1 if (table.label == "pending").any() else 0)


@app.command()
def diff(
    run_a: Annotated[
        str,
        typer.Argument(help="A folder, or its name under results, such as quick/04_head_count."),
    ],
    run_b: Annotated[str, typer.Argument(help="Another.")],
):
    """Show parameters, answers and effects of two runs side by side, differences first."""
    from lab.claims import difference
    from lab.trials.runs import shown

    a, b = difference.find(run_a), difference.find(run_b)
    typer.echo(f"A  {shown(a)}\nB  {shown(b)}")
    for table in difference.tables(a, b):
        typer.echo()
        browse.in_columns(table)


@app.command()
def book(
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
):
    """Build the book of all finished runs, results/book: static pages that need no network."""
    from lab import book as pages

    try:
        index = pages.build(older=record.older())
    except ImportError as error:
        refuse(f"{error.name} is missing: pip install -e '.[book]', or make book")
    except FileNotFoundError as error:
        refuse(error)
    typer.echo(index)
    if open_it:
        typer.launch(index.as_uri())


COMMANDS = (
    record.record,
    record.publish,
    verify.verify,
    new.new,
    chinese.zh,
    browse.show,
    worker.worker,
    upkeep.doctor,
    upkeep.clean,
)
for command in COMMANDS:
    app.command()(command)


if __name__ == "__main__":
    app()
