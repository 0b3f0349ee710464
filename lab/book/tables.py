"""The tables of the book, cells as safe HTML: what a run or a user wrote is escaped."""

import math

import pandas as pd
from scipy.stats import t as student

from lab.ledger import claims

ROWS_SHOWN = 120  # of a table; the CSV beside it has all


def anchor(stem):
    """The id that Sphinx gives the heading of a figure's table."""
    return stem.replace("_", "-").lower()


def href(notebook, figure=""):
    """The address of an exercise, or of one of its figures with the table behind it."""
    return f"tables/{notebook}.html#{anchor(figure)}" if figure else f"exercises/{notebook}.html"


def plain_table(frame):
    """A table of numbers and words as HTML, escaped."""
    return frame.to_html(index=False, classes="lab", float_format="{:.4g}".format, na_rep="")


def matters(runs):
    """Judged comparisons by their distance from no effect in standard deviations of the runs, and what they cost."""
    kinds = claims.ledger()
    rows = []
    for run in runs:
        for row in run.verdicts.itertuples():
            spread = row.high - row.low
            if kinds[row.id].kind != "comparison" or not 0 < spread < math.inf or pd.isna(row.n) or row.n < 2:
                continue
            sd = spread / 2 / student.ppf(0.975, row.n - 1) * row.n**0.5
            null = row.unit == "ratio"  # no effect is one there, zero elsewhere
            apart = abs(row.effect - null) / sd
            about = [run.exercise, row.id, row.verdict, row.gates, row.effect, row.unit, row.n]
            rows.append([*about, apart, run.minutes])
    names = ["exercise", "claim", "verdict", "gates", "effect", "unit", "n", "effect in sd", "core minutes"]
    table = pd.DataFrame(rows, columns=names)
    table["sd per minute"] = table["effect in sd"] / table["core minutes"]
    return table.sort_values("effect in sd", ascending=False)


def machines(runs):
    """Where each profile was measured."""
    rows = [
        (run.profile, run.about["machine"], run.about["device"],
         ", ".join(f"{name} {version}" for name, version in run.about["versions"].items()))
        for run in runs
    ]  # fmt: skip
    table = pd.DataFrame(sorted(set(rows)), columns=["profile", "machine", "device", "versions"])
    return plain_table(table)


def behind(run):
    """[(stem, has a figure, claims judged from it, HTML of its first rows, number of rows)]."""
    verdicts, found = run.verdicts, []
    others = sorted({path.stem for path in (run.folder / "tables").glob("*.csv")} - set(run.figures))
    for stem in [*run.figures, *others]:
        path = run.folder / "tables" / f"{stem}.csv"
        judged = verdicts[(verdicts.figure == stem) | (verdicts.table == stem)]
        frame = pd.read_csv(path) if path.exists() else pd.DataFrame()
        shown = plain_table(frame.head(ROWS_SHOWN))
        found.append((stem, stem in run.figures, judged.to_dict("records"), shown, len(frame)))
    return found
