"""The pages of the book as Markdown, from results and the ledger. Everything that a run or a user wrote is escaped."""

import base64
import itertools
import shutil
from pathlib import Path

import nbformat
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lab.book import board, charts, glossary, seams, tables
from lab.book.runs import counted, in_order
from lab.engine import parameters
from lab.engine.runs import homes, write_text
from lab.language import in_language, language, tr
from lab.ledger import cards, claims, findings, openings, summary
from lab.states import TYPE

HERE = Path(__file__).parent
TEXTS = ("reading", "cluster")  # pages of prose, texts/LANGUAGE/NAME.md


def write(source, finished, older=()):
    """Write every page, notebook, picture and table of the book, in the language in use, under `source`.

    `older` are the stems of the runs that older code made, or that read another text.
    """
    for folder in ("static", "parts"):
        shutil.copytree(HERE / folder, source / folder)
    shown = in_order(finished)
    judged = board.claim_cards(shown + [run for run in finished if run not in shown])
    markdown = environment(runs=shown, sections=sections(), older=older)

    def page(name, template, **values):
        write_text(source / f"{name}.md", markdown.get_template(template).render(**values))

    entries, table = board.corrections(shown), summary.collect(*homes("quick"))
    stems = {run.stem for run in shown}
    chosen = [(notebook, row) for notebook, row in findings.chosen(table) if notebook.stem in stems]
    page("index", "index.md", totals=counted(table), findings=chosen, found=found(table))
    page("scoreboard", "scoreboard.md", cards=claims_html(judged))
    page("errata", "errata.md", entries=len(entries), corrections=corrections_html(entries))
    page("glossary", "glossary.md", terms=glossary.terms(shown))
    page("matters", "matters.md", table=tables.plain_table(tables.matters(shown)))
    page("measured", "measured.md", machines=tables.machines(finished))
    page("gallery", "gallery.md")
    page("charts", "charts.md", verbs=charts.drawn(source / "files" / "charts"))
    page("seams", "seams.md", seams=seams.listed(), modules=seams.modules())
    page("api", "api.md", modules=seams.modules())
    page("exercises", "exercises.md")
    page("own", "own.md")
    page("probes", "probes.md")
    page("teach", "teach.md", lessons=taught(shown))
    for name in TEXTS:
        shutil.copy(HERE / "texts" / language() / f"{name}.md", source / f"{name}.md")
    for run in shown:
        page(f"tables/{run.stem}", "tables.md", run=run, tables=tables.behind(run))
        copy_notebook(run, source / "exercises" / f"{run.stem}.ipynb")
        shutil.copytree(run.folder / "tables", source / "files" / run.stem / "tables", dirs_exist_ok=True)
        for stem in run.figures:
            place = source / "files" / run.stem / "figures" / f"{stem}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(run.picture(stem), place)


def environment(autoescape=False, **told):
    """Templates and what all of them know."""
    made = Environment(
        loader=FileSystemLoader(HERE / "templates"), undefined=StrictUndefined, trim_blocks=True, autoescape=autoescape
    )
    made.globals |= {
        "words": words(),
        "anchor": tables.anchor,
        "t": in_language,
        "kinds": board.kinds(),
        "signs": board.measured_where(),
        "escape": plain,
    }
    made.globals |= {"measured": cards.measured, "sentence": findings.sentence, "question": openings.question}
    made.globals |= told
    return made


def taught(shown):
    """What a teacher asks of each lesson: minutes from the record, peak memory, what runs live in class."""
    found = []
    for run in shown:
        if run.notebook not in findings.lessons():
            continue
        cells = parameters.cells_of(run.notebook)
        code = "".join(source for kind, _, source in cells if kind == "code")
        row = {"run": run, "minutes": run.about["seconds"] / 60, "memory": run.about.get("peak_mib")}
        live = {"sliders": code.count("study.play("), "trainings": code.count("study.live(")}
        found.append(row | live)
    return found


def claims_html(judged):
    """The cards of claims with their filters."""
    template = environment(autoescape=True).get_template("claims.html")
    return template.render(cards=judged, filters=filters(judged))


def corrections_html(entries):
    return environment(autoescape=True).get_template("corrections.html").render(entries=entries)


