"""The book: what the finished runs left, as static pages that open anywhere without a network (Sphinx and MyST-NB)."""

import shutil
import tempfile
from pathlib import Path

from lab.book import pages, runs
from lab.engine.runs import project_root

UNUSED = ("scripts/*.map", "styles/*.map") + tuple(f"mathjax/{part}" for part in (
    "a11y", "adaptors", "input/asciimath*", "input/mml*", "sre", "ui", "tex-mml*", "mml-*", "*-svg*", "tex-chtml-full*",
    "output/svg*", "latest.js", "node-main.js", "asciimath*",
))  # fmt: skip


def build(folder=None):
    """Write the book of results/quick and results/full to `folder` (default results/book); returns its index.html.

    Raises ImportError without the extra `book`, FileNotFoundError where nothing has run, RuntimeError if Sphinx fails.
    """
    from sphinx.cmd.build import build_main

    folder = Path(folder or project_root() / "results" / "book")
    finished = runs.finished_runs()
    if not finished:
        raise FileNotFoundError("no exercise has run at quick or full yet: `lab run` comes first")
    with tempfile.TemporaryDirectory(prefix="lab-book-") as source:
        source, out = Path(source) / "source", Path(source) / "html"
        pages.write(source, finished)
        shutil.copy(Path(__file__).parent / "conf.py", source / "conf.py")
        if code := build_main(["-q", "-b", "html", "-d", str(out.parent / "doctrees"), str(source), str(out)]):
            raise RuntimeError(f"sphinx-build ended with {code}")
        for pattern in UNUSED:
            for path in (out / "_static").glob(pattern):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(out, folder)
    return folder / "index.html"
