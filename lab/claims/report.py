"""The page of all published lessons, results/quick/README.md, and their answers in claims.csv."""

import pandas as pd

from lab import parameters, runs
from lab.claims import claims

LEAD = (
    "Written by `lab publish`. Every answer with its interval is in [claims.csv](claims.csv); "
    "`lab show 1.4` opens a lesson with its figures and cards."
)


def finished(folder):
    """[(path of a notebook, its run.json)] of the finished runs in a folder, in lesson order."""
    read = [(path, runs.read_run(folder / path.stem)) for path in parameters.notebooks()]
    return [(notebook, run) for notebook, run in read if run]


def collect(folder):
    """A DataFrame of the lines of all claims, from the finished runs in the folder.

    Claims without a line are pending. Lines that answer a comparison other than today's are left
    out.
    """
    ledger = claims.ledger()
    found = {name: [line.model_dump() for line in c.unjudged] for name, c in ledger.items()}
    today = {
        (claim.id, part.name): part.digest for claim in ledger.values() for part in claim.parts
    }
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
    """The number of parts with each label, in words."""
    counts = claims.by_part(table).label.value_counts()
    return ", ".join(f"{n} {label}" for label, n in counts.items())


def opening(notebook):
    """(title, question) of a notebook: its first heading and the paragraph below."""
    texts = [source for kind, _, source in parameters.cells_of(notebook) if kind == "markdown"]
    head = next((text for text in texts if text.startswith("#")), f"# {notebook.stem}")
    heading, _, below = head.partition("\n\n")
    question = " ".join(below.partition("<details>")[0].split("\n\n")[0].split())
    return heading.splitlines()[0].lstrip("# "), question.strip("*")


def main_figure(notebook, folder, named):
    """The stem of the figure that stands for the run in `folder`; "" where it has no figures.

    `named` are the figures that the run's lines name. The most frequent one is taken; among equals,
    the one that the notebook draws first.
    """
    code = notebook.read_text("utf-8")
    stems = [path.stem for path in (folder / "figures").glob("*.png")]
    drawn = sorted(stems, key=lambda stem: (code.find(f'\\"{stem}\\"'), stem))
    return max(drawn, key=list(named).count, default="")


def page(folder):
    """The page of a folder of runs as Markdown: question, figure and answers of each lesson."""
    from lab.figures import caption_in  # matplotlib takes long to import

    table, parts = collect(folder), ["# Results", LEAD]
    for notebook, run in finished(folder):
        stem = notebook.stem
        title, question = opening(notebook)
        parts += [f"### [{title}]({stem}/notebook.ipynb)", question]
        mine = table[table.exercise == parameters.exercise_of(notebook)]
        if figure := main_figure(notebook, folder / stem, mine.figure):
            picture = f"{stem}/figures/{figure}.png"
            caption = caption_in(folder / picture).translate(str.maketrans("[]", "()"))
            parts.append(f"![{caption or figure.replace('_', ' ')}]({picture})")
        minutes = f"{run['core_seconds'] / 60:.1f} minutes without the record"
        places = f"[figures]({stem}/figures) · [tables]({stem}/tables)"
        parts.append(f"{label_counts(mine)} · {minutes} · {places}")
    return "\n\n".join(parts) + "\n"


def summarise(folder):
    """Write claims.csv and README.md of a folder of runs.

    claims.csv names exercises by the stems of their notebooks: pandas would read 1.10 as 1.1.
    """
    stems = {parameters.exercise_of(path): path.stem for path in parameters.notebooks()}
    table = collect(folder)
    runs.write_table(folder / "claims.csv", table.assign(exercise=table.exercise.replace(stems)))
    runs.write_text(folder / "README.md", page(folder))


def outdated(folder):
    """Whether a run or the ledger is newer than what `summarise` wrote."""
    written = folder / "claims.csv"
    read = [*claims.claims_folder().glob("*.yaml"), *folder.glob("*/run.json")]
    newest = max((path.stat().st_mtime for path in read), default=0)
    return not written.exists() or written.stat().st_mtime <= newest
