"""Real code whose names and brackets carry marks: what was defined where, by the gold of labels.py."""

import keyword
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from lab import trace
from lab.tasks.corpus import corpus_hash, parts
from lab.tasks.labels import tokens_and_parents
from lab.tasks.task import Task, uniform

OPENERS = "([{"
CLOSERS = ")]}"
SIGNS = (
    "=",
    ".",
    ",",
    ":",
    "def",
    "class",
    "return",
    "if",
    "for",
    "in",
    "import",
    "self",
    "#newline",
    "#other",
)


@dataclass(frozen=True)
class Definitions(Task):
    """Windows of tokens of real code.

    The first occurrence of a name, and every opening bracket, carries a random mark; asked at the
    name's later uses, and at the closing bracket.

    code     x  =  f  (  x  ,  y  )  .  y       names are renamed at random in each window
    marks    2     5  1        0
    targets  .  .  .  .  2  .  .  1  .  0       a mark 0..values-1
    source   .  .  .  .  0  .  .  3  .  6
    parent   .  0  0  2  2  2  2  3  0  8       the token above in the syntax tree, and a bracket's opener
    """

    names: int = 12  # different names that occur twice or more in a window; the others are alike
    values: int = 8  # different marks
    length: int = 64
    windows: int = 3000  # kept of the text
    path: str = ""
    holds_out = "a tenth of the files"

    @cached_property
    def hash(self):
        """Identifies the text: short sha256 over file names and contents."""
        return corpus_hash(self.path)

    @property
    def vocabulary(self):
        return len(SIGNS) + self.names * (self.values + 1) + len(OPENERS) * (self.values + 1)

    @property
    def d_out(self):
        return self.values

    def marks(self):
        return uniform(self.values)

    def batch(self, generator, size):
        drawn = self.annotated(generator, size)
        return drawn["tokens"], drawn["targets"]

    def validation(self, size, seed=0):
        drawn = self.annotated(torch.Generator().manual_seed(10**6 + seed), size, held_out=True)
        return drawn["tokens"], drawn["targets"]

    def annotated(self, generator, size, *, held_out=False):
        """{tokens, targets, source, parent, kind: (b, t)} of windows of the training or the
        held-out text.

        source and parent are places in the window, -1 for none; kind is 1 where a name is asked, 2
        where a bracket is.
        """
        bank = _bank(self.path, self.hash, self.length, self.names, self.windows, held_out)
        sign, slot, source, parent, kind = bank[
            :, torch.randint(bank.shape[1], (size,), generator=generator)
        ]
        renamed = torch.rand(size, self.names, generator=generator).argsort(1)
        mark = torch.randint(self.values, slot.shape, generator=generator)
        named, opens, closes = slot >= 0, (kind == 3), (kind == 2)
        name = renamed.gather(1, slot.clamp(min=0))
        first = len(SIGNS)
        uses, marked = first + name, first + self.names + name * self.values + mark
        tokens = torch.where(
            named, torch.where(kind == 1, uses, marked), sign.clamp(min=0, max=len(SIGNS) - 1)
        )
        first += self.names * (self.values + 1)
        tokens = torch.where(closes, first + sign, tokens)  # at brackets, sign is their shape
        tokens = torch.where(opens, first + len(OPENERS) + sign * self.values + mark, tokens)
        targets = mark.gather(1, source.clamp(min=0)).where(source >= 0, -100)
        return {
            "tokens": tokens,
            "targets": targets,
            "source": source,
            "parent": parent,
            "kind": kind % 3,
        }


@trace.cache
def _bank(path, sha, length, names, windows, held_out):
    """(sign, slot, source, parent, kind) of each token of `windows` windows, a tensor (5, windows,
    length).
    """
    rows = []
    for text in parts(path, sha)[held_out].values():
        try:
            spelled, parent = tokens_and_parents(text)
        except (SyntaxError, ValueError, RecursionError):
            continue
        parent = np.array(parent, dtype=np.int64)
        for start in range(0, len(spelled) - length, length):
            row = _window(
                spelled[start : start + length], parent[start : start + length] - start, names
            )
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
