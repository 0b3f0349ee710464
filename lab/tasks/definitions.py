"""Real code whose names and brackets carry marks: what was defined where, by tokenize and ast. As in sequences.py."""

import ast
import io
import keyword
import tokenize
from dataclasses import dataclass

import numpy as np
import torch

from lab import trace
from lab.tasks.code import split

OPENERS = "([{"
CLOSERS = ")]}"
SIGNS = ("=", ".", ",", ":", "def", "class", "return", "if", "for", "in", "import", "self", "#newline", "#other")


@dataclass(frozen=True)
class Definitions:
    """Windows of tokens of real code. The first occurrence of a name, and every opening bracket, carries a random mark;
    asked at the name's later uses, and at the closing bracket.

    code     x  =  f  (  x  ,  y  )  .  y       names are renamed at random in each window
    marks    2     5  1        0
    targets  .  .  .  .  2  .  .  1  .  0       a mark 0..marks-1
    source   .  .  .  .  0  .  .  3  .  6
    parent   .  0  0  2  2  2  2  3  0  8       the token above in the syntax tree, and a bracket's opener
    """

    names: int = 12  # different names that occur twice or more in a window; the others are alike
    marks: int = 8
    length: int = 64
    windows: int = 3000  # kept of the text
    path: str = ""

    @property
    def vocabulary(self):
        return len(SIGNS) + self.names * (self.marks + 1) + len(OPENERS) * (self.marks + 1)

    @property
    def d_out(self):
        return self.marks

    def batch(self, generator, size):
        drawn = self.annotated(generator, size)
        return drawn["tokens"], drawn["targets"]

    def annotated(self, generator, size, *, held_out=False):
        """{tokens, targets, source, parent, kind: (b, t)} of windows of the training or the held-out text.

        source and parent are places in the window, -1 for none; kind is 1 where a name is asked, 2 where a bracket is.
        """
        bank = _bank(self.path, self.length, self.names, self.windows, held_out)
        sign, slot, source, parent, kind = bank[:, torch.randint(bank.shape[1], (size,), generator=generator)]
        renamed = torch.rand(size, self.names, generator=generator).argsort(1)
        mark = torch.randint(self.marks, slot.shape, generator=generator)
        named, opens, closes = slot >= 0, (kind == 3), (kind == 2)
        name = renamed.gather(1, slot.clamp(min=0))
        first = len(SIGNS)
        uses, marked = first + name, first + self.names + name * self.marks + mark
        tokens = torch.where(named, torch.where(kind == 1, uses, marked), sign.clamp(min=0, max=len(SIGNS) - 1))
        first += self.names * (self.marks + 1)
        tokens = torch.where(closes, first + sign, tokens)  # at brackets, sign is their shape
        tokens = torch.where(opens, first + len(OPENERS) + sign * self.marks + mark, tokens)
        targets = mark.gather(1, source.clamp(min=0)).where(source >= 0, -100)
        return {"tokens": tokens, "targets": targets, "source": source, "parent": parent, "kind": kind % 3}


@trace.cache
def _bank(path, length, names, windows, held_out):
    """(sign, slot, source, parent, kind) of each token of `windows` windows, a tensor (5, windows, length)."""
    rows = []
    for text in split(path)[int(held_out)].values():
        try:
            spelled, parent = tokens_and_parents(text)
        except (SyntaxError, UnicodeDecodeError, ValueError, RecursionError, tokenize.TokenError):
            continue
        for start in range(0, len(spelled) - length, length):
            row = _window(spelled[start : start + length], parent[start : start + length] - start, names)
            if row is not None:
                rows.append(row)
        if len(rows) >= windows:
            break
    if not rows:
        raise ValueError(f"corpus {path!r} has no Python file with {length} tokens to annotate")
    return torch.from_numpy(np.stack(rows[:windows], 1))


def _window(spelled, parent, names):
    """The five rows of one window, None if it has too many names or nothing to ask."""
    counts = {}
    for word in spelled:
        if _is_name(word):
            counts[word] = counts.get(word, 0) + 1
    slots = {word: i for i, word in enumerate(word for word, count in counts.items() if count > 1)}
    if not 1 <= len(slots) <= names:
        return None
    rows, seen, stack = np.full((5, len(spelled)), -1, dtype=np.int64), {}, []
    rows[4] = 0
    for t, word in enumerate(spelled):
        rows[0, t] = SIGNS.index(word if word in SIGNS else "#other")
        if word in slots:
            rows[1, t] = slots[word]
            if word in seen:
                rows[2, t], rows[4, t] = seen[word], 1
            seen.setdefault(word, t)
        elif word in OPENERS:
            rows[0, t], rows[4, t] = OPENERS.index(word), 3
            stack.append(t)
        elif word in CLOSERS and stack:
            rows[2, t] = parent[t] = stack.pop()
            rows[0, t], rows[4, t] = CLOSERS.index(word), 2
    # a decorator stands before the definition that it belongs to
    rows[3] = np.where((parent >= 0) & (parent < np.arange(len(parent))), parent, -1)
    return rows


def _is_name(word):
    return word.isidentifier() and word not in SIGNS and not keyword.iskeyword(word)


def tokens_and_parents(text):
    """The tokens of Python source given as bytes, and for each the first token of the syntax node around it, or -1."""
    tree, text = ast.parse(text), text.decode()
    spelled, place = [], {}
    for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
        if token.type == tokenize.NEWLINE:
            spelled.append("#newline")
        elif token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING):
            place[token.start] = len(spelled)
            spelled.append(token.string if token.type in (tokenize.NAME, tokenize.OP) else "#other")
    parent = np.full(len(spelled), -1, dtype=np.int64)
    lines = [line.encode() for line in text.splitlines(keepends=True)]
    starts = np.array(sorted(place), dtype=np.int64).reshape(-1, 2)  # (row, column) of the tokens, in order
    order = np.array([place[tuple(at)] for at in starts.tolist()], dtype=np.int64)
    keys = starts[:, 0] * 100_000 + starts[:, 1]

    def key(row, column):  # ast counts bytes, tokenize characters
        return row * 100_000 + len(lines[row - 1][:column].decode())

    def visit(node, head):
        if hasattr(node, "end_lineno") and hasattr(node, "lineno"):
            inside = slice(
                *np.searchsorted(keys, [key(node.lineno, node.col_offset), key(node.end_lineno, node.end_col_offset)])
            )
            if inside.start < inside.stop and (own := order[inside.start]) != head:
                parent[order[inside]] = own
                parent[own] = head
                head = own
        for child in ast.iter_child_nodes(node):
            visit(child, head)

    visit(tree, -1)
    return spelled, parent
