"""Real text of two kinds: what programs say to people, and what they say to machines."""

import re
from dataclasses import dataclass

import numpy as np
import torch

from lab import trace
from lab.tasks.code import Code, _joined, _unseen
from lab.tasks.task import Marks

KINDS = ("prose", "code")


@dataclass(frozen=True)
class ProseAndCode(Code):
    """Next byte of the text at `path`; half of the windows lie inside docstrings, half touch none.

    prose    tokens  t h e _ m a      targets  h e _ m a s      between two \"\"\"
    code     tokens  d e f _ f (      targets  e f _ f ( x

    Docstrings hold sentences, and examples with what they print.
    """

    def marks(self):
        """Of single bytes of the validation text, those in docstrings counting half, and the others."""
        inside = _within(self.path, self.hash, self.validation_share, True, 1) > 0
        text = self.text(held_out=True)[: len(inside)]
        shares = [part.bincount(minlength=256).double() / len(part) for part in (text[inside], text[~inside])]
        mixed = sum(shares) / 2
        return Marks(chance=mixed.max().item(), unigram_entropy=-torch.special.xlogy(mixed, mixed).sum().item())

    def batch(self, generator, size):
        """Windows at random places of the training text, of either kind as a coin falls."""
        starts = [_starts(self.path, self.hash, self.validation_share, self.context + 1, kind) for kind in KINDS]
        coin = torch.randint(2, (size,), generator=generator)
        odds = torch.rand(size, generator=generator, dtype=torch.float64)
        chosen = [starts[kind][int(share * len(starts[kind]))] for kind, share in zip(coin, odds, strict=True)]
        return self._windows(self.text(), torch.stack(chosen))

    def validation(self, size, seed=0):
        """Windows of the validation text that stand nowhere in the training text: prose first, then as much code.

        ValueError where there are too few.
        """
        half, span, found = size // 2, self.context + 1, []
        new = _unseen(self.path, self.hash, self.validation_share, span, 16 * size, seed)
        within = _within(self.path, self.hash, self.validation_share, True, span)[new]
        for wanted, share in ((half, span), (size - half, 0)):
            kept = new[within == share][:wanted]
            if len(kept) < wanted:
                raise ValueError(f"corpus {self.path!r}: {len(kept)} of {wanted} validation windows of one kind")
            found.append(kept)
        return self._windows(self.text(held_out=True), torch.cat(found))


@trace.cache
def _within(path, sha, share, held_out, span):
    """How many of the `span` bytes from each place on lie in docstrings: int64."""
    text = _joined(path, sha, share)[held_out].numpy()
    inside = np.zeros(len(text) + 1, np.int64)
    for docstring in re.finditer(rb'"""(.*?)"""', text.tobytes(), re.DOTALL):
        inside[docstring.start(1) + 1 : docstring.end(1) + 1] = 1
    total = inside.cumsum()
    return torch.from_numpy(total[span:] - total[:-span])


@trace.cache
def _starts(path, sha, share, span, kind):
    """Where windows of one kind start in the training text."""
    within = _within(path, sha, share, False, span)
    return (within == (span if kind == "prose" else 0)).nonzero().flatten()
