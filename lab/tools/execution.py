"""Execution of planned jobs: one run at a time in a folder, an exit status for each failure."""

import errno
import signal
from contextlib import contextmanager

import typer

from lab.tools.arguments import refuse


def execute(todo, folder, options, again=False):
    """Run the jobs in the results folder; returns those that failed.

    Exits with status 2 where a cluster cannot be used, 1 where the folder cannot be written to, and
    130 after Ctrl-C or SIGTERM.
    """
    from lab.claims import report
    from lab.tools import batch, terminal

    try:
        if options.cluster:
            announce(options.cluster, options.device)
        with batch.only_one(folder), stopped_by_sigterm():
            failed = terminal.run_all(todo, options, again)
            for place in {job.folder.parent for job in todo if job.usual}:
                if place.exists() and report.outdated(place):
                    report.summarise(place)
        return failed
    except (ConnectionError, RuntimeError) as error:
        refuse(error)
    except OSError as error:
        typer.echo(
            f"lab: {error.filename or folder}: {error.strerror or error}{mended(error)}", err=True
        )
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo(
            "\nlab: stopped; finished trials are kept, the same command goes on from here", err=True
        )
        raise typer.Exit(130) from None


@contextmanager
def stopped_by_sigterm():
    """Treat SIGTERM, which `kill`, `timeout` and batch systems send, like Ctrl-C in the block."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def mended(error, runs=True):
    """The remedy for a folder that cannot be written to, as text after the error; "" for others.

    `runs`: the command has the option --results.
    """
    if error.errno == errno.ENOSPC:
        return "; make room: delete results/.trials"
    if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ""
    if runs:
        return "; choose another folder with --results"
    return (
        "; where the project is read only, work in a copy of it, or with `lab run --results FOLDER`"
    )


def announce(cluster, device):
    """Print the workers of a cluster before anything starts.

    Raises ConnectionError where the scheduler does not answer, RuntimeError where workers differ.
    """
    from lab.trials import place, workers

    with workers.connected(cluster) as client:
        found = place.of_cluster(client, device, threads=1)
        slots, _ = workers.slots(client)
        typer.echo(
            f"{cluster}: {len(slots)} workers, {sum(slots.values())} trials at once, "
            f"torch {found['torch']} on {found['device']}; dashboard {client.dashboard_link}",
            err=True,
        )
