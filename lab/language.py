"""Texts in the reader's language.

Translations of the package's messages are in the gettext catalogue lab/languages/LANGUAGE.po, which
`make translations` updates. A message without a translation, or with a fuzzy one, is shown in
English. A notebook holds both languages: English, and Chinese in a folded block below. `turned`
swaps them.
"""

import os
import re
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace

PACKAGE = Path(__file__).parent / "languages"
NAMES = {"en": "English", "zh": "中文"}  # {language: summary of its folded block}
_FOLD = re.compile(
    rf"\n*<details><summary>({'|'.join(NAMES.values())})</summary>\n\n(.*?)\n\n</details>\s*$",
    re.DOTALL,
)  # groups: the language's name, the folded text
_HEADING = re.compile(r"```.*?```|^(#+) ([^\n]+)$", re.DOTALL | re.MULTILINE)
_BOLD_LINE = re.compile(r"```.*?```|^\*\*([^*\n]+)\*\*$", re.DOTALL | re.MULTILINE)
_now = SimpleNamespace(language="")  # the language chosen by `use`


def tr(message, **values):
    """The message in the reader's language, with `values` in its placeholders (str.format).

    It must be a literal, so that `make translations` finds it.
    """
    said = messages(catalogue(language())).get(message, message)
    return said.format(**values) if values else said


def language():
    """The language in use: that of `use`, else the environment's LAB_LANGUAGE, else "en"."""
    return _now.language or os.environ.get("LAB_LANGUAGE") or "en"


def in_language(english, chinese):
    """The text in the reader's language; the English one where the Chinese one is empty."""
    return chinese if chinese and language() == "zh" else english


def languages():
    """The languages that have a catalogue, and "en"."""
    return ["en", *sorted(path.stem for path in PACKAGE.glob("*.po"))]


def use(language=""):
    """Use a language from now on; "" means that of the environment."""
    _now.language = language


@contextmanager
def using(language):
    """Use a language inside the block."""
    before = _now.language
    use(language)
    try:
        yield
    finally:
        use(before)


def catalogue(language):
    """The path of the package's catalogue in a language."""
    return PACKAGE / f"{language}.po"


def messages(path):
    """{message: translation} of a catalogue, without empty and fuzzy ones; {} without a file."""
    return _read(path, path.stat().st_mtime_ns) if path.exists() else {}


@cache
def _read(path, changed):
    from babel.messages.pofile import read_po

    with open(path, "rb") as file:
        return {
            m.id: m.string
            for m in read_po(file, abort_invalid=True)
            if m.id and m.string and not m.fuzzy
        }


# Texts in two languages


def folded(shown, hidden, named="zh"):
    """Markdown that shows one text, and a folded block with another in the language `named`.

    Headings in the block become bold lines, since they would break the outline of the page.
    """
    if not hidden:
        return shown
    bold = _HEADING.sub(lambda found: f"**{found[2]}**" if found[1] else found[0], hidden)
    return f"{shown}\n\n<details><summary>{NAMES[named]}</summary>\n\n{bold}\n\n</details>"


def sides(text):
    """(English, Chinese) of a text in two languages; Chinese is "" where there is none.

    The Chinese text gets back its headings, in the order and at the levels of the English ones.
    """
    found = _FOLD.search(text)
    if not found or found[1] != NAMES["zh"]:
        return text, ""
    english = text[: found.start()]
    levels = [each[1] for each in _HEADING.finditer(text[: found.start()]) if each[1]]
    heads = iter(levels)

    def headed(line):
        level = next(heads, "") if line[1] else ""
        return f"{level} {line[1]}" if level else line[0]

    return english, _BOLD_LINE.sub(headed, found[2])


def turned(text):
    """The text with Chinese shown and English folded; unchanged where it has no Chinese."""
    english, chinese = sides(text)
    return folded(chinese, english, "en") if chinese else text


def translated(book, language, alone=False):
    """The nbformat notebook with its texts, also those in outputs, in a language; changed in place.

    Code is unchanged. With `alone`, the folded texts in the other language are removed.
    """

    def told(text):
        text = turned(text) if language == "zh" else text
        return _FOLD.sub("", text) if alone else text

    for cell in book.cells:
        if cell.cell_type == "markdown":
            cell.source = told(cell.source)
        for data in (output.data for output in cell.get("outputs", ()) if "data" in output):
            if "text/markdown" in data:
                data["text/markdown"] = told(data["text/markdown"])
    return book
