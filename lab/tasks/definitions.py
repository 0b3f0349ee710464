"""Real code whose names and brackets carry random marks, with gold labels from labels.py."""

import keyword
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from lab import uses
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
    """Recall the random mark of a name's first occurrence, or of a bracket's opener, in real code.

    The first occurrence of a name and every opening bracket carry a mark. It is the target at later
    uses of the name and at the closing bracket.

    code     x  =  f  (  x  ,  y  )  .  y       names are renamed at random in each window
    marks    2     5  1        0
    targets  .  .  .  .  2  .  .  1  .  0       a mark 0..values-1
    source   .  .  .  .  0  .  .  3  .  6
    parent   .  0  0  2  2  2  2  3  0  8       the parent in the syntax tree, or a bracket's opener
    """

    names: int = 12  # most names with two or more uses in a window; all other names look alike
    values: int = 8  # different marks
    length: int = 64
    windows: int = 3000  # windows taken from the text
    path: str = ""
    holds_out = "a tenth of the files"

    @cached_property
    def hash(self):
        """Identifies the text: first 12 hex digits of the sha256 of file names and contents."""
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
        """{tokens, targets, source, parent, kind: (b, t)} of training or held-out windows.

        source and parent are indices in the window, -1 for none; kind is 1 at a use of a name and 2
        at a closing bracket if it has a target, else 0.
        """
        bank = _bank(self.path, self.hash, self.length, self.names, self.windows, held_out)
        sign, slot, source, parent, kind = bank[
            :, torch.randint(bank.shape[1], (size,), generator=generator)
        ]
        renamed = torch.rand(size, self.names, generator=generator).argsort(1)
        mark = torch.randint(self.values, slot.shape, generator=generator)
        named = slot >= 0
        opens = kind == 3
        closes = kind == 2
        name = renamed.gather(1, slot.clamp(min=0))
        first = len(SIGNS)
        uses = first + name
        marked = first + self.names + name * self.values + mark
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


@uses.cache
def _bank(path, sha, length, names, windows, held_out):
    """(sign, slot, source, parent, kind) per token, a tensor (5, windows, length).

    Raises ValueError if no Python file has enough tokens.
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
    """The five rows of one window; None if it has no repeated name or too many."""
    counts = {}
    for word in spelled:
        if _is_name(word):
            counts[word] = counts.get(word, 0) + 1
    slots = {word: i for i, word in enumerate(word for word, count in counts.items() if count > 1)}
    if not 1 <= len(slots) <= names:
        return None
    rows = np.full((5, len(spelled)), -1, dtype=np.int64)
    seen = {}
    stack = []
    rows[4] = 0
    for t, word in enumerate(spelled):
        rows[0, t] = SIGNS.index(word if word in SIGNS else "#other")
        if word in slots:
            rows[1, t] = slots[word]
            if word in seen:
                rows[2, t], rows[4, t] = seen[word], 1
            seen.setdefault(word, t)
        elif word in OPENERS:
            rows[0, t] = OPENERS.index(word)
            rows[4, t] = 3
            stack.append(t)
        elif word in CLOSERS and stack:
            rows[2, t] = parent[t] = stack.pop()
            rows[0, t] = CLOSERS.index(word)
            rows[4, t] = 2
    # a decorator comes before its parent, the definition; keep only parents that come earlier
    rows[3] = np.where((parent >= 0) & (parent < np.arange(len(parent))), parent, -1)
    return rows


def _is_name(word):
    return word.isidentifier() and word not in SIGNS and not keyword.iskeyword(word)
