"""The commands `lab list`, `lab show` and `lab diff`."""

import base64
import html
import io
import re
from pathlib import Path
from typing import Annotated

import typer

from lab import files
from lab.files import Refused

Run = Annotated[str, typer.Argument(help="1.4, 04, 04_head_count, or the folder of a run.")]

TEMPLATE = """{% extends 'lab/index.html.j2' %}
{% block html_head_css %}{{ super() }}<style>
body.jp-Notebook { max-width: 1000px; margin: 0 auto }
.jp-RenderedMarkdown, figcaption { max-width: 720px }
.jp-InputPrompt, .jp-OutputPrompt { display: none }
details.code > summary { cursor: pointer; color: #777; font: 13px sans-serif; padding: 2px 4px }
.jp-RenderedHTMLCommon img.formula { display: inline; margin: 0 }
</style>{% endblock %}
{% block input_group %}<details class="code">
<summary>{{ (cell.source.splitlines() or ["code"])[0][:80] | escape }}</summary>
{{ super() }}</details>{% endblock %}
"""
FORMULA = re.compile(r"(?s)(`+).*?\1|\$\$(.+?)\$\$|\$([^$\n]+)\$")  # code or a formula
TEX_TO_MATHTEXT = (
    (r"\\le\b", r"\\leq"),
    (r"\\ge\b", r"\\geq"),
    (r"\\[td]?frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
    (r"\\tfrac", r"\\frac"),
    (r"\\(sqrt|mathbf) (\w)", r"\\\1{\2}"),
    (r"\\bmod\b", r"\\mathrm{mod}"),
    (r"\\[bB]ig[lr]?\b\s*", ""),
)


def folder_of(run):
    """The folder `run`; for a notebook, the folder of its local run or else of its published run.

    Raises Refused if there is none.
    """
    places = [Path(run), files.project_root() / run]
    folder = next((place for place in places if (place / "run.json").exists()), None)
    if folder is None:
        notebook = files.notebook_of(run)
        folder = files.latest("quick" if notebook in files.notebooks() else "own", notebook.stem)
    if files.read_run(folder) is None:
        raise Refused(f"no run of {run}: use `lab run {run}` first")
    return folder


def scorecard(folder):
    """The answers of a run as text; "" if it has no claims."""
    from lab import claims

    return claims.scorecard_text(claims.read_answers(folder))


def lessons():
    """List the lessons: title, minutes of the last run, and state."""
    for notebook in files.notebooks():
        folder = files.latest("quick", notebook.stem)
        run = files.read_run(folder)
        minutes, state = "", "not run yet"
        if run:
            minutes = f"{run['seconds'] / 60:.1f}"
            state = "local run" if folder.parent.parent.name == "runs" else "published"
        title = re.sub(r"^1\.\d+\s*", "", files.title_of(notebook)[0])
        print(f"{files.exercise_of(notebook):6}{title[:50]:52}{minutes:>5}  {state}")
    print("The number before the state says how many minutes the last run took.")


def show(lesson: Run):
    """Open an executed lesson in the browser and print the path of the page."""
    import webbrowser

    folder = folder_of(lesson)
    page = files.project_root() / "results" / ".shown" / f"{folder.name}.html"
    files.write_text(page, html_of(folder / "notebook.ipynb"))
    print(page.resolve())
    webbrowser.open(page.resolve().as_uri())


def diff(a: Run, b: Run):
    """Compare two runs: print the answers that differ, or all answers if none differs."""
    from lab import claims

    both = [claims.read_answers(folder_of(name)) for name in (a, b)]
    a_texts, b_texts = (
        table.assign(text=table.answer + " " + table.apply(claims.format_effect, axis=1))
        for table in both
    )
    lines = a_texts.merge(b_texts, how="outer", on=["id", "part", "where"], suffixes=("", "_b"))
    lines = lines.fillna({"text": "-", "text_b": "-"})
    differ = lines[lines.text != lines.text_b]
    for line in (differ if len(differ) else lines).itertuples():
        name = " ".join(filter(None, (line.id, line.part, line.where)))
        print(f"{name}\n  {line.text:40}  |  {line.text_b}")
    print(f"{len(differ)} of {len(lines)} answers differ")


# The page of a lesson


def html_of(notebook):
    """Convert an executed notebook to HTML, with folded code and formulas as images if possible."""
    import nbformat
    from nbconvert import HTMLExporter

    book = nbformat.read(notebook, 4)
    book.cells = [
        cell for cell in book.cells if "injected-parameters" not in cell.metadata.get("tags", ())
    ]
    for cell in book.cells:
        if cell.cell_type == "markdown":
            cell.source = FORMULA.sub(image_of, cell.source)
    return HTMLExporter(raw_template=TEMPLATE).from_notebook_node(book)[0]


def image_of(match):
    """Draw a formula as an image with matplotlib; unchanged if matplotlib cannot parse it."""
    from matplotlib.mathtext import math_to_image

    tex, picture = match[2] or match[3], io.BytesIO()
    if not tex:
        return match[0]
    text = " ".join(tex.split())
    for pattern, spelling in TEX_TO_MATHTEXT:
        text = re.sub(pattern, spelling, text)
    try:
        depth = math_to_image(f"${text}$", picture, format="svg", dpi=72)
    except ValueError:  # MathJax renders this formula, which needs a network connection
        return match[0]
    source = base64.b64encode(picture.getvalue()).decode()
    style = f"vertical-align: -{depth:.1f}pt" if match[3] else "display: block; margin: 8px auto"
    return (
        f'<img class="formula" style="{style}" alt="{html.escape(tex, quote=True)}" '
        f'src="data:image/svg+xml;base64,{source}">'
    )
