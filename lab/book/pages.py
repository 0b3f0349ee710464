"""The pages of the book as Markdown, from results and the ledger. Everything that a run or a user wrote is escaped."""

import shutil
from pathlib import Path

import nbformat
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lab.book import tables
from lab.engine.runs import write_text
from lab.ledger import errata

HERE = Path(__file__).parent


def write(source, runs):
    """Write every page, notebook, picture and table of the book under `source`."""
    static = source / "static"
    shutil.copytree(HERE / "static", static)
    environment = Environment(loader=FileSystemLoader(HERE / "templates"), undefined=StrictUndefined, trim_blocks=True)
    shown = {run.stem: run for run in reversed(runs)}  # quick where there is one
    shown = [shown[stem] for stem in sorted(shown)]
    environment.globals |= {"runs": shown, "verdict_zh": tables.VERDICT_ZH, "escape": plain, "anchor": tables.anchor}

    def page(name, template, zh=False, **values):
        text = environment.get_template(template).render(
            zh=zh, t=lambda en, chinese: chinese if zh else en, root="../" if "/" in name else "", **values
        )
        write_text(source / f"{name}.md", text)

    board = tables.scoreboard(runs)
    for zh, prefix in ((False, ""), (True, "zh/")):
        page(f"{prefix}index", "index.md", zh, totals=board.drop_duplicates("id").verdict.value_counts().to_dict())
        page(f"{prefix}scoreboard", "scoreboard.md", zh, table=tables.searchable(tables.score_table(board, zh)))
        page(
            f"{prefix}errata",
            "errata.md",
            zh,
            table=tables.searchable(tables.errata_table(shown, zh)),
            entries=errata.errata(),
        )
    page("matters", "matters.md", table=tables.plain_table(tables.matters(shown)))
    page("measured", "measured.md", machines=tables.machines(runs))
    page("gallery", "gallery.md")
    for run in shown:
        page(f"tables/{run.stem}", "tables.md", run=run, tables=tables.behind(run))
        copy_notebook(run, source / "exercises" / f"{run.stem}.ipynb")
        for kind in ("figures", "tables"):
            shutil.copytree(run.folder / kind, source / "files" / run.stem / kind, dirs_exist_ok=True)
    write_text(source / "exercises.md", environment.get_template("exercises.md").render(t=lambda en, _: en))


def plain(text):
    """Text that neither Markdown nor HTML takes for more: all but letters, digits and spaces become entities."""
    return "".join(c if c.isalnum() or c in " ," else f"&#{ord(c)};" for c in str(text))


def copy_notebook(run, path):
    """The executed notebook, without what needs a live kernel, and with a way back to its tables."""
    notebook = nbformat.read(run.folder / "notebook.ipynb", 4)
    notebook.metadata.pop("widgets", None)
    _, *rest = notebook.cells[0].source.split("\n", 1)
    notebook.cells[0].source = "\n".join([f"# {run.title}", *rest])
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    counts = ", ".join(f"{n} {verdict}" for verdict, n in run.counts.items())
    line = (
        f"*{counts} · {run.minutes:.1f} core minutes at `{run.profile}` · "
        f"[tables of all figures](../tables/{run.stem}.md) · to play with it: `make jupyter`, then `{run.stem}.ipynb`*"
    )
    notebook.cells.insert(1, nbformat.v4.new_markdown_cell(line))
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
