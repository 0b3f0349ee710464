"""Labels of Python source by tokenize and ast: kinds of bytes, brackets, uses of names.

They are the same under every Python version that parses the source. Python 3.12 and later tokenize
the inside of f-strings; here an f-string is always one string, as in earlier versions. Needs only
the standard library.
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
_OPENS = getattr(tokenize, "FSTRING_START", None)  # from Python 3.12 on
_CLOSES = getattr(tokenize, "FSTRING_END", None)


def annotate(text):
    """Kind of every byte (index in KINDS) and {closing bracket: opening bracket} of Python source.

    The source is given as bytes. Brackets are byte positions; brackets inside strings are text.
    Raises SyntaxError if the source does not parse.
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
    """{last byte of a name: last byte of its previous use}; `kinds` as returned by annotate."""
    found, seen = {}, {}
    for name in re.finditer(bytes([KINDS.index("name")]) + b"+", kinds):  # no two are adjacent
        spelled = text[slice(*name.span())]
        last = name.end() - 1
        if spelled in seen:
            found[last] = seen[spelled]
        seen[spelled] = last
    return found


def tokens_in(text):
    """(type, string, first byte, end byte) of each token; an f-string is one STRING."""
    starts = line_starts(text)
    lines = text.splitlines(keepends=True)
    decoded = [line.decode() for line in lines]

    def byte(row, column):  # tokenize counts characters, not bytes
        if row > len(lines):
            return len(text)
        return starts[row - 1] + len(decoded[row - 1][:column].encode())

    depth = first = 0  # number of f-strings around the token, and start of the outermost
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
