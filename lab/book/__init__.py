"""The book: what the finished runs left, as static pages that open anywhere without a network (Sphinx and MyST-NB).

English stands in the folder itself, Chinese in its zh/, every page at the same place.
"""

import re
import shutil
import tempfile
from pathlib import Path

from lab.book import pages, runs
from lab.engine.runs import project_root
from lab.language import tr, using

UNUSED = ("scripts/*.map", "styles/*.map") + tuple(f"mathjax/{part}" for part in (
    "a11y", "adaptors", "input/asciimath*", "input/mml*", "sre", "ui", "tex-mml*", "mml-*", "*-svg*", "tex-chtml-full*",
    "output/svg*", "latest.js", "node-main.js", "asciimath*",
))  # fmt: skip
PLACES = {"en": ".", "zh": "zh"}  # language: where its book stands


def build(folder=None, older=()):
    """Write the book of this machine's runs, else of the published ones, to `folder` (default results/book).

    Returns its index.html. `older` are the stems of notebooks whose published run was made by older code, or from
    another text: their pages say so.

    Raises ImportError without the extra `book`, FileNotFoundError where nothing has run, RuntimeError if Sphinx fails.
    """
    import sphinx  # noqa: F401  so that what is missing is named before anything is written

    folder = Path(folder or project_root() / "results" / "book")
    if not runs.finished_runs():
        raise FileNotFoundError("no exercise has run at quick or full yet: `lab run` comes first")
    with tempfile.TemporaryDirectory(prefix="lab-book-") as temporary:
        whole = Path(temporary) / "whole"
        for language, place in PLACES.items():
            with using(language):
                shutil.move(spoken(language, Path(temporary) / language, older), whole / place)
        share(whole, whole / "zh")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.move(whole, folder)
    return folder / "index.html"


def spoken(language, folder, older=()):
    """The folder of the book in one language, the one in use."""
    from sphinx.cmd.build import build_main

    source, out = folder / "source", folder / "html"
    pages.write(source, runs.finished_runs(), older)
    shutil.copy(Path(__file__).parent / "conf.py", source / "conf.py")
    told = {
        "language": {"zh": "zh_CN"}.get(language, language),
        "html_title": tr("Transformer Lab"),
        "nb_code_prompt_show": tr("Show the code"),
        "nb_code_prompt_hide": tr("Hide the code"),
    }
    settings = [part for name, value in told.items() for part in ("-D", f"{name}={value}")]
    if code := build_main(["-q", "-b", "html", "-d", str(folder / "doctrees"), *settings, str(source), str(out)]):
        raise RuntimeError(f"sphinx-build ended with {code}")
    for pattern in UNUSED:
        for path in (out / "_static").glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return out


def share(whole, part):
    """Leave out of `part`, a folder of `whole`, what stands in `whole` at the same place too; its pages point there."""
    alike = set()
    for path in part.rglob("*.*"):
        name = path.relative_to(part).as_posix()
        if path.is_file() and path.suffix != ".html" and same(whole / name, path):
            alike.add(name)
            path.unlink()
    for page in part.rglob("*.html"):
        up = "../" * (len(page.relative_to(part).parts) - 1)

        def moved(found, up=up):
            name = found[2].removeprefix(up).partition("?")[0]
            return f"{found[1]}../{found[2]}" if name in alike else found[0]

        page.write_text(re.sub(r'((?:src|href)=")([^"#:]+)', moved, page.read_text("utf-8")), "utf-8")


def same(one, other):
    return one.exists() and one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()
