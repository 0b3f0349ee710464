"""Nothing is unpickled, nothing listens beyond this machine, and what a notebook is called cannot run in the book."""

import ast
import re

import nbformat
import psutil
import pytest
from made import ran

from lab import book
from lab.book import runs
from lab.claims import report
from lab.trials import workers
from lab.trials.runs import CHECKOUT

SOURCES = [*sorted((CHECKOUT / "lab").rglob("*.py")), *sorted((CHECKOUT / "benchmarks").glob("*.py"))]
PICKLES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(CHECKOUT).as_posix())
def test_nothing_is_unpickled_and_yaml_is_read_safely(path):
    travels = path.name == "workers.py"  # the trial itself, over the pool's own pickled traffic
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            assert travels or not PICKLES & {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in PICKLES
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            call = ast.unparse(node)
            assert node.func.attr not in ("read_pickle", "unsafe_load", "full_load")
            assert not call.startswith("torch.load(") or "weights_only=True" in call
            assert "allow_pickle=True" not in call
            assert not call.startswith("yaml.load(") or call.endswith(("EachOnce)", "SafeLoader)"))


@pytest.mark.slow
def test_jupyter_and_the_workers_listen_on_this_machine_alone():
    makefile = (CHECKOUT / "Makefile").read_text("utf-8")
    started = [line for line in makefile.splitlines() if "jupyter lab" in line]
    assert started and all("--ip 127.0.0.1" in line for line in started)
    with workers.local(2):
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        open_at = {c.laddr.ip for p in family for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert open_at and open_at <= {"127.0.0.1", "::1"}


ATTACK = "<script>alert('run by the book')</script><img src=x onerror=alert(1)>"


@pytest.mark.slow
def test_a_hostile_title_parameter_or_caption_is_text_in_the_book(project, tmp_path, monkeypatch):
    """A finished run under a title, a parameter, an error, a caption and an answer that try to run in the page."""
    pytest.importorskip("myst_nb")
    ran(project)
    (run,) = runs.finished_runs()
    sources, executed = nbformat.read(run.notebook, 4), nbformat.read(run.folder / "notebook.ipynb", 4)
    for number, notebook in enumerate((sources, executed)):
        notebook.cells = notebook.cells[:4]
        title, *rest = notebook.cells[0].source.splitlines()
        notebook.cells[0].source = "\n".join([f"{title} {ATTACK}", *rest, ATTACK])
        cell = nbformat.v4.new_code_cell(f'corpus = "{ATTACK}"')
        cell.outputs = [nbformat.v4.new_output("stream", text=ATTACK)] * number
        notebook.cells.append(cell)
    folder = tmp_path / "run"
    (folder / "tables").mkdir(parents=True)
    (folder / "figures").mkdir()
    nbformat.write(executed, folder / "notebook.ipynb")
    nbformat.write(sources, tmp_path / run.notebook.name)
    lines = run.lines.assign(note=ATTACK, unit=ATTACK)
    lines.to_csv(folder / "verdicts.csv", index=False)
    lines.to_csv(folder / "tables" / "caption.csv", index=False)
    about = run.about | {"machine": ATTACK, "parameters": run.about["parameters"] | {"d_model": ATTACK}}
    hostile = runs.Run(tmp_path / run.notebook.name, "quick", folder, about)
    monkeypatch.setattr(runs, "finished_runs", lambda: [hostile])
    index = book.build(tmp_path / "book")
    for page in index.parent.rglob("*.html"):
        if "_static" not in page.parts:
            text = page.read_text("utf-8")
            assert "<script>alert(" not in text and not re.search(r"<img[^>]*onerror", text), page.name
    assert report.opening(hostile.notebook)[0].split(" <")[0] in index.read_text("utf-8")
