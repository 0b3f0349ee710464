"""The page of an executed notebook: HTML with folded code, which needs no network."""

import base64
import html
import io
import re

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
FORMULA = re.compile(r"(?s)(`+).*?\1|\$\$(.+?)\$\$|\$([^$\n]+)\$")  # or code, which stays
SPELT = (  # TeX that matplotlib reads in another spelling only
    (r"\\le\b", r"\\leq"),
    (r"\\ge\b", r"\\geq"),
    (r"\\[td]?frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
    (r"\\tfrac", r"\\frac"),
    (r"\\(sqrt|mathbf) (\w)", r"\\\1{\2}"),
    (r"\\bmod\b", r"\\mathrm{mod}"),
    (r"\\[bB]ig[lr]?\b\s*", ""),
)


def html_of(notebook):
    """The HTML text of the executed notebook at a path."""
    import nbformat
    from nbconvert import HTMLExporter

    book = nbformat.read(notebook, 4)
    tagged = [cell.metadata.get("tags", ()) for cell in book.cells]
    book.cells = [
        cell
        for cell, tags in zip(book.cells, tagged, strict=True)
        if "injected-parameters" not in tags
    ]
    for cell in book.cells:
        if cell.cell_type == "markdown":
            cell.source = FORMULA.sub(drawn, cell.source)
    return HTMLExporter(raw_template=TEMPLATE).from_notebook_node(book)[0]


def drawn(found):
    """A formula as an image that matplotlib draws; as it was where matplotlib cannot read it."""
    from matplotlib.mathtext import math_to_image

    tex, picture = found[2] or found[3], io.BytesIO()
    if not tex:
        return found[0]
    text = " ".join(tex.split())
    for pattern, spelling in SPELT:
        text = re.sub(pattern, spelling, text)
    try:
        depth = math_to_image(f"${text}$", picture, format="svg", dpi=72)
    except ValueError:  # MathJax draws it, where there is a network
        return found[0]
    source = base64.b64encode(picture.getvalue()).decode()
    style = f"vertical-align: -{depth:.1f}pt" if found[3] else "display: block; margin: 8px auto"
    return (
        f'<img class="formula" style="{style}" alt="{html.escape(tex, quote=True)}" '
        f'src="data:image/svg+xml;base64,{source}">'
    )
