"""What the runner costs and gains: two workers beside one, `lab --help`, `lab run` beside bare papermill.

Written to results/benchmarks. Trials multiply matrices on one thread; the two workers are running before the clock is.
"""

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pandas as pd
import summary

from lab.measure import statistics, timing
from lab.trials import runs
from lab.trials import sweep as trials

NOTEBOOK = "06_sinusoidal_rotation"


def products(seed, count=8, size=1024):
    """About a tenth of a second of matrix products on one core."""
    import torch

    x = torch.randn(size, size, generator=torch.Generator().manual_seed(seed)) / size**0.5
    y = x
    for _ in range(count):
        y = y @ x
    return {"norm": y.norm().item()}


def sweep(jobs, count):
    with tempfile.TemporaryDirectory() as store:
        sources = trials.Sources("n", store=store)
        trials.sweep(products, {"seed": range(count)}, sources=sources, jobs=jobs, device="cpu")


def command(*words):
    subprocess.run([sys.executable, "-m", *words], capture_output=True, check=True)


def lab_run():
    with tempfile.TemporaryDirectory() as folder:
        command(
            "lab.tools.cli",
            "run",
            NOTEBOOK,
            "--profile",
            "smoke",
            "--jobs",
            "1",
            "--device",
            "cpu",
            "--results",
            folder,
        )


def papermill():
    root = runs.project_root()
    with tempfile.TemporaryDirectory() as folder:
        values = root / "experiments" / "smoke" / f"{NOTEBOOK}.yaml"
        runs.Options(store=f"{folder}/.trials", jobs=1, device="cpu", headless=True).write(folder)
        words = [
            root / "notebooks" / f"{NOTEBOOK}.ipynb",
            Path(folder) / "executed.ipynb",
            "-k",
            "python3",
        ]
        command("papermill", *map(str, words), "-f", str(values), "-p", "results", folder)


def measure(repeats, runs, count):
    """Long form: name, repeat, seconds."""
    sweep(2, 2)  # starts the workers
    workers = {"one worker": partial(sweep, 1, count), "two workers": partial(sweep, 2, count)}
    parts = [
        (workers, repeats),
        ({"lab --help": partial(command, "lab.tools.cli", "--help")}, repeats),
    ]
    parts += [({"lab run": lab_run, "papermill": papermill}, runs)] * (runs > 0)
    return pd.concat([timing.rounds(calls, times, warmup=0) for calls, times in parts])


def verdicts(table):
    seconds = {name: rows.set_index("repeat").seconds for name, rows in table.groupby("name")}
    over = statistics.ratio(seconds["one worker"], seconds["two workers"])
    yield summary.line("trials a second, two workers over one", over, at_least=1.6)
    yield summary.line("seconds of lab --help", statistics.mean(seconds["lab --help"]), at_most=1)
    if "lab run" in seconds:
        over = statistics.ratio(seconds["lab run"], seconds["papermill"])
        yield summary.line("time of lab run over papermill", over, at_most=1.15)


def plot(table):
    import matplotlib.pyplot as plt

    _, ax = plt.subplots()
    for i, (name, rows) in enumerate(table.groupby("name")):
        ax.barh(name, rows.seconds.median(), 0.5)
        ax.plot(rows.seconds, [i] * len(rows), "k.", ms=3)
    ax.invert_yaxis()
    ax.set(xlabel="seconds", title="A sweep; the command's help; a notebook at smoke sizes")


def main(given=None):
    options = summary.options(__doc__, given, repeats=20, runs=20, trials=60)
    table = measure(options.repeats, options.runs, options.trials)
    summary.write("runner", options.folder, table, plot, verdicts(table))


if __name__ == "__main__":
    main()
