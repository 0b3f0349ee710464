"""The command `lab replicate`: the same comparisons on seeds that no committed run has used."""

from typing import Annotated

import typer

from lab.commands import arguments
from lab.commands.arguments import assignments, check_device, refuse, under_test
from lab.commands.execution import execute


def home():
    """The folder of results."""
    from lab.engine.runs import project_root

    return project_root() / "results"


def replicate(
    notebooks: arguments.Notebooks = None,
    profile: arguments.Profile = "quick",
    jobs: arguments.Jobs = 0,
    device: arguments.Device = "auto",
    cluster: arguments.Cluster = "",
    parameter: arguments.Parameters = None,
    name: Annotated[str | None, typer.Option(help="Of the run in results/runs; else replication-1, -2, …")] = None,
):
    """Run notebooks on new seeds, every trial anew, and show the verdicts beside those of the profile's run."""
    from lab.engine import batch, runs
    from lab.ledger import difference, replication

    folder = home()
    try:
        given = assignments(parameter or [])
        if not cluster:
            check_device(device)
    except ValueError as error:
        refuse(error)

    def plan():
        planned = batch.plan(notebooks or [], profile, folder, given, under_test=under_test)
        return replication.on_new_seeds(planned, name)

    todo, failed = execute(plan, folder, runs.Options(jobs=jobs, device=device, cluster=cluster))
    for job in todo:
        usual = runs.latest(job.profile, job.notebook.stem)
        if all(runs.read_run(place) for place in (usual, job.folder)):
            typer.echo(difference.text(usual, job.folder) + "\n")
    raise typer.Exit(1 if failed else 0)
