"""The pages of the book as Markdown, made from results and the ledger.

All text that comes from a run or a user is escaped.
"""

import base64
import itertools
import pkgutil
import re
import shutil
from pathlib import Path

import nbformat
from jinja2 import Environment, FileSystemLoader, StrictUndefined

import lab
from lab.book import glossary
from lab.claims import cards, claims, errata, report
from lab.language import in_language, language, tr
from lab.states import TYPE
from lab.trials.runs import homes, write_text

HERE = Path(__file__).parent
TEXTS = ("reading", "measured", "cluster")  # pages of prose, texts/LANGUAGE/NAME.md
PRIVATE = ("lab.book", "lab.tools", "lab.tools.cli")  # without functions for readers
WIDGETS = "application/vnd.jupyter.widget-view+json"


def write(source, runs, older=()):
    """Write the source of the book in the language in use to the folder `source`.

    `older` are the stems of runs that older code made or that read another text.
    """
    for folder in ("static", "parts"):
        shutil.copytree(HERE / folder, source / folder)
    shutil.copy(HERE / "conf.py", source / "conf.py")
    for name in TEXTS:
        shutil.copy(HERE / "texts" / language() / f"{name}.md", source / f"{name}.md")
    table = report.collect(*homes("full"), *homes("quick"))
    values = {
        "index": {"totals": report.label_counts(table)},
        "claims": {"table": claims_table(table, runs)},
        "glossary": {"terms": glossary.terms(runs)},
        "api": {"modules": modules()},
        "exercises": {},
        "own": {},
        "probes": {},
        "teach": {},
    }
    markdown = environment(runs=runs, sections=sections(), older=older)
    for name, told in values.items():
        write_text(source / f"{name}.md", markdown.get_template(f"{name}.md").render(**told))
    write_text(source / "errata.md", errata_page({run.stem for run in runs}))
    for run in runs:
        write_lesson(run, source)


def environment(autoescape=False, **told):
    """The jinja2 Environment of the templates, with their globals and those in `told`."""
    loader = FileSystemLoader(HERE / "templates")
    options = {"undefined": StrictUndefined, "trim_blocks": True, "autoescape": autoescape}
    made = Environment(loader=loader, **options)
    made.globals |= {
        "t": in_language,
        "words": cards.words(),
        "measured": cards.measured,
        "label": cards.label,
        "counts": report.label_counts,
        "escape": plain,
    }
    made.globals |= told
    return made


def sections():
    """{number: name} of the chapter's sections; 0 is for notebooks of no section."""
    return {
        1: tr("What attention is, in mathematics"),
        2: tr("Several heads and how to choose them"),
        3: tr("Position encodings compared"),
        4: tr("Feed-forward networks and activations"),
        5: tr("Norms and residual connections"),
        6: tr("Variants of the Transformer"),
        0: tr("Other notebooks"),
    }


def modules():
    """The names of the modules whose functions and classes a reader may use."""
    found = [each.name for each in pkgutil.walk_packages(lab.__path__, "lab.")]
    return [name for name in found if not name.startswith(PRIVATE)]


def claims_table(table, runs):
    """HTML of all parts with their lines; `table` is what `report.collect` returns."""
    ledger, rows = claims.ledger(), []
    stems = {run.exercise: run.stem for run in runs}
    for (name, _), group in table.groupby(["id", "part"], sort=False):
        claim, lines = ledger[name], list(group.itertuples())
        part = next((part for part in claim.parts if part.name == lines[0].part), None)
        notes = [*cards.gates_by_cell(lines), lines[0].sizes, "; ".join(claim.sources)]
        rows.append(
            {
                "claim": claim,
                "asked": cards.part_in_words(part) or claim.expected,
                "bar": cards.bar(lines[0]),
                "lines": lines,
                "stem": stems.get(claim.exercise, ""),
                "notes": filter(None, notes),
            }
        )
    words = {name: word for name, word in cards.words().items() if name in set(table.label)}
    numbers = dict.fromkeys(row["claim"].exercise for row in rows)
    filters = [
        ("label", tr("label"), words),
        ("exercise", tr("exercise"), {name: name for name in numbers}),
    ]
    template = environment(autoescape=True).get_template("claims.html")
    return template.render(rows=rows, filters=filters)


