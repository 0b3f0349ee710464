"""Labels of Python source code: kinds of bytes, matching brackets, previous uses of names.

The labels are the same in every Python version that parses the source: an f-string is one string,
although Python 3.12 and later tokenize its contents. This module uses only the standard library.
"""

import ast
import io
import keyword
import re
import tokenize
from itertools import accumulate

KINDS = ("blank", "name", "keyword", "number", "string", "comment", "operator")
PAIRS = {")": "(", "]": "[", "}": "{"}
_NAMED = {
    tokenize.NAME: "name",
    tokenize.NUMBER: "number",
    tokenize.STRING: "string",
    tokenize.COMMENT: "comment",
    tokenize.OP: "operator",
}
_OPENS = getattr(tokenize, "FSTRING_START", None)  # exists from Python 3.12 on
_CLOSES = getattr(tokenize, "FSTRING_END", None)


def annotate(text):
    """Label the kind of every byte of Python source code, and find matching brackets.

    text: the source, as bytes. Returns (kinds, openers): kinds is bytes, an index into KINDS for
    each byte; openers maps the position of a closing bracket to that of its opening bracket.
    Brackets in strings and comments do not count. Raises SyntaxError if the source does not parse.
    """
    ast.parse(text)
    kinds = bytearray(len(text))
    openers = {}
    stack = []
    for kind, string, first, last in tokens_in(text):
        name = _NAMED.get(kind)
        if name is None:
            continue
        if name == "name" and keyword.iskeyword(string):
            name = "keyword"
        kinds[first:last] = bytes([KINDS.index(name)]) * (last - first)
        if name == "operator" and string in PAIRS.values():
            stack.append(first)
        elif name == "operator" and string in PAIRS:
            openers[first] = stack.pop()
    return bytes(kinds), openers


def last_uses(text, kinds):
    """{position of the last byte of a name: position of the last byte of its previous use}.

    `kinds` is from annotate.
    """
    found, seen = {}, {}
    for name in re.finditer(bytes([KINDS.index("name")]) + b"+", kinds):  # names are never adjacent
        spelled = text[slice(*name.span())]
        last = name.end() - 1
        if spelled in seen:
            found[last] = seen[spelled]
        seen[spelled] = last
    return found


def tokens_in(text):
    """Yield (type, string, start, end) of each token, in bytes; an f-string is one STRING."""
    starts = line_starts(text)
    lines = text.splitlines(keepends=True)
    decoded = [line.decode() for line in lines]

    def byte(row, column):  # tokenize counts characters, not bytes
        if row > len(lines):
            return len(text)
        return starts[row - 1] + len(decoded[row - 1][:column].encode())

    depth = first = 0  # nesting of f-strings, and start of the outermost one
    for token in tokenize.generate_tokens(io.StringIO("".join(decoded), newline="").readline):
        if token.type == _OPENS:
            if not depth:
                first = byte(*token.start)
            depth += 1
        elif token.type == _CLOSES:
            depth -= 1
            if not depth:
                yield tokenize.STRING, "", first, byte(*token.end)
        elif not depth:
            yield token.type, token.string, byte(*token.start), byte(*token.end)


def line_starts(text):
    """Position of the first byte of each line."""
    return [0, *accumulate(len(line) for line in text.splitlines(keepends=True))]
