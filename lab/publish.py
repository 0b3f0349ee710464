"""Publish runs: copy them to results/quick, and update the results page and the README.

`lab publish` copies finished runs to results/quick/NN_slug; `make readme` only updates the pages.
"""

import re
import shutil

import pandas as pd

from lab import claims, files, runs, trials
from lab.files import Refused, shown, write_table, write_text

LEAD = (
    "Written by `lab publish`. Every answer with its interval is in [claims.csv](claims.csv); "
    "`lab show 1.4` opens a lesson with its figures and answers."
)
LIST = re.compile(r"(?s)(<!-- answers -->\n).*?(<!-- /answers -->)")


def publish(notebooks):
    """Publish the runs of these notebooks (default: all that have a run) and update the pages.

    Raises Refused if a notebook has no run of the current code, or a run that is not from a clean
    commit.
    """
    results = files.project_root() / "results"
    ran = [p for p in files.notebooks() if files.read_run(results / "runs" / "quick" / p.stem)]
    if not (chosen := notebooks or ran):
        raise Refused("there are no quick runs: use `lab run` first")
    jobs = runs.plan([path.stem for path in chosen], "quick", results)
    for job in jobs:
        if not job.is_done:
            raise Refused(
                f"{job.notebook.stem} has no run of the current code: use `lab run` first"
            )
        if files.read_run(job.folder)["changes"] is not False:
            hint = "commit, delete this folder, then run again"
            raise Refused(f"{shown(job.folder)} is not from a clean commit: {hint}")
    for job in jobs:
        record_rows(job)
        final = results / "quick" / job.notebook.stem
        copy(job.folder, final)
        print(f"{job.notebook.stem}: {shown(final)}")
    write_pages()


def record_rows(job):
    """Replace the record of a notebook with the rows that its run used."""
    results = files.project_root() / "results"
    place = trials.Place(job.notebook.stem, results / ".trials", results / "record")
    trials.record(place, files.read_run(job.folder)["trials"])


def copy(folder, final):
    """Replace the folder `final` with a copy of a run."""
    aside = final.with_name(f".{final.name}")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(folder, aside)
    text = (aside / "notebook.ipynb").read_text("utf-8").replace(shown(folder), shown(final))
    write_text(aside / "notebook.ipynb", text)
    files.put(aside, final)


# Pages


def write_pages():
    """Write results/quick/claims.csv, results/quick/README.md and the answers in the README."""
    quick = files.project_root() / "results" / "quick"
    done = [path for path in files.notebooks() if files.read_run(quick / path.stem)]
    tables = {path: claims.read_answers(quick / path.stem) for path in done}
    if tables:
        named = [table.assign(exercise=path.stem) for path, table in tables.items()]
        write_table(quick / "claims.csv", pd.concat(named))
    parts = ["# Results", LEAD]
    for path in done:
        parts += lesson(path, quick / path.stem)
    parts += claims_and_answers(tables)
    write_text(quick / "README.md", "\n\n".join(parts) + "\n")
    write_answers()


def lesson(notebook, folder):
    """The section of one lesson: question, figure, answer and links."""
    title, question = files.title_of(notebook)
    parts = [f"## [{title}]({folder.name}/notebook.ipynb)", question]
    if figure := main_figure(notebook, folder):
        from lab.charts import caption_in  # slow import

        path = f"figures/{figure}.png"
        caption = caption_in(folder / path).translate(str.maketrans("[]", "()"))
        parts.append(f"![{caption or figure.replace('_', ' ')}]({folder.name}/{path})")
    parts.append(files.answer_of(notebook))
    links = {"answers": "answers.csv", "figures": "figures", "tables": "tables"}
    parts.append(" · ".join(f"[{name}]({folder.name}/{at})" for name, at in links.items()))
    return [part for part in parts if part]


def main_figure(notebook, folder):
    """The stem of the notebook's first figure that the run has; "" if there is none."""
    code = notebook.read_text("utf-8")
    stems = [path.stem for path in (folder / "figures").glob("*.png")]
    return min(stems, key=lambda stem: (code.find(f'\\"{stem}\\"'), stem), default="")


def claims_and_answers(tables):
    """Paragraphs, one per claim, with its quotes, questions and answers.

    `tables` is {notebook: answers}.
    """
    parts = ["# What the book says, what we found"]
    for notebook, table in tables.items():
        link = f"[{files.exercise_of(notebook)}]({notebook.stem}/notebook.ipynb)"
        for claim in claims.read(claims.folder() / f"{notebook.stem}.yaml").values():
            quotes = [f"> {quote.en} {quote.zh} ({quote.place})" for quote in claim.says]
            lines = "\n".join(answers(claim, table[table.id == claim.id]))
            parts.append("\n>\n".join(quotes) + f"\n\n{lines} {link}")
    return parts


def answers(claim, lines):
    """Yield a list item for each question of a claim, with one answer per condition."""
    if claim.open:
        yield f"* Not decided here: {claim.open}"
    for part in claim.parts:
        records = lines[lines.part == part.name].to_dict("records")
        texts = [": ".join(filter(None, (line["where"], line["answer"]))) for line in records]
        yield f"* {part.question} **{'; '.join(texts) or 'not run yet'}**"


def write_answers():
    """Write the answers of the lessons between the two `answers` comments in the README."""
    readme = files.project_root() / "README.md"
    items = ""
    for notebook in files.notebooks():
        if answer := files.answer_of(notebook):
            link = f"results/quick/{notebook.stem}/notebook.ipynb"
            items += f"* [{files.title_of(notebook)[0]}]({link}) {answer}\n"
    if items and readme.exists():
        text = readme.read_text("utf-8")
        write_text(readme, LIST.sub(lambda match: match[1] + items + match[2], text))