def turn_html(found, place):
    """The figure of a "Your turn" with its stored states, one of them shown; the page's script moves it.

    `found` is what `lab.states.prerendered` made. Its pictures are written to files that begin with the path
    `place`, a folder of the book's static files and a name.
    """
    controls, states, first = found["controls"], [], 0
    for control in controls:
        first = first * len(control["values"]) + control["at"]
    chosen = itertools.product(*(control["values"] for control in controls))
    for i, (state, labels) in enumerate(zip(found["states"], chosen, strict=True)):
        if "png" not in state:
            states.append(state)
            continue
        path = place.with_name(f"{place.name}-{i}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(state["png"]))
        names = [control["name"] for control in controls]
        words = ", ".join(f"{name} {label}" for name, label in zip(names, labels, strict=True))
        states.append({"picture": f"../_static/turns/{path.name}", "words": words})
    n = sum("picture" in state for state in states)
    caption = tr("The run stored {n} states of this figure; in JupyterLab every value can be set.", n=n)
    template = environment(autoescape=True).get_template("turn.html")
    return template.render(controls=controls, states=states, first=first, caption=caption)


def words():
    """{verdict: its word}, that of claims without gates too."""
    return cards.words() | {claims.UNGATED: tr("not yet gated")}


def sections():
    """{number: name} of the chapter's sections, and 0 for what belongs to none."""
    return {
        1: tr("What attention is, in mathematics"),
        2: tr("Several heads and how to choose them"),
        3: tr("Position encodings compared"),
        4: tr("Feed-forward networks and activations"),
        5: tr("Norms and residual connections"),
        6: tr("Variants of the Transformer"),
        0: tr("Other notebooks"),
    }


def found(table):
    """{stem of a lesson: its first finding}."""
    return {notebook.stem: findings.finding_of(notebook, table) for notebook in findings.lessons()}


def filters(judged):
    """[(name, label, [(value, word)])] of what claims are filtered by; only what some claim has."""
    gates = {"gated": tr("gates passed or failed"), "bare": tr("not yet gated"), "exact": tr("exact, or a question")}
    numbers = sorted({card.claim.exercise for card in judged}, key=lambda name: (len(name), name))
    choices = [
        ("verdict", tr("verdict"), words(), {card.verdict.verdict for card in judged}),
        ("exercise", tr("exercise"), dict(zip(numbers, numbers, strict=True)), set(numbers)),
        ("kind", tr("kind"), board.kinds(), {card.claim.kind for card in judged}),
        ("gate", tr("gates"), gates, {card.gate for card in judged}),
        ("machine", tr("timing"), {"yes": tr("yes"), "no": tr("no")}, {"yes", "no"}),
        ("measured", tr("measured where"), board.measured_where(), {sign for card in judged for sign in card.signs}),
    ]
    return [
        (name, label, [pair for pair in known.items() if pair[0] in there]) for name, label, known, there in choices
    ]


def plain(text):
    """Text that neither Markdown nor HTML takes for more: all but letters, digits and spaces become entities."""
    return "".join(c if c.isalnum() or c in " ," else f"&#{ord(c)};" for c in str(text))


def folded(cells):
    """The cells with their code folded: what runs on without an output is one piece with the code after it."""
    kept = []
    for cell in cells:
        if cell.cell_type == "code":
            if "injected-parameters" in cell.metadata.get("tags", ()):
                continue
            cell.metadata["tags"] = ["hide-input"]
            if kept and kept[-1].cell_type == "code" and not kept[-1].outputs:
                cell.source = f"{kept.pop().source}\n\n{cell.source}"
        kept.append(cell)
    return kept


def copy_notebook(run, path):
    """The executed notebook with its code folded, without what needs a live kernel, and with a way to its tables."""
    notebook = run.read()
    notebook.metadata.pop("widgets", None)
    _, *rest = notebook.cells[0].source.split("\n", 1)
    notebook.cells[0].source = "\n".join([f"# {run.title}", *rest])
    notebook.cells = folded(notebook.cells)
    turns = 0
    pictures = {stem: base64.b64encode(run.picture(stem).read_bytes()).decode() for stem in run.figures}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            data.pop("application/vnd.jupyter.widget-view+json", None)
            if TYPE in data:
                turns += 1
                place = path.parents[1] / "static" / "turns" / f"{run.stem}-{turns}"
                data["text/html"] = turn_html(data.pop(TYPE), place)
                del data["image/png"]
            if "text/html" in data:
                if stem := next((stem for stem, picture in pictures.items() if picture in data["text/html"]), ""):
                    link = f' <a href="../{tables.href(run.stem, stem)}">{tr("its table")}</a></figcaption>'
                    data["text/html"] = data["text/html"].replace("</figcaption>", link, 1)
    counts = ", ".join(f"{n} {words()[verdict]}" for verdict, n in run.counts.items())
    minutes = tr("{n:.1f} minutes without the record", n=run.minutes)
    there = f"[{tr('tables of all figures')}](../tables/{run.stem}.md)"
    play = tr("to play with it: `make jupyter`, then `{name}`", name=run.notebook.name)
    lines = [f"*{counts} · {minutes} ({run.profile}) · {there} · {play}*"]
    if language() != "en" and run.spoken == run.folder:
        lines += [
            tr(
                "Figures and cards are in English here; `lab run {name} --language zh` makes them anew.",
                name=run.exercise,
            )
        ]
    notebook.cells.insert(1, nbformat.v4.new_markdown_cell("\n\n".join(lines)))
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
