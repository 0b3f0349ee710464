"""The package's catalogue of translations: what it should hold, how it is brought up to date, what is wrong with one.

`python -m lab.commands.catalogues zh` brings lab/languages/zh.po up to date.
"""

import ast
import re
import sys
from string import Formatter

from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po, write_po

from lab.engine import runs
from lab.language import PACKAGE, catalogue

HEADER = (
    'msgid ""\nmsgstr ""\n"Language: {}\\n"\n"MIME-Version: 1.0\\n"\n"Content-Type: text/plain; charset=utf-8\\n"\n\n'
)
# What is no prose: code blocks and spans, formulas, targets of links, HTML, placeholders, entities and addresses.
NO_PROSE = re.compile(
    r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|\]\([^)]*\)|<[^>]+>|\{[^}]*\}|&\w+;|https?://\S+", re.DOTALL
)


def passed(code):
    """[(message, line, whether it has placeholders)] of all calls of `tr`. ValueError where one has no literal."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "tr":
            message = node.args[0] if node.args else None
            if not isinstance(message, ast.Constant) or not isinstance(message.value, str):
                raise ValueError(f"line {node.lineno}: tr({ast.unparse(node)[3:-1]}): a literal message is wanted")
            found.append((message.value, node.lineno, bool(node.keywords)))
    return sorted(found, key=lambda item: item[1])


def template():
    """The catalogue without translations of what the package says.

    ValueError names the place where `tr` is called without a literal.
    """
    wanted = Catalog()
    for path in sorted(PACKAGE.parent.rglob("*.py")):
        place, source = path.relative_to(PACKAGE.parents[1]).as_posix(), path.read_text("utf-8")
        try:
            found = passed(source) if "tr(" in source else ()
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
        for message, _, filled in found:
            wanted.add(message, locations=[(place, None)], flags=["python-brace-format"] if filled else [])
    return wanted


def read(path):
    """The catalogue in a file, empty where there is none."""
    if not path.exists():
        return Catalog()
    with path.open("rb") as file:
        return read_po(file, abort_invalid=True)


def update(language, wanted):
    """Write the catalogue of a language, to hold what is `wanted`; returns its path.

    Translations stay; one whose message has changed is marked fuzzy, with the message that it was of; what is said no
    more goes.
    """
    path = catalogue(language)
    merged = read(path)
    merged.update(wanted, update_creation_date=False)
    with runs.replacing(path) as temporary, temporary.open("wb") as file:
        file.write(HEADER.format(language).encode())
        write_po(file, merged, width=0, omit_header=True, ignore_obsolete=True, include_previous=True)
    return path


def placeholders(message):
    """The names between braces, each with its format."""
    return {f"{name}{conversion or ''}:{spec}" for _, name, spec, conversion in Formatter().parse(message) if name}


def prose(message):
    """Whether it has words, beside formulas, code and addresses."""
    return bool(re.search(r"[A-Za-z]{2,}", NO_PROSE.sub(" ", message)))


def problems(found, wanted):
    """What is wrong with a Chinese catalogue, a sentence each: missing, fuzzy, in no Chinese, filled otherwise."""
    said = []
    for message in wanted:
        if not message.id:
            continue
        about, there = repr(message.id[:60]), found.get(message.id)
        if there is None or not there.string:
            said.append(f"{about} is not translated")
        elif there.fuzzy:
            said.append(f"{about} is fuzzy: its message has changed")
        elif prose(message.id) and not re.search("[\u4e00-\u9fff]", there.string):
            said.append(f"{about} is not in Chinese: {there.string[:60]!r}")
        elif "python-brace-format" in message.flags and placeholders(message.id) != placeholders(there.string):
            said.append(f"{about} has other placeholders: {there.string[:60]!r}")
    dead = [m.id for m in found if m.id and m.id not in wanted]
    return said + [f"{message[:60]!r} is said no more" for message in dead]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("python -m lab.commands.catalogues LANGUAGE")
    written = update(sys.argv[1], template())
    left = problems(read(written), template())
    print(f"{runs.shown(written)}: {len(left)} to do", *left[:20], sep="\n  ")
