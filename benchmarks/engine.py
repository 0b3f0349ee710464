"""What the engine adds to trials: a trial that does nothing, and finding recorded ones again.

Written to results/benchmarks. Trials run in this process, each sweep in a store of its own; looking up reads the record
from its file, as every run does once. Seconds are processor time of one thread.
"""

import tempfile
from functools import partial
from pathlib import Path

import summary
import torch

from lab.measure import statistics, timing
from lab.trials import sweep as trials
from lab.trials.store import File


def empty(seed):
    return {"loss": seed / 3}


def sweep(count, record=None):
    """Sweep `count` empty trials with a new store, or out of the record in the folder given; returns what was used."""
    with tempfile.TemporaryDirectory() as folder:
        used, given = [], {} if record is None else {"record": [record], "recorded_only": True}
        sources = trials.Sources("00_empty", store=folder, **given)
        trials.sweep(empty, {"seed": range(count)}, sources=sources, device="cpu", used=used)
        return used


def write_record(folder, count):
    """A record of `count` empty trials, each with a curve of sixteen losses."""
    (used,) = sweep(1)
    bodies = []
    for seed in range(count):
        curve = [[step, 5.545177 / (1 + step + seed)] for step in range(16)]
        bodies.append(
            used.body
            | {"parameters": {"seed": seed}, "columns": {"loss": seed / 3}, "curve": curve}
        )
    File(Path(folder) / "00_empty.jsonl").rewrite(bodies)


def measure(repeats, count, recorded):
    """Long form: name, repeat, seconds (of a trial; of all recorded ones)."""
    with tempfile.TemporaryDirectory() as record:
        write_record(record, recorded)
        calls = {
            ("an empty trial",): partial(sweep, count),
            ("recorded trials",): partial(sweep, recorded, record),
        }
        table = summary.repeated(partial(timing.benchmark, calls, ["name"]), repeats)
    table = table.rename(columns={"seconds_a_call": "seconds"}).drop(columns="wall_seconds_a_call")
    table.loc[table.name == "an empty trial", "seconds"] /= count
    return table


def verdicts(table, recorded):
    seconds = table.groupby("name").seconds
    empty_ones = statistics.mean(1e3 * seconds.get_group("an empty trial"))
    yield summary.line("milliseconds of an empty trial", empty_ones, at_most=5)
    looked_up = statistics.mean(seconds.get_group("recorded trials"))
    yield summary.line(f"seconds to look up {recorded:,} recorded trials", looked_up, at_most=2)


def plot(table):
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(1, 2)
    units = (("an empty trial", 1e3, "milliseconds"), ("recorded trials", 1, "seconds"))
    for ax, (name, scale, unit) in zip(axes, units, strict=True):
        values = scale * table.seconds[table.name == name]
        ax.bar([name], values.median(), 0.5)
        ax.plot([0] * len(values), values, "k.", ms=3)
        ax.set(ylabel=unit)


def main(given=None):
    options = summary.options(__doc__, given, repeats=10, trials=200, recorded=10_000)
    torch.set_num_threads(1)
    table = measure(options.repeats, options.trials, options.recorded)
    summary.write("engine", options.folder, table, plot, verdicts(table, options.recorded))


if __name__ == "__main__":
    main()
