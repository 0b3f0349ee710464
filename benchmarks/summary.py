"""What every benchmark writes: table, figure, and its lines of results/benchmarks, summary.csv and README.md.

Run, it prints those lines.
"""

import argparse
from pathlib import Path

import pandas as pd

from lab import charts, files

FOLDER = files.project_root() / "results" / "benchmarks"


def repeated(measure, repeats):
    """The rows of so many calls of measure(), one after another in this process."""
    return pd.concat([measure().assign(repeat=repeat) for repeat in range(repeats)])


def options(doc, given, *, repeats, **sizes):
    """--repeats, --folder and one option for each of `sizes`: a number, or a list of them."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    for name, size in sizes.items():
        parser.add_argument(
            f"--{name}", type=int, nargs="+" if isinstance(size, list) else None, default=size
        )
    return parser.parse_args(given)


def line(case, interval, *, at_least=None, at_most=None):
    """One measured number with its 95 % interval beside its target; `met` is unclear where the interval spans it."""
    low, high = (
        (interval.low, interval.high) if at_most is None else (-interval.high, -interval.low)
    )
    bound = at_least if at_most is None else -at_most
    met = "yes" if low >= bound else "no" if high < bound else "unclear"
    target = f">= {at_least:g}" if at_most is None else f"<= {at_most:g}"
    numbers = {
        "measured": interval.effect,
        "low": interval.low,
        "high": interval.high,
        "n": interval.n,
    }
    return {"case": case, **numbers, "target": target, "met": met}


def write(name, folder, table, plot, lines):
    """NAME.csv, NAME.png, and its lines in summary.csv in place of its old ones; prints the lines.

    README.md is made anew of summary.csv.
    """
    files.write_table(folder / f"{name}.csv", table)
    with charts.drawn(plot, table) as figure:
        (folder / f"{name}.png").write_bytes(charts.png(figure))
    new = pd.DataFrame(lines)
    new.insert(0, "benchmark", name)
    path = folder / "summary.csv"
    old = pd.read_csv(path) if path.exists() else new[:0]
    summary = pd.concat([part for part in (old[old.benchmark != name], new) if len(part)])
    summary = summary.sort_values("benchmark", kind="stable")
    files.write_table(path, summary)
    files.write_text(folder / "README.md", page(summary))
    show(new)


def page(summary):
    """The README of results/benchmarks: what was measured beside what people use otherwise."""
    lines = [
        "| benchmark | measured | 95 % interval | target | met |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in summary.itertuples():
        case = f"{row.benchmark.replace('_', ' ')}: {row.case}"
        interval = f"{row.low:.3g} … {row.high:.3g}"
        lines.append(f"| {case} | {row.measured:.3g} | {interval} | {row.target} | {row.met} |")
    parts = [
        "# Benchmarks",
        "What was measured beside what people use otherwise; `make bench` measures it anew.",
        "\n".join(lines),
        "![A training step beside GPT-2 and x-transformers](training_step.png)",
    ]
    return "\n\n".join(parts) + "\n"


def show(summary):
    print(summary.to_string(index=False, float_format="{:.3g}".format))


if __name__ == "__main__":
    show(pd.read_csv(FOLDER / "summary.csv"))
