"""The text of READMEs, results pages and the book on the results, in the reader's language.

All of it is made from committed verdicts and tables. `older` is always the set of stems of runs
that older code made or that read another text; these runs are marked.
"""

import re

import pandas as pd

from lab.claims import cards, claims, errata
from lab.language import in_language, sides, tr, using
from lab.trials import parameters, runs
from lab.trials.store import File

READMES = {"README.md": "en", "README.zh.md": "zh"}
POINT = re.compile(r"(\S+) \[\1, \1\]")  # an interval without width, shown as its number


def link(words, place):
    return f"[{words}]({place})"


def finished(folder):
    """[(path of a notebook, its run.json)] of the finished runs in a folder, in lesson order."""
    read = [(path, runs.read_run(folder / path.stem)) for path in parameters.notebooks()]
    return [(notebook, run) for notebook, run in read if run]


def collect(*folders):
    """A DataFrame of the lines of all claims, from the finished runs in the folders.

    Claims without a line are pending. For a notebook that has run in several folders, the last
    folder is used. Lines that answer a comparison other than today's are left out.
    """
    ledger = claims.ledger()
    found = {name: [line.model_dump() for line in c.unjudged] for name, c in ledger.items()}
    today = {
        (claim.id, part.name): part.digest for claim in ledger.values() for part in claim.parts
    }
    for folder in folders:
        for notebook, _ in finished(folder):
            lines = {}
            for row in claims.read_verdicts(folder / notebook.stem).to_dict("records"):
                if today.get((row["id"], row["part"])) == row["comparison"]:
                    lines.setdefault(row["id"], []).append(row)
            found |= lines
    rows = [row for lines in found.values() for row in lines]
    table = pd.DataFrame(rows, columns=list(claims.Line.model_fields))
    return table.astype({"n": "Int64"})


def label_counts(table):
    """The number of parts with each label, and of those that have no gates yet, in words."""
    words, parts = cards.words(), claims.by_part(table)
    told = ", ".join(f"{n} {words[name]}" for name, n in parts.label.value_counts().items())
    bare = (parts.gates == claims.UNGATED).sum()
    return f"{told}; {bare} " + tr("not yet gated") if bare else told


def opening(notebook):
    """(title, question) of a notebook: its first heading and the paragraph below."""
    texts = [source for kind, _, source in parameters.cells_of(notebook) if kind == "markdown"]
    head = next((text for text in texts if text.startswith("#")), f"# {notebook.stem}")
    heading, _, below = in_language(*sides(head)).partition("\n\n")
    question = " ".join(below.split("\n\n")[0].split())
    return heading.splitlines()[0].lstrip("# "), question.strip("*")


def hero(notebook, folder, named):
    """The stem of the figure that represents the run in `folder`; "" where it has no figures.

    `named` are the figures that the run's lines name. The most frequent one is taken; among equals,
    the one that the notebook draws first.
    """
    code = notebook.read_text("utf-8")
    stems = [path.stem for path in (folder / "figures").glob("*.png")]
    drawn = sorted(stems, key=lambda stem: (code.find(f'\\"{stem}\\"'), stem))
    return max(drawn, key=list(named).count, default="")


def caption(path):
    """The English caption of a figure on one line; "" where it has none."""
    from lab.figures import captions_in  # matplotlib takes long to import

    return " ".join(captions_in(path)[0].split())


# Findings


def findings(table):
    """{exercise: the lines of `table` that are its finding}, of lessons.

    They are the lines of a first part that has a sentence for its label. Where a lesson has none,
    they are those of its first part with a label and a figure.
    """
    ledger = claims.ledger()
    judged, worded = {}, {}
    for (name, part), lines in table.groupby(["id", "part"], sort=False):
        claim, first = ledger[name], lines.iloc[0]
        if claim.place != "lesson" or first.label not in claims.JUDGED or not first.figure:
            continue
        judged.setdefault(claim.exercise, lines)
        if part == claim.parts[0].name and first.label in claim.finding:
            worded.setdefault(claim.exercise, lines)
    return judged | worded


def sentence(lines):
    """The sentence on a part: the ledger's for its label, else the claim with its effect."""
    first = lines.iloc[0]
    claim = claims.ledger()[first.id]
    template = in_language(claim.finding, claim.finding_zh).get(first.label)
    if template:
        return POINT.sub(r"\1", template.format(**numbers(decisive(claim, lines))))
    if len(lines) == 1:
        return f"{claim.sentence} {cards.measured(first)}".strip()
    return claim.sentence


