"""What git holds of runs: results/quick with a page of all lessons, and the README's answers.

`lab publish` copies finished runs to results/quick/NN_slug; `make readme` only writes the pages.
"""

import re
import shutil

import pandas as pd

from lab import claims, files, run, trials
from lab.files import Refused, shown, write_table, write_text

LEAD = (
    "Written by `lab publish`. Every answer with its interval is in [claims.csv](claims.csv); "
    "`lab show 1.4` opens a lesson with its figures and answers."
)
KEPT = (
    "notebook.ipynb",
    "run.json",
    "answers.csv",
    "tables/*.csv",
    "figures/*.png",
)
LIST = re.compile(r"(?s)(<!-- answers -->\n).*?(<!-- /answers -->)")


def publish(notebooks):
    """Publish the finished runs of these notebooks, or of all that ran, and write the pages.

    Raises Refused where a run is not of today's code or not of a clean commit.
    """
    results = files.project_root() / "results"
    ran = [p for p in files.notebooks() if files.read_run(results / "runs" / "quick" / p.stem)]
    if not (chosen := notebooks or ran):
        raise Refused("no notebook has run at quick here: use `lab run` first")
    jobs = run.plan([path.stem for path in chosen], "quick", results)
    for job in jobs:
        if not job.is_done:
            raise Refused(f"{job.notebook.stem} has not run with this code: use `lab run` first")
        if files.read_run(job.folder)["changes"] is not False:
            raise Refused(f"{shown(job.folder)} was made from uncommitted code: commit, then run")
    for job in jobs:
        move_rows(job)
        final = results / "quick" / job.notebook.stem
        copy(job.folder, final)
        print(f"{job.notebook.stem}: {shown(final)}")
    write_pages()


def move_rows(job):
    """Make the record of a notebook hold just the rows that its finished run used."""
    results = files.project_root() / "results"
    place = trials.Place(job.notebook.stem, results / ".trials", results / "record")
    trials.record(place, files.read_run(job.folder)["trials"])


def copy(folder, final):
    """Copy what is kept of a run to `final`, in the place of what is there."""
    aside = final.with_name(f".{final.name}")
    shutil.rmtree(aside, ignore_errors=True)
    for path in [path for pattern in KEPT for path in folder.glob(pattern)]:
        place = aside / path.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    text = (aside / "notebook.ipynb").read_text("utf-8").replace(shown(folder), shown(final))
    write_text(aside / "notebook.ipynb", text)
    files.put(aside, final)


# Pages


def write_pages():
    """Write results/quick/claims.csv and README.md, and the list of answers in the README."""
    quick = files.project_root() / "results" / "quick"
    done = [path for path in files.notebooks() if files.read_run(quick / path.stem)]
    tables = {path: claims.read_answers(quick / path.stem) for path in done}
    named = [table.assign(exercise=path.stem) for path, table in tables.items()]
    if named:
        write_table(quick / "claims.csv", pd.concat(named))
    parts = ["# Results", LEAD]
    for path in done:
        parts += lesson(path, quick / path.stem)
    parts += said_and_found(tables)
    write_text(quick / "README.md", "\n\n".join(parts) + "\n")
    write_answers()


def lesson(notebook, folder):
    """The paragraphs on one lesson: question, picture, answer and links."""
    title, question = files.title_of(notebook)
    parts = [f"## [{title}]({folder.name}/notebook.ipynb)", question]
    if figure := main_figure(notebook, folder):
        from lab.charts import caption_in  # matplotlib takes long to import

        place = f"figures/{figure}.png"
        caption = caption_in(folder / place).translate(str.maketrans("[]", "()"))
        parts.append(f"![{caption or figure.replace('_', ' ')}]({folder.name}/{place})")
    parts.append(files.answer_of(notebook))
    links = {"answers": "answers.csv", "figures": "figures", "tables": "tables"}
    parts.append(" · ".join(f"[{name}]({folder.name}/{at})" for name, at in links.items()))
    return [part for part in parts if part]


def main_figure(notebook, folder):
    """The stem of the figure of the run in `folder` that the notebook draws first; "" without one."""
    code = notebook.read_text("utf-8")
    stems = [path.stem for path in (folder / "figures").glob("*.png")]
    return min(stems, key=lambda stem: (code.find(f'\\"{stem}\\"'), stem), default="")


def said_and_found(tables):
    """The paragraphs that set each sentence of the book beside its questions and their answers.

    `tables` is {notebook: its answers}.
    """
    parts = ["# What the book says, what we found"]
    for notebook, table in tables.items():
        link = f"[{files.exercise_of(notebook)}]({notebook.stem}/notebook.ipynb)"
        for claim in claims.read(claims.folder() / f"{notebook.stem}.yaml").values():
            said = [f"> {each.en} {each.zh} ({each.place})" for each in claim.says]
            lines = "\n".join(answers(claim, table[table.id == claim.id]))
            parts.append("\n>\n".join(said) + f"\n\n{lines} {link}")
    return parts


def answers(claim, lines):
    """Yield an item for each question of a claim: its answer, by condition where it has several."""
    if claim.open:
        yield f"* Not decided here: {claim.open}"
    for part in claim.parts:
        mine = lines[lines.part == part.name].to_dict("records")
        told = [": ".join(filter(None, (line["where"], line["answer"]))) for line in mine]
        yield f"* {part.question} **{'; '.join(told) or 'not run yet'}**"


def write_answers():
    """Write the list of the lessons' answers in the README, between its two comments."""
    readme = files.project_root() / "README.md"
    items = ""
    for notebook in files.notebooks():
        if answer := files.answer_of(notebook):
            link = f"results/quick/{notebook.stem}/notebook.ipynb"
            items += f"* [{files.title_of(notebook)[0]}]({link}) {answer}\n"
    if items and readme.exists():
        text = readme.read_text("utf-8")
        write_text(readme, LIST.sub(lambda found: found[1] + items + found[2], text))
