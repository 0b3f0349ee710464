"""The command `lab worker`: it starts Dask workers with settings that keep training steps fast."""

import os
import subprocess
import sys
from typing import Annotated

import typer


def worker(
    scheduler: Annotated[str, typer.Argument(help="Its address, such as tcp://host:8786.")],
    workers: Annotated[int, typer.Option(min=0, help="On this machine; 0: one a core.")] = 0,
    gpu: Annotated[
        str, typer.Option(help="The number of a graphics card: one worker that has it.")
    ] = "",
):
    """Start workers for a Dask scheduler, which run trials of `lab run --cluster` one by one."""
    raise typer.Exit(
        subprocess.call(command(scheduler, workers, gpu), env=os.environ | settings(gpu))
    )


def command(scheduler, workers=0, gpu=""):
    """The arguments of the call of `dask worker`, a list."""
    if gpu:
        many = ["--nworkers", "1", "--resources", "GPU=1"]
    else:
        many = ["--nworkers", str(workers or os.cpu_count() or 1)]
    one_at_a_time = ["--nthreads", "1", "--memory-limit", "0"]
    return [sys.executable, "-m", "dask", "worker", scheduler, *one_at_a_time, *many]


def settings(gpu=""):
    """Dask's settings of lab.trials.workers as {environment variable: value}."""
    from lab.trials.workers import ENVIRONMENT, MEMORY, QUIET

    told = {name.removeprefix(f"{ENVIRONMENT}."): value for name, value in MEMORY.items()}
    told |= {f"DASK_{name.upper().replace('.', '__')}": value for name, value in QUIET.items()}
    return {name: str(value) for name, value in told.items()} | (
        {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}
    )