def decisive(claim, lines):
    """The line that supports the label of its part least, so that its sentence holds for all lines.

    For `refuted` and `not everywhere`, it is chosen among the lines that answer no.
    """
    part = next(part for part in claim.parts if part.name == lines.part.iloc[0])
    if lines.label.iloc[0] in ("refuted", "not everywhere"):
        lines = lines[lines.answer.str.startswith("no")]
    if part.direction == "equal":
        return lines.loc[(lines.effect - part.value).abs().idxmax()]
    asks_for_more = part.direction in ("above", "not below")
    if asks_for_more == (lines.label.iloc[0] != "refuted"):
        return lines.loc[lines.effect.idxmin()]
    return lines.loc[lines.effect.idxmax()]


def numbers(row):
    """{name: number} for the placeholders of a sentence."""
    less = {"less": -row.effect, "less_low": -row.high, "less_high": -row.low}
    times = {"times": 1 + row.effect, "times_low": 1 + row.low, "times_high": 1 + row.high}
    counts = {"yes": row.yes, "no": row.no, "cells": row.cells}
    return {"effect": row.effect, "low": row.low, "high": row.high, **less, **times, **counts}


def findings_list(table):
    """A Markdown list of the findings in `table`, which holds the lines of the quick runs."""
    told = findings(table)
    lines = []
    for notebook in parameters.notebooks():
        exercise = parameters.exercise_of(notebook)
        if exercise in told:
            lines_told = told[exercise]
            first = lines_told.iloc[0]
            place = f"results/quick/{notebook.stem}"
            word = tr("figure")
            line = tr(
                "{sentence} ({verdict}, {lesson}, {figure})",
                sentence=sentence(lines_told),
                verdict=cards.label(first),
                lesson=link(exercise, f"{place}/notebook.ipynb"),
                figure=link(word, f"{place}/figures/{first.figure}.png"),
            )
            lines.append(f"* {line}")
    return "\n".join(lines)


# Pages


def about(table, results):
    """A paragraph on claims, lessons and errata, and one on the record and how long runs take."""
    lessons = {claim.exercise for claim in claims.ledger().values() if claim.place == "lesson"}
    wrong = tr("{n} errata", n=sum(entry.struck is None for entry in errata.errata().values()))
    ledger, record = tr("ledger"), tr("record")
    files = [File(path) for path in sorted((results / "record").glob("*.jsonl"))]
    machines = {labels["machine"] for file in files for labels in file.runs.values()}
    seconds = [body["seconds"] for file in files for body in file.trials]
    quick = sum(run["seconds"] for _, run in finished(results / "quick"))
    return tr(
        "{claims} claims of the chapter and its notes stand in one {ledger}, each with its "
        "prediction. {lessons} of {notebooks} notebooks are finished lessons, their comparisons "
        "gated; the others follow. Measuring them found {errata} in the sources, each with the "
        "computation that shows it.\n\n"
        "The {record} holds {trials} trials, mostly trainings, which took {recorded:.0f} minutes "
        "of one core ({machines}). A run takes its numbers from there and says so; `lab verify` "
        "runs recorded trials here again. `quick`, the default, computes here what is not "
        "recorded: the published runs took {quick:.0f} minutes. `--fresh` computes everything "
        "here: some {fresh:.0f} minutes without the record. `full` has the sizes of the chapter, "
        "hours a notebook; {full} of {notebooks} have been run so.",
        claims=table.id.nunique(),
        ledger=link(ledger, "experiments/claims"),
        lessons=len(lessons),
        notebooks=len(parameters.notebooks()),
        errata=link(wrong, in_language("results/errata.md", "results/errata.zh.md")),
        record=link(record, "results/record"),
        trials=len(seconds),
        recorded=sum(seconds) / 60,
        machines="; ".join(sorted(machines)),
        quick=quick / 60,
        fresh=(quick + sum(seconds)) / 60,
        full=len(finished(results / "full")),
    )


def overview_table(folder, older=()):
    """The Markdown table of a README with a row for each finished exercise of a profile."""
    table = collect(folder)
    heads = [tr("exercise"), tr("figures"), tr("verdicts"), tr("minutes without the record")]
    lines = [f"| {' | '.join(heads)} |", "| --- | --- | --- | --- |"]
    for notebook, run in finished(folder):
        place = f"results/{folder.name}/{notebook.stem}"
        title, _ = opening(notebook)
        drawn = list((folder / notebook.stem / "figures").glob("*.png"))
        counts = label_counts(table[table.exercise == parameters.exercise_of(notebook)])
        if notebook.stem in older:
            counts += "; *" + tr("by older code") + "*"
        lesson = link(title, f"{place}/notebook.ipynb")
        figures = link(len(drawn), f"{place}/figures")
        lines.append(f"| {lesson} | {figures} | {counts} | {run['core_seconds'] / 60:.1f} |")
    return "\n".join(lines)


