"""Two runs side by side: their parameters, answers and effects, differences first."""

import json
from pathlib import Path

from rich.table import Table

from lab.claims import cards, claims
from lab.trials import parameters, runs

PLACE = ("commit", "changes", "machine", "device")  # of run.json: these may explain a difference
NONE = "–"


def find(name):
    """The folder of a finished run.

    `name` is its path, its name under results, or an exercise such as 1.4, which means the quick
    run. Raises ValueError where no run or several runs match.
    """
    results = runs.project_root() / "results"
    stems = [path.stem for path in parameters.notebooks() if parameters.is_called(path, name)]
    places = [[Path(name)], [results / name], [runs.latest("quick", stem) for stem in stems]]
    for stem in stems or [name]:
        places.append(sorted([*results.glob(f"*/{stem}"), *results.glob(f"runs/*/{stem}")]))
    for place in places:
        found = [path for path in place if (path / "run.json").exists()]
        if len(found) > 1:
            raise ValueError(f"{name} may be {' or '.join(map(runs.shown, found))}: say which")
        if found and runs.read_run(found[0]) is None:
            raise ValueError(f"{found[0] / 'run.json'} is damaged; `lab run` makes it anew")
        if found:
            return found[0]
    there = [*results.glob("*/*/run.json"), *results.glob("runs/*/*/run.json")]
    known = sorted(path.parent.relative_to(results).as_posix() for path in there)
    raise ValueError(
        f"there is no finished run {name}; under results there are {', '.join(known) or 'none'}"
    )


def tables(a, b):
    """Yield the tables that compare the runs in the folders `a` and `b`, differences first."""
    about = beside(given(a), given(b)) | beside(place(a), place(b))
    found = beside(judged(a), judged(b))
    blocks = {
        "parameters that differ": {name: pair for name, pair in about.items() if len(pair) > 1},
        "answers that differ": {},
        "the same answer, another effect": {},
        "the same answer and effect": {name: pair for name, pair in found.items() if len(pair) < 2},
        "the same parameters": {name: pair for name, pair in about.items() if len(pair) < 2},
    }
    for name, pair in found.items():
        if len(pair) > 1:
            answers = {text.partition("  ")[0] for text in pair}
            kind = "answers that differ" if len(answers) > 1 else "the same answer, another effect"
            blocks[kind][name] = pair
    for title, rows in blocks.items():
        if rows:
            sides = ("A", "B") if len(next(iter(rows.values()))) > 1 else ("A and B",)
            table = Table(title, *sides, box=None, pad_edge=False, padding=(0, 2, 0, 0))
            for name, pair in rows.items():
                table.add_row(name, *pair)
            yield table


def given(folder):
    """{name: text} of a run's parameters."""
    found = runs.read_run(folder)["parameters"]
    return {name: json.dumps(value) for name, value in found.items() if name != "results"}


def place(folder):
    """{name: text} of a run's commit, machine and device."""
    run = runs.read_run(folder)
    return {f"({name})": str(run.get(name, NONE)) for name in PLACE}


def judged(folder):
    """{claim, part and cell: answer and effect with its interval} of a run."""
    return {
        ", ".join(filter(None, [row.id, row.part, row.where])): (
            f"{row.answer}  {cards.measured(row)}".strip()
        )
        for row in claims.read_verdicts(folder).itertuples()
    }


def beside(one, other):
    """{name: (value in `one`, value in `other`), or (value,) where both are the same}."""
    names = dict.fromkeys([*one, *other])
    pairs = {name: (one.get(name, NONE), other.get(name, NONE)) for name in names}
    return {name: tuple(dict.fromkeys(pair)) for name, pair in pairs.items()}
