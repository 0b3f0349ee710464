"""A small book of the tests' own: two runs, the first with a figure of hostile words and one with sliders."""

import made
import matplotlib.pyplot as plt
import nbformat
import yaml
from nbformat.v4 import new_code_cell, new_output

from lab import book, figures, turn
from lab.book import pages
from lab.engine import runs

CAPTIONS = 'Loss "falls": [a](b) *x* <y> & {z}.', "一条线：第 1_000 步的 **损失**。"
ERRATUM = {
    "id": "one-head",
    "number": 1,
    "source": "chapter",
    "where": "§1",
    "says": "one",
    "says_zh": "一",
    "right": "it is {four-win.effect:.1f}",
    "right_zh": "为 {four-win.effect:.1f}",
    "claims": {"four-win": "holds"},
    "evidence": ["01_first/drawn"],
}
DOCUMENTED = ["lab.charts", "lab.models.config", "lab.study"]
TERM = {"term": "mask", "term_zh": "掩码", "says": "What is hidden.", "says_zh": "遮住的部分。", "measured": ["1.1"]}


def moving(n, base):
    plt.subplots()[1].plot([1, 2], [n, base])


def build(folder, patch):
    """The folder of the book of a project that is made in `folder`; `patch` is pytest's monkeypatch."""
    root = made.project(folder, patch)
    for name, entry in {"errata": ERRATUM, "glossary": TERM}.items():
        (root / "experiments" / f"{name}.yaml").write_text(yaml.safe_dump([entry]))
    made.finish(root, made.verdict("one-is-faster"), place="quick/02_second")
    run = made.finish(root, made.verdict("four-win", effect=2.5), made.verdict("how-many", "answered"))
    shown = []
    patch.setattr("lab.figures.display", lambda data, raw: shown.append(data))
    figure = plt.figure()
    figures.show(figures.save(figure, run / "figures" / "drawn", *CAPTIONS), *CAPTIONS)
    plt.close(figure)
    first, live = turn.play(moving, {"n": (1, 3), "base": [10, 500]}, headless=True)
    figures.show(first, live=live)
    notebook = nbformat.read(run / "notebook.ipynb", 4)
    outputs = [new_output("display_data", data) for data in shown]
    notebook.cells[-1] = new_code_cell("study.figure(...)", outputs=outputs)
    nbformat.write(notebook, run / "notebook.ipynb")
    runs.write_run(run, runs.read_run(run))
    patch.setattr(pages, "modules", lambda: DOCUMENTED)  # all of lab takes longer than the rest of the book
    return book.build(root / "html").parent