def errata_page(stems):
    """The errata page of results/, with links to the book's lessons, which have the `stems`."""

    def led(link):
        stem = re.match(r"quick/(\w+)/", link[2])
        if stem and stem[1] in stems:
            return f"[{link[1]}](exercises/{stem[1]}.ipynb)"
        return f"`{link[1]}`"

    # without the link to the other language
    text = re.sub(r" · \[\w+\]\(errata[\w.]*\)", "", errata.page())
    return re.sub(r"\[([^\]]+)\]\(([^)]+)\)", led, text)


def plain(text):
    """Text escaped for Markdown and HTML: all signs become entities."""
    return "".join(c if c.isalnum() or c in " ," else f"&#{ord(c)};" for c in str(text))


# Lessons


def write_lesson(run, source):
    """Write the executed notebook of a run as a page, with its tables and stored figure states.

    Its code is folded, and outputs that need a live kernel are left out.
    """
    files = source / "files" / run.stem
    shutil.copytree(run.folder / "tables", files, dirs_exist_ok=True)
    if run.hero:
        shutil.copy(run.picture(run.hero), files / f"{run.hero}.png")
    notebook = run.read()
    notebook.metadata.pop("widgets", None)
    cells = [cell for cell in notebook.cells if "injected-parameters" not in tags(cell)]
    _, *rest = cells[0].source.split("\n", 1)
    cells[0].source = "\n".join([f"# {run.title}", *rest])
    turns = 0
    for cell in cells:
        if cell.cell_type == "code":
            cell.metadata["tags"] = ["hide-input"]
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            data.pop(WIDGETS, None)
            if TYPE in data:
                turns += 1
                place = source / "static" / "turns" / f"{run.stem}-{turns}"
                data["text/html"] = turn_html(data.pop(TYPE), place)
                data.pop("image/png", None)
    tables = [path.stem for path in sorted(files.glob("*.csv"))]
    links = [f"[{plain(stem)}](../files/{run.stem}/{stem}.csv)" for stem in tables]
    cells.insert(1, nbformat.v4.new_markdown_cell("\n\n".join(head(run))))
    told = tr("Tables: {links}", links=", ".join(links))
    cells.append(nbformat.v4.new_markdown_cell(told))
    notebook.cells = cells
    write_text(source / "exercises" / f"{run.stem}.ipynb", nbformat.writes(notebook))


def tags(cell):
    return cell.metadata.get("tags", ())


def head(run):
    """Yield the paragraphs under a lesson's title: labels, machine, and how to play with it."""
    counts = report.label_counts(run.lines)
    play = tr("to play with it: `make jupyter`, then `{name}`", name=run.notebook.name)
    yield f"{counts} · {run.profile}, {plain(run.about['machine'])} · {play}"
    if language() != "en" and run.spoken == run.folder:
        yield tr(
            "Figures and cards are in English here; "
            "`lab run {name} --language zh` makes them anew.",
            name=run.exercise,
        )


def turn_html(found, place):
    """HTML of a "Your turn" figure with its stored states; a script of the page shows one of them.

    `found` comes from `lab.states.prerendered`. Its pictures are written to files whose paths begin
    with `place`, which lies in the book's static files.
    """
    controls, states, first = found["controls"], [], 0
    names = [control["name"] for control in controls]
    for control in controls:
        first = first * len(control["values"]) + control["at"]
    chosen = itertools.product(*(control["values"] for control in controls))
    place.parent.mkdir(parents=True, exist_ok=True)
    for i, (state, labels) in enumerate(zip(found["states"], chosen, strict=True)):
        if "png" not in state:
            states.append(state)
            continue
        path = place.with_name(f"{place.name}-{i}.png")
        path.write_bytes(base64.b64decode(state["png"]))
        words = ", ".join(f"{name} {label}" for name, label in zip(names, labels, strict=True))
        states.append({"picture": f"../_static/turns/{path.name}", "words": words})
    n = sum("picture" in state for state in states)
    caption = tr(
        "The run stored {n} states of this figure; in JupyterLab every value can be set.", n=n
    )
    template = environment(autoescape=True).get_template("turn.html")
    return template.render(controls=controls, states=states, first=first, caption=caption)
