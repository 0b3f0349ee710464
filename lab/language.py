"""What is shown, in the reader's language.

What the package says stands in a gettext catalogue, lab/languages/LANGUAGE.po; what that lacks, or
holds as fuzzy, is said in English. `make translations` brings it up to date. A notebook holds both
languages itself: a text in English, then in Chinese in a block that unfolds. `turned` lets them
swap places.
"""

import os
import re
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace

PACKAGE = Path(__file__).parent / "languages"
NAMES = {"en": "English", "zh": "中文"}  # of the languages of a text that unfolds
_FOLD = re.compile(
    rf"\n*<details><summary>({'|'.join(NAMES.values())})</summary>\n\n(.*?)\n\n</details>\s*$",
    re.DOTALL,
)  # its language, the text in it
_HEADING = re.compile(r"```.*?```|^(#+) ([^\n]+)$", re.DOTALL | re.MULTILINE)
_BOLD_LINE = re.compile(r"```.*?```|^\*\*([^*\n]+)\*\*$", re.DOTALL | re.MULTILINE)
_now = SimpleNamespace(language="")  # what `use` chose


def tr(message, **values):
    """The message, a literal, in the reader's language; {placeholders} are filled by str.format
    where values come.
    """
    said = messages(catalogue(language())).get(message, message)
    return said.format(**values) if values else said


def language():
    """The language in use: the one chosen by `use`, else by LAB_LANGUAGE in the environment, else
    English, "en".
    """
    return _now.language or os.environ.get("LAB_LANGUAGE") or "en"


def in_language(english, chinese):
    """A text of the ledger in the reader's language; the English one where it has no other."""
    return chinese if chinese and language() == "zh" else english


def languages():
    """The languages that the package speaks."""
    return ["en", *sorted(path.stem for path in PACKAGE.glob("*.po"))]


def use(language=""):
    """Speak a language from now on ("": as the environment says)."""
    _now.language = language


@contextmanager
def using(language):
    """Speak a language inside the block."""
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
    """{message: translation} of a catalogue, without what is empty or fuzzy; none where there is no
    file.
    """
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
    """Markdown that shows one text and, in a block that unfolds, another in the language `named`;
    headings in it are bold lines, since a heading inside a block breaks the outline of the page.
    """
    if not hidden:
        return shown
    bold = _HEADING.sub(lambda found: f"**{found[2]}**" if found[1] else found[0], hidden)
    return f"{shown}\n\n<details><summary>{NAMES[named]}</summary>\n\n{bold}\n\n</details>"


def sides(text):
    """(English, Chinese) of a text in two languages, the Chinese one with headings where the
    English has them; "" where it is in one.
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
    """The text with Chinese and English in each other's place; as it is where it has no Chinese."""
    english, chinese = sides(text)
    return folded(chinese, english, "en") if chinese else text


def translated(book, language, alone=False):
    """The nbformat notebook with its texts, those among outputs too, turned to a language; code
    stays as it is.

    `alone`: without the other language, for pages that stand in each.
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
