"""The command `lab`: run, record, list, claims, diff, book, doctor, clean."""

import json
import re
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="Run the notebooks of Transformer Lab and browse what they measured.")  # fmt: skip


def refuse(error):
    typer.echo(f"lab: {error}", err=True)
    raise typer.Exit(2)


def assignments(items):
    """{name: value} of NAME=VALUE, each value as YAML reads it or else as text."""
    from lab.engine.parameters import Refused, read_yaml

    values = {}
    for item in items:
        name, equals, text = item.partition("=")
        if not equals:
            raise Refused(f"-p {item!r}: NAME=VALUE is wanted")
        if name in values:
            raise Refused(f"-p {item!r}: {name} is given twice; once is allowed")
        try:
            values[name] = read_yaml(text) if text else text
        except ValueError:
            values[name] = text
    return values


def seconds(text):
    """The seconds that 90, 30s, 5m or 2h mean. BadParameter for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if not found:
        raise typer.BadParameter(f"{text!r} is no time: 30s, 5m or 2h are")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


@app.command()
def run(
    notebooks: Annotated[
        list[str] | None, typer.Argument(help="1.4, 04, 04_head_count or path/to/mine.ipynb; none: all exercises.")
    ] = None,
    profile: Annotated[str, typer.Option(help="smoke, quick or full.")] = "quick",
    jobs: Annotated[int, typer.Option(min=0, help="Trials at once; 0: one a core.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    cluster: Annotated[str, typer.Option(help="A Dask scheduler, such as tcp://host:8786.")] = "",
    parameter: Annotated[
        list[str] | None, typer.Option("-p", metavar="NAME=VALUE", help="A parameter; may be repeated.")
    ] = None,
    file: Annotated[Path | None, typer.Option("-f", help="A YAML file of parameters.")] = None,
    name: Annotated[str | None, typer.Option(help="Of a run in results/runs; else made of its parameters.")] = None,
    results: Annotated[str | None, typer.Option(help="Folder for results; the project's own by default.")] = None,
    record: Annotated[list[Path] | None, typer.Option(help="Folder of recorded trials; may be repeated.")] = None,
    check: Annotated[str, typer.Option(help="Time for repeating recorded trials, a notebook; 0: none.")] = "30s",
    fresh: Annotated[bool, typer.Option("--fresh", help="Run all trials here, past the record and the store.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Execute what is done once more, from its trials.")] = False,
    budget: Annotated[str, typer.Option(help="Time after which to end, such as 2h.")] = "",
    recorded_only: Annotated[bool, typer.Option("--recorded-only", help="Compute nothing that is missing.")] = False,
    sample: Annotated[Path | None, typer.Option(hidden=True)] = None,
    traced: Annotated[bool, typer.Option("--traced", hidden=True)] = False,
):
    """Run notebooks; what is done already is skipped, what was interrupted goes on where it stopped."""
    sys.modules.setdefault("rfc3987_syntax", None)  # seconds for a grammar of addresses, which no notebook holds
    from lab import terminal
    from lab.engine import batch, runs
    from lab.ledger import summary

    options = {"jobs": jobs, "device": device, "cluster": cluster, "check": seconds(check), "fresh": fresh}
    options |= {"recorded_only": recorded_only, "traced": traced, "sample": sample and sample.resolve()}
    options |= {"deadline": time.time() + seconds(budget)} if budget else {}
    options |= {"record": [path.resolve() for path in record]} if record else {}
    folder = runs.project_root() / "results"
    try:
        if results is not None:
            folder = place_of(results)
        overrides = assignments(parameter or [])
        if not cluster:  # there, each worker is asked
            check_device(device)
        todo = batch.plan(notebooks or [], profile, folder, overrides, file=file, name=name, under_test=under_test)
        if cluster:
            announce(cluster, device)
        with batch.only_one(folder):
            failed = terminal.run_all(todo, runs.Options(**options), again)
            for place in {job.folder.parent for job in todo if job.name is None and job.folder.parent.exists()}:
                if summary.outdated(place):
                    summary.summarise(place)
    except (ConnectionError, RuntimeError, ValueError) as error:  # ValueError: Refused
        refuse(error)
    except OSError as error:
        typer.echo(f"lab: {error.filename or folder}: {error.strerror or error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("\nlab: stopped; finished trials are kept, the same command goes on from here", err=True)
        raise typer.Exit(130) from None
    raise typer.Exit(1 if failed else 0)


def place_of(text):
    """The folder that `--results` names. Refused where it names none."""
    from lab.engine.parameters import Refused

    if not text.strip() or "\0" in text:
        raise Refused(f"--results {text!r}: a folder is wanted")
    return Path(text).expanduser().resolve()


def under_test(exercise):
    """The claims of an exercise as text, which changes when one of them does."""
    from lab.ledger import claims

    return json.dumps([c.model_dump_json() for c in claims.ledger().values() if c.exercise == exercise])


def check_device(wanted):
    """ValueError for a device that is not there; torch is asked only where it matters."""
    if wanted not in ("auto", "cpu"):
        from lab.engine.device import available

        available(wanted)


def announce(cluster, device):
    """Say who will work, before anything starts. ConnectionError: nobody answers; RuntimeError: workers differ."""
    from lab.engine import running, workers

    with workers.connected(cluster) as client:
        place = running.whereabouts_of(client, device, threads=1)
        slots, _ = workers.slots(client)
        typer.echo(
            f"{cluster}: {len(slots)} workers, {sum(slots.values())} trials at once, torch {place['torch']} on "
            f"{place['device']}; dashboard {client.dashboard_link}",
            err=True,
        )


@app.command()
def record(
    notebooks: Annotated[list[str] | None, typer.Argument(help="1.4, 04 or 04_head_count; none: all that ran.")] = None,
    carry: Annotated[bool, typer.Option("--carry", help="Keep rows over a change that moves no digit.")] = False,
    because: Annotated[str, typer.Option(help="Why valid rows get other digits.")] = "",
    renamed: Annotated[list[str] | None, typer.Option(metavar="OLD=NEW", help="With --carry: a parameter.")] = None,
):
    """Write the trials of finished runs, made by a clean commit, to results/record."""
    from lab.engine import parameters, recording, runs

    root = runs.project_root() / "results"
    try:
        chosen = [parameters.notebook_of(name) for name in notebooks or []] or [
            path for path in parameters.notebooks() if (root / "record" / f"{path.stem}.jsonl").exists()
        ]
        for notebook in chosen:
            path = root / "record" / f"{notebook.stem}.jsonl"
            if carry:
                found = recording.carry(notebook, path, renamed=assignments(renamed or []))
                said = ", ".join(f"{n} of {name}" for name, n in found.items() if n) or "nothing is stale"
            else:
                found = recording.record_run(root / "quick" / notebook.stem, root / ".trials", path, because=because)
                said = ", ".join(f"{n} {what}" for what, n in found.items() if n) or "no trials"
            typer.echo(f"{notebook.stem}: {said}")
    except ValueError as error:
        refuse(error)


@app.command("list")
def list_exercises():
    """The exercises, their notebooks, and the profiles in which they are done."""
    from lab.engine import parameters, runs

    for notebook in parameters.notebooks():
        done = []
        for profile in parameters.PROFILES:
            run = runs.read_run(runs.project_root() / "results" / profile / notebook.stem)
            if run:
                done.append(f"{profile} {run['core_seconds'] / 60:.1f} core min")
        typer.echo(f"{parameters.exercise_of(notebook):5} {notebook.stem:28} {parameters.title_of(notebook)}")
        typer.echo(f"{'':5} {'':28} results: {', '.join(done) or 'none yet'}")


@app.command()
def claims(
    exercise: Annotated[str, typer.Option(help="Only of this exercise, such as 1.4.")] = "",
    verdict: Annotated[str, typer.Option(help="Only with this verdict.")] = "",
    profile: Annotated[str, typer.Option(help="Verdicts of smoke, quick or full.")] = "quick",
):
    """The ledger of claims with the verdicts of a profile; exit 1 where a claim is pending."""
    from lab.engine import parameters
    from lab.engine.runs import project_root
    from lab.ledger import claims as ledger
    from lab.ledger import summary

    try:
        if verdict and verdict not in ledger.VERDICTS:
            raise parameters.Refused(f"--verdict {verdict!r}: one of {', '.join(ledger.VERDICTS)}")
        if profile not in parameters.PROFILES:
            raise parameters.Refused(f"there is no profile {profile!r}; there are {', '.join(parameters.PROFILES)}")
        by_id = ledger.ledger()
        exercises = dict.fromkeys(c.exercise for c in by_id.values())
        if exercise and exercise not in exercises:
            raise parameters.Refused(f"--exercise {exercise!r}: one of {', '.join(exercises)}")
    except ValueError as error:
        refuse(error)
    table = summary.collect(project_root() / "results" / profile)
    table = table[(table.exercise == exercise) | (not exercise)]
    table = table[(table.verdict == verdict) | (not verdict)]
    for row in table.itertuples():
        interval = "" if row.effect != row.effect else f"  {row.effect:.4g}"
        interval += "" if row.low != row.low else f" [{row.low:.4g}, {row.high:.4g}]"
        typer.echo(f"{row.exercise:7}{row.verdict:24}{row.id}{interval}")
        typer.echo(f"{'':31}{by_id[row.id].claim}" + (f" (open: {row.note})" if row.verdict == "open" else ""))
    counts = ", ".join(f"{n} {name}" for name, n in table.verdict.value_counts().items())
    typer.echo(f"{len(table)} claims: {counts or 'none'}")
    raise typer.Exit(1 if (table.verdict == "pending").any() else 0)


@app.command()
def diff(
    run_a: Annotated[str, typer.Argument(help="A folder, or its name under results, such as quick/04_head_count.")],
    run_b: Annotated[str, typer.Argument(help="Another.")],
):
    """Parameters, verdicts and effects of two runs side by side; what differs first."""
    from lab.ledger import difference

    try:
        typer.echo(difference.text(difference.find(run_a), difference.find(run_b)))
    except ValueError as error:
        refuse(error)


@app.command()
def book(
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
):
    """Build the book of all finished runs, results/book: static pages that need no network."""
    from lab import book as pages

    try:
        index = pages.build()
    except ImportError as error:
        refuse(f"{error.name} is missing: pip install -e '.[book]', or make book")
    except (FileNotFoundError, ValueError) as error:
        refuse(error)
    typer.echo(index)
    if open_it:
        typer.launch(index.as_uri())


@app.command()
def doctor():
    """Check that the notebooks will find what they need; exit 1 and the remedy where not."""
    import os
    import platform
    from importlib import metadata

    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    from lab.engine import parameters
    from lab.engine.runs import project_root

    problems = []
    typer.echo(f"python     {platform.python_version()}  {sys.executable}")
    for name in ("torch", "jupyterlab", "papermill", "pandas", "matplotlib", "dask"):
        typer.echo(f"{name:10} {metadata.version(name)}")
    try:
        kernel = KernelSpecManager().get_kernel_spec("python3").argv[0]
        kernel = sys.executable if kernel in ("python", "python3") else kernel
        typer.echo(f"kernel     {kernel}")
        if Path(kernel).parent.resolve() != Path(sys.executable).parent.resolve():
            problems.append(f"the python3 kernel runs {kernel}, not {sys.executable}: use .venv/bin/jupyter lab")
    except NoSuchKernel:
        problems.append("there is no python3 kernel: pip install ipykernel")
    typer.echo(f"cores      {os.cpu_count()}")
    typer.echo(f"memory     {parameters.available_memory() / 2**30:.1f} GiB available")
    root = project_root()
    typer.echo(f"project    {root}, {len(parameters.notebooks())} notebooks")
    if not os.access(root / "results", os.W_OK):
        problems.append(f"{root / 'results'} cannot be written to")
    for problem in problems:
        typer.echo(f"problem    {problem}", err=True)
    raise typer.Exit(1 if problems else 0)


@app.command()
def clean(
    trials: Annotated[
        bool, typer.Option("--trials", help="Also forget finished trials: the next run starts anew.")
    ] = False,
):
    """Remove what interrupted and interactive runs left; with --trials the trial store as well."""
    import shutil

    from lab.engine.runs import project_root

    for name in (".running", "interactive") + ((".trials",) if trials else ()):
        folder = project_root() / "results" / name
        if folder.exists():
            shutil.rmtree(folder)
            typer.echo(f"removed {folder}")


if __name__ == "__main__":
    app()
