"""What the lab found and what it cost, in sentences of the reader's language, made from committed verdicts and rows.

A finding is told of a claim in a lesson, by the sentence that the ledger has for its verdict; where a lesson has none,
by the first of its claims that came to a verdict and a figure.
"""

import re

from lab.engine import parameters, runs
from lab.language import in_language, language, tr
from lab.ledger import cards, claims, openings
from lab.trials.store import File

POINT = re.compile(r"(\S+) \[\1, \1\]")  # an interval without width: the number alone
ENOUGH = 10  # sentences, or one a lesson where there are more lessons


def findings(table, prefix=""):
    """Markdown, a line a finding of `table`, the verdicts of a profile; `prefix` leads to the folder of its runs."""
    return "\n".join(_line(notebook, row, prefix) for notebook, row in chosen(table))


def chosen(table):
    """[(notebook, row of `table`)] of what is told, in the order of the lessons.

    Each lesson in turn gives one more until there are enough.
    """
    of = [told for notebook in parameters.notebooks() if (told := _found(notebook, table))]
    kept = [0] * len(of)
    for turn in range(max(map(len, of), default=0)):
        for i, told in enumerate(of):
            kept[i] += turn < len(told) and (turn == 0 or sum(kept) < ENOUGH)
    return [each for n, told in zip(kept, of, strict=True) for each in told[:n]]


def lessons():
    """Notebooks that are lessons: those with claims that say so."""
    taught = {claim.exercise for claim in claims.ledger().values() if claim.place == "lesson"}
    return [notebook for notebook in parameters.notebooks() if parameters.exercise_of(notebook) in taught]


def finding_of(notebook, table):
    """The first finding of a lesson as a sentence; "" where there is none."""
    return next((sentence(row) for _, row in _found(notebook, table)), "")


def hero(notebook, folder, table):
    """The stem of the figure that stands for a run: the one that most of its verdicts name, the earliest of them."""
    there = openings.figures(notebook, folder / notebook.stem)
    named = list(table[table.exercise == parameters.exercise_of(notebook)].figure)
    return max(there, key=named.count, default="")


def sentence(row):
    """What is said of a claim's verdict, a row of a table of verdicts."""
    claim = claims.ledger()[row.id]
    template = in_language(claim.finding, claim.finding_zh).get(row.verdict)
    if not template:
        return f"{claim.sentence} {cards.measured(row)}".strip()
    return POINT.sub(r"\1", template.format(**numbers(row)))


def _found(notebook, table):
    """[(notebook, row)] of a lesson's findings, in the order of the ledger."""
    if notebook not in lessons():
        return []
    mine = table[(table.exercise == parameters.exercise_of(notebook)) & table.verdict.isin(claims.JUDGED)]
    ledger, rows = claims.ledger(), list(mine[mine.figure != ""].itertuples())
    rows = [row for row in rows if ledger[row.id].place == "lesson"]
    told = [row for row in rows if row.verdict in ledger[row.id].finding]
    return [(notebook, row) for row in told or rows[:1]]


def _line(notebook, row, prefix):
    place = f"{prefix}{notebook.stem}"
    lesson = f"[{parameters.exercise_of(notebook)}]({place}/notebook.ipynb)"
    figure = f"[{tr('figure')}]({place}/figures/{row.figure}.png)"
    told = {"verdict": cards.words()[row.verdict], "lesson": lesson, "figure": figure}
    return "* " + tr("{sentence} ({verdict}, {lesson}, {figure})", sentence=sentence(row), **told)


def numbers(row):
    """What a sentence can be filled with."""
    less = {"less": -row.effect, "less_low": -row.high, "less_high": -row.low}
    times = {"times": 1 + row.effect, "times_low": 1 + row.low, "times_high": 1 + row.high}
    return {"effect": row.effect, "low": row.low, "high": row.high, **less, **times}


def about(table, wrong, folder):
    """Two paragraphs: claims, errata and lessons; the record, what it cost, what each way to run takes."""
    notebooks, home = parameters.notebooks(), folder.parent
    seconds = sum(run["seconds"] for path in notebooks if (run := runs.read_run(folder / path.stem)))
    full = sum(runs.read_run(home / "full" / path.stem) is not None for path in notebooks)
    files = [File(path) for path in sorted((home / "record").glob("*.jsonl"))]
    trials = [body for file in files for body in file.trials]
    recorded = sum(body["seconds"] for body in trials)
    machines = "; ".join(sorted({labels["machine"] for file in files for labels in file.runs.values()}))
    ledger = "[" + tr("ledger") + "](experiments/claims)"
    record = "[" + tr("record") + "](results/record)"
    errata = "[" + tr("{n} errata", n=wrong) + f"](results/{in_language('errata.md', 'errata.zh.md')})"
    told = [
        tr(
            "{n} claims of the chapter and its notes stand in one {ledger}, each with its prediction.",
            n=len(table),
            ledger=ledger,
        ),
        tr(
            "{lessons} of {n} notebooks are finished lessons, their comparisons gated; the others follow.",
            lessons=len(lessons()),
            n=len(notebooks),
        ),
        tr("Measuring them found {errata} in the sources, each with the computation that shows it.", errata=errata),
    ]
    cost = [
        tr(
            "The {record} holds {n} trials, mostly trainings, which took {minutes:.0f} minutes of one core "
            "({machines}).",
            record=record,
            n=len(trials),
            minutes=recorded / 60,
            machines=machines,
        ),
        tr("A run takes its numbers from there and says so; `lab verify` runs recorded trials here again."),
        tr(
            "`quick`, the default, computes here what is not recorded: the published runs took {minutes:.0f} minutes.",
            minutes=seconds / 60,
        ),
        tr(
            "`--fresh` computes everything here: some {minutes:.0f} minutes without the record.",
            minutes=(seconds + recorded) / 60,
        ),
        tr(
            "`full` has the sizes of the chapter, hours a notebook; {full} of {n} have been run so.",
            full=full,
            n=len(notebooks),
        ),
    ]
    glue = "" if language() == "zh" else " "
    return "\n\n".join(glue.join(sentences) for sentences in (told, cost))
