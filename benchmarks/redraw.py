"""How long a slider of `study.play` takes to redraw its figure from a stored grid.

Written to results/benchmarks. The grid is that of a lesson, head counts x lookups x seeds; the figure has the panels of
one: curves with every seed, and bars. A redraw is all that follows a move: rows are chosen, drawn, and made a PNG.
Seconds are processor time of one thread.
"""

from functools import partial
from itertools import product

import matplotlib.pyplot as plt
import pandas as pd
import summary
import torch

from lab.charts import doubling, seeds_and_mean
from lab.measure import statistics, timing
from lab.turn import Redraws

HEADS, LOOKUPS, SEEDS = [1, 2, 4, 8, 16, 32], [1, 2, 4, 8], range(5)


def stored_grid():
    """A row a trial: n_heads, k, seed, accuracy."""
    grid = pd.DataFrame(product(HEADS, LOOKUPS, SEEDS), columns=["n_heads", "k", "seed"])
    return grid.assign(accuracy=1 / (1 + grid.k / grid.n_heads) + 0.01 * grid.seed)


def glance(panels, grid, n_heads, k):
    """What a lesson draws: accuracy against heads, the chosen one apart, and beside it this choice against others."""
    _, axes = plt.subplots(1, panels, squeeze=False)
    part = grid[grid.k == k]
    mean = part.groupby("n_heads").accuracy.mean()
    for i, ax in enumerate(axes[0]):
        if i % 2:
            ax.bar([str(h) for h in HEADS], mean / mean[n_heads] - 1)
            ax.set(xlabel="heads", ylabel="accuracy against this choice")
        else:
            seeds_and_mean(ax, part, "n_heads", "accuracy", label=f"{k} lookups")
            ax.plot(n_heads, mean[n_heads], "o", label=f"{n_heads} heads")
            doubling(ax, HEADS)
            ax.set(ylim=(0, 1.1), xlabel="heads", ylabel="accuracy", title=f"{mean[n_heads]:.3f}")
            ax.legend()


def moves(drawn):
    """Every state of both sliders once."""
    for n_heads, k in product(HEADS, LOOKUPS):
        drawn(n_heads=n_heads, k=k)


def measure(repeats, panels):
    """Long form: panels, repeat, seconds of a redraw."""
    grid = stored_grid()
    calls = {(n,): partial(moves, Redraws(partial(glance, n, grid))) for n in panels}
    table = timing.seconds_a_call(calls, ["panels"], repeats)
    table["seconds"] = table.seconds_a_call / (len(HEADS) * len(LOOKUPS))
    return table[["panels", "repeat", "seconds"]]


def verdicts(table):
    for panels, rows in table.groupby("panels"):
        of = "1 panel" if panels == 1 else f"{panels} panels"
        yield summary.line(f"milliseconds of a redraw, {of}", statistics.mean(1e3 * rows.seconds), at_most=100)


def plot(table):
    _, ax = plt.subplots()
    for i, (_, rows) in enumerate(table.groupby("panels")):
        ax.bar(i, 1e3 * rows.seconds.median(), 0.5)
        ax.plot([i] * len(rows), 1e3 * rows.seconds, "k.", ms=3)
    ax.set_xticks(range(table.panels.nunique()), sorted(table.panels.unique()))
    ax.set(xlabel="panels of the figure", ylabel="milliseconds of a redraw")


def main(given=None):
    options = summary.options(__doc__, given, repeats=10, panels=[1, 2])
    torch.set_num_threads(1)
    table = measure(options.repeats, options.panels)
    summary.write("redraw", options.folder, table, plot, verdicts(table))


if __name__ == "__main__":
    main()