def gallery(folder, older=()):
    """Markdown of all finished exercises: question, finding, figure, verdicts and minutes."""
    table = collect(folder)
    told = findings(table)
    parts = []
    for notebook, run in finished(folder):
        place = notebook.stem
        page = f"{place}/notebook.ipynb"
        exercise = parameters.exercise_of(notebook)
        title, question = opening(notebook)
        parts += [f"### {link(title, page)}", question]
        if exercise in told:
            parts.append(f"**{sentence(told[exercise])}**")
        mine = table[table.exercise == exercise]
        if stem := hero(notebook, folder / place, mine.figure):
            picture = f"{place}/figures/{stem}.png"
            shown = caption(folder / picture).translate(str.maketrans("[]", "()"))
            parts.append(link("!" + link(shown or stem.replace("_", " "), picture), page))
        below = [label_counts(mine)]
        below.append(tr("{n:.1f} minutes without the record", n=run["core_seconds"] / 60))
        if place in older:
            below.append("*" + tr("by older code") + "*")
        below.append(link(tr("figures"), f"{place}/figures"))
        below.append(link(tr("tables"), f"{place}/tables"))
        parts.append(" · ".join(below))
    return "\n\n".join(parts)


def captions_list(folder):
    """A Markdown list of the captioned figures of the finished runs."""
    lines = []
    for path in sorted(folder.glob("*/figures/*.png")):
        run = path.parents[1]
        if runs.read_run(run) and (said := caption(path)):
            lines.append(f"* [{run.name}/{path.stem}]({run.name}/figures/{path.name}): {said}")
    return "\n".join(lines)


def page(folder, older=()):
    """The page of a profile as Markdown: a section for each exercise, and all captions."""
    machines = set()
    for _, run in finished(folder):
        machines.add(f"{run['machine']}, torch {run['versions']['torch']}, {run['device']}")
    place = link("claims.csv", "claims.csv")
    lead = tr("Written by `lab run`. Every answer with its interval is in {table}.", table=place)
    parts = [
        "# " + tr("Results of the {profile} profile", profile=folder.name),
        lead + in_language(" · [中文](README.zh.md)", " · [English](README.md)"),
        tr("Measured on {machines}.", machines="; ".join(sorted(machines)) or tr("no machine yet")),
        gallery(folder, older),
    ]
    if said := captions_list(folder):
        parts += ["## " + tr("What the figures show"), said]
    return "\n\n".join(filter(None, parts)) + "\n"


def summarise(folder, older=()):
    """Write claims.csv of a profile, and its page as README.md and README.zh.md.

    claims.csv names exercises by the stems of their notebooks: pandas would read 1.10 as 1.1.
    """
    stems = {parameters.exercise_of(path): path.stem for path in parameters.notebooks()}
    table = collect(folder)
    runs.write_table(folder / "claims.csv", table.assign(exercise=table.exercise.replace(stems)))
    for name, speak in READMES.items():
        with using(speak):
            runs.write_text(folder / name, page(folder, older))


def outdated(folder):
    """Whether a run or the ledger is newer than what `summarise` wrote."""
    written = folder / "claims.csv"
    read = [*claims.claims_folder().glob("*.yaml"), *folder.glob("*/run.json")]
    newest = max((path.stat().st_mtime for path in read), default=0)
    return not written.exists() or written.stat().st_mtime <= newest


def publish(older=()):
    """Write the pages of the quick profile and of the errata, and the marked parts of READMEs."""
    root = runs.project_root()
    quick = root / "results" / "quick"
    for name, speak in READMES.items():
        text = (root / name).read_text("utf-8")
        with using(speak):
            table = collect(quick)
            text = between(text, "findings", findings_list(table))
            text = between(text, "about", about(table, quick.parent))
            text = between(text, "overview", overview_table(quick, older))
            runs.write_text(quick.parent / name.replace("README", "errata"), errata.page())
        runs.write_text(root / name, text)
    summarise(quick, older)


def between(text, mark, told):
    """The text with `told` between the marker `mark` and the next <!-- end -->."""
    before, _, rest = text.partition(f"<!-- {mark} -->")
    _, _, after = rest.partition("<!-- end -->")
    return f"{before}<!-- {mark} -->\n\n{told}\n\n<!-- end -->{after}"
