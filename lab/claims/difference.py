"""Two runs side by side: parameters, answers and effects, what differs first."""

import json
from pathlib import Path

from lab.claims import cards, claims
from lab.trials import parameters, runs

PLACE = ("commit", "changes", "machine", "device")  # of run.json: what else may make numbers differ
NONE = "–"


def find(name):
    """The folder of a finished run: a path, its name under results, or an exercise, such as 1.4,
    for its quick run.

    ValueError names what there is.
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


def text(a, b):
    """The comparison of the runs in the folders `a` and `b`, as plain text."""
    differing, equal = {}, {}
    told = beside(given(a), given(b), NONE) | beside(place(a), place(b), NONE)
    for name, (one, other) in told.items():
        if one == other:
            equal[name] = [one]
        else:
            differing[name] = [one, other]
    verdicts, effects, same = {}, {}, {}
    for name, (one, other) in beside(judged(a), judged(b), (NONE, "")).items():
        if one == other:
            same[name] = [whole(one)]
        elif one[0] == other[0]:
            effects[name] = [whole(one), whole(other)]
        else:
            verdicts[name] = [whole(one), whole(other)]
    blocks = [
        [f"A  {runs.shown(a)}", f"B  {runs.shown(b)}"],
        block("parameters that differ", differing),
        block("answers that differ", verdicts),
        block("the same answer, another effect", effects),
        block("the same answer and effect", same),
        block("the same parameters", equal),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def given(folder):
    """{name: text} of a run's parameters."""
    found = runs.read_run(folder)["parameters"]
    return {name: json.dumps(value) for name, value in found.items() if name != "results"}


def place(folder):
    """{name: text} of what else may make a run's numbers differ."""
    run = runs.read_run(folder)
    return {f"({name})": str(run.get(name, NONE)) for name in PLACE}


def judged(folder):
    """{claim, part and cell: (answer, effect with its interval)} of a run."""
    return {
        ", ".join(filter(None, [row.id, row.part, row.where])): (row.answer, cards.measured(row))
        for row in claims.read_verdicts(folder).itertuples()
    }


def beside(one, other, missing):
    """{name: (value in the one, in the other)} of two dicts."""
    names = dict.fromkeys([*one, *other])
    return {name: (one.get(name, missing), other.get(name, missing)) for name in names}


def whole(pair):
    """Verdict and effect on one line."""
    return "  ".join(pair).strip()


def block(title, rows):
    """A title over aligned lines of name and cells; nothing where there are no rows."""
    table = [[name, *cells] for name, cells in rows.items()]
    if not table:
        return []
    if len(table[0]) == 3:
        table.insert(0, ["", "A", "B"])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [title]
    for row in table:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(["", *cells]).rstrip())
    return lines
