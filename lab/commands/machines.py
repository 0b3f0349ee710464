"""The command `lab machines`: which machines contributed timings, and this one's."""

from typing import Annotated

import typer

from lab.commands.arguments import refuse

app = typer.Typer(invoke_without_command=True, help="Machines that contributed timings; `add` adds this one.")


@app.callback()
def listed(context: typer.Context):
    """Machines that contributed timings and replications; `lab machines add` adds this one."""
    if context.invoked_subcommand:
        return
    from lab.ledger import machines

    try:
        table = machines.contributed()
    except ValueError as error:
        refuse(error)
    for name, rows in table.groupby("machine"):
        counts = ", ".join(f"{n} {verdict}" for verdict, n in rows.verdict.value_counts().items())
        typer.echo(f"{name}: {len(rows)} verdicts ({counts})")
    for (profile, claim), rows in machines.timings().groupby(["profile", "id"]):
        if rows.verdict.nunique() > 1:
            typer.echo(f"{claim} ({profile}): {machines.elsewhere(claim, profile)}")
    if table.empty:
        typer.echo("no machine has contributed yet: `lab run`, then `lab machines add`")


@app.command()
def add(
    chosen: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Folders, or names such as quick/05_attention_variants; none: all."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of this machine; else that of its processor.")] = None,
):
    """Write the timings of finished runs, and whole replications, to results/machines/NAME, ready to be committed."""
    from lab.engine import parameters, runs
    from lab.ledger import difference, machines

    try:
        folders = [difference.find(each) for each in chosen] if chosen else machines.finished()
        for folder in folders:
            typer.echo(f"{runs.shown(folder)}: {runs.shown(machines.contribute(folder, name))}")
        if not folders:
            raise machines.CannotContribute("no finished run of quick or full judges a timing: `lab run` comes first")
        runs.write_text(runs.project_root() / "results" / "README.md", machines.readme())
    except ValueError as error:
        refuse(error)
    except FileNotFoundError:
        refuse(parameters.ALONE)
