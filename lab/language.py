"""What is drawn or shown, in the reader's language: gettext catalogues, for the package and for each notebook.

The package's stand in lab/languages/LANGUAGE.po, a notebook's beside it in languages/LANGUAGE/NAME.po. What a catalogue
lacks, or holds as fuzzy, is said in English. `lab.commands.catalogues` writes them.
"""

import os
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace

PACKAGE = Path(__file__).parent / "languages"
_now = SimpleNamespace(language="", notebook=None)  # what `use` chose


def tr(message, **values):
    """The message, a literal, in the reader's language; {placeholders} are filled by str.format where values come."""
    own = messages(catalogue(language(), _now.notebook)) if _now.notebook else {}
    said = own.get(message) or messages(catalogue(language())).get(message, message)
    return said.format(**values) if values else said


def language():
    """The language in use: the one chosen by `use`, else by LAB_LANGUAGE in the environment, else English, "en"."""
    return _now.language or os.environ.get("LAB_LANGUAGE") or "en"


def in_language(english, chinese):
    """A text of the ledger in the reader's language; the English one where it has no other."""
    return chinese if chinese and language() == "zh" else english


def languages():
    """The languages that the package speaks."""
    return ["en", *sorted(path.stem for path in PACKAGE.glob("*.po"))]


def use(language="", notebook=None):
    """Speak a language from now on ("": as the environment says), with the words of a notebook's own catalogue."""
    _now.language, _now.notebook = language, notebook


@contextmanager
def using(language, notebook=None):
    """Speak a language inside the block."""
    before = _now.language, _now.notebook
    use(language, notebook)
    try:
        yield
    finally:
        use(*before)


def catalogue(language, notebook=None):
    """The path of a notebook's catalogue, or of the package's."""
    return notebook.parent / "languages" / language / f"{notebook.stem}.po" if notebook else PACKAGE / f"{language}.po"


def messages(path):
    """{message: translation} of a catalogue, without what is empty or fuzzy; none where there is no file."""
    return _read(path, path.stat().st_mtime_ns) if path.exists() else {}


@cache
def _read(path, changed):
    from babel.messages.pofile import read_po

    with open(path, "rb") as file:
        return {m.id: m.string for m in read_po(file, abort_invalid=True) if m.id and m.string and not m.fuzzy}


def translated(book, path, language):
    """The nbformat notebook of `path` with its markdown cells in a language; code stays as it is."""
    known = messages(catalogue(language, path))
    for cell in book.cells:
        if cell.cell_type == "markdown":
            cell.source = known.get(cell.source, cell.source)
    return book
