"""The book: the results of the finished runs as static pages that need no network.

Sphinx and MyST-NB build it from the executed notebooks. The English pages lie in the folder itself,
the Chinese ones in its zh/ under the same names.
"""

import shutil
import tempfile
from pathlib import Path

from lab.book import pages, runs
from lab.language import tr, using
from lab.trials.runs import project_root

PLACES = {"en": ".", "zh": "zh"}  # {language: folder of its book}
UNUSED = (  # files of _static that no page loads, mostly MathJax for other inputs and outputs
    "scripts/*.map",
    "styles/*.map",
    "mathjax/a11y",
    "mathjax/sre",
    "mathjax/asciimath*",
    "mathjax/mml-*",
    "mathjax/tex-mml*",
    "mathjax/tex-chtml-full*",
    "mathjax/*-svg*",
    "mathjax/output/svg*",
)
SPHINX_NAMES = {"en": "en", "zh": "zh_CN"}


def build(folder=None, older=()):
    """Write the book to `folder`, by default results/book; returns the path of its index.html.

    It shows this machine's runs, and published runs where a notebook has none. `older` are the
    stems of notebooks whose published run was made by older code or from another text, which the
    front page marks.

    Raises ImportError where the extra `book` is not installed, FileNotFoundError where nothing has
    run, and RuntimeError where Sphinx fails.
    """
    import sphinx  # noqa: F401  raises before anything is written

    folder = Path(folder or project_root() / "results" / "book")
    if not runs.finished_runs():
        raise FileNotFoundError("no exercise has run at quick or full yet: use `lab run` first")
    with tempfile.TemporaryDirectory(prefix="lab-book-") as temporary:
        whole = Path(temporary) / "whole"
        for language, place in PLACES.items():
            with using(language):
                html = in_language(language, Path(temporary) / language, older)
            shutil.move(html, whole / place)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(whole, folder)
    return folder / "index.html"


def in_language(language, folder, older=()):
    """Build the book in `language`, which is in use; returns the folder of its pages."""
    from sphinx.cmd.build import build_main

    source, html = folder / "source", folder / "html"
    pages.write(source, runs.in_order(runs.finished_runs()), older)
    settings = {
        "language": SPHINX_NAMES[language],
        "html_title": tr("Transformer Lab"),
        "nb_code_prompt_show": tr("Show the code"),
        "nb_code_prompt_hide": tr("Hide the code"),
    }
    options = ["-q", "-b", "html", "-d", str(folder / "doctrees")]
    for name, value in settings.items():
        options += ["-D", f"{name}={value}"]
    if code := build_main([*options, str(source), str(html)]):
        raise RuntimeError(f"sphinx-build ended with {code}")
    for pattern in UNUSED:
        for path in (html / "_static").glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return html
