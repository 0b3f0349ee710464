"""Two runs side by side: parameters, verdicts and effects, what differs first."""

import json
from pathlib import Path

from lab.engine import parameters, runs
from lab.ledger import cards, summary

PLACE = ("commit", "changes", "machine", "device")  # of run.json: what else may make numbers differ
NONE = "–"


def find(name):
    """The folder of a finished run: a path, its name under results, or an exercise, such as 1.4, for its quick run.

    ValueError names what there is.
    """
    results = runs.project_root() / "results"
    stem = next((path.stem for path in parameters.notebooks() if parameters.is_called(path, name)), None)
    places = [[Path(name)], [results / name], [runs.latest("quick", stem)] if stem else [],
              sorted([*results.glob(f"*/{stem or name}"), *results.glob(f"runs/*/{stem or name}")])]  # fmt: skip
    found = next(filter(None, ([path for path in place if (path / "run.json").exists()] for place in places)), [])
    if len(found) > 1:
        raise ValueError(f"{name} may be {' or '.join(map(runs.shown, found))}: say which")
    if not found:
        there = [*results.glob("*/*/run.json"), *results.glob("runs/*/*/run.json")]
        known = sorted(path.parent.relative_to(results).as_posix() for path in there)
        raise ValueError(f"there is no finished run {name}; under results there are {', '.join(known) or 'none'}")
    if runs.read_run(found[0]) is None:
        raise ValueError(f"{found[0] / 'run.json'} is damaged; `lab run` makes it anew")
    return found[0]


def text(a, b):
    """The comparison of the runs in the folders `a` and `b`, as plain text."""
    told = [runs.read_run(folder) for folder in (a, b)]
    values = {
        name: tuple(json.dumps(run["parameters"][name]) if name in run["parameters"] else NONE for run in told)
        for name in dict.fromkeys([*told[0]["parameters"], *told[1]["parameters"]])
        if name != "results"
    }
    values |= {f"({name})": tuple(str(run.get(name, NONE)) for run in told) for name in PLACE}
    verdicts = [summary.read_verdicts(folder) for folder in (a, b)]
    rows = [{row.id: row for row in table.itertuples()} for table in verdicts]
    words = {
        name: tuple(said(row.get(name)) for row in rows) for name in dict.fromkeys([*rows[0], *rows[1]])
    }  # verdict first, then its effect
    turned = {name for name, pair in words.items() if pair[0][0] != pair[1][0]}
    moved = {name for name, pair in words.items() if pair[0] != pair[1]} - turned
    blocks = [
        [f"A  {runs.shown(a)}", f"B  {runs.shown(b)}"],
        block("parameters that differ", {name: pair for name, pair in values.items() if pair[0] != pair[1]}),
        block("verdicts that differ", {name: whole(words[name]) for name in words if name in turned}),
        block("the same verdict, another effect", {name: whole(words[name]) for name in words if name in moved}),
        block(
            "the same verdict and effect",
            {name: whole(words[name])[:1] for name in words if name not in turned | moved},
        ),
        block("the same parameters", {name: pair[:1] for name, pair in values.items() if pair[0] == pair[1]}),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def said(row):
    """(verdict, effect with its interval) of a row of verdicts.csv."""
    return (NONE, "") if row is None else (row.verdict, cards.measured(row))


def whole(pair):
    return tuple(f"{verdict}  {effect}".strip() for verdict, effect in pair)


def block(title, rows):
    """A title over aligned lines of name and cells; nothing where there are no rows."""
    if not rows:
        return []
    table = [(name, *cells) for name, cells in rows.items()]
    table = [("", "A", "B"), *table] if len(table[0]) == 3 else table
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [title, *("  ".join(["", *(cell.ljust(w) for cell, w in zip(row, widths, strict=True))]).rstrip()
                     for row in table)]  # fmt: skip
