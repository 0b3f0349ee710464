"""What a neighbour decides: in a row, on a grid, or all that came before. As in sequences.py and lengths.py."""

from dataclasses import dataclass
from functools import cached_property

import torch

from lab.tasks.lengths import AnyLength


@dataclass(frozen=True)
class NeighbourSum:
    """At every position, the sum of the last `reach` tokens, modulo the vocabulary.

    reach 3, vocabulary 4    tokens   1  3  2  0  3
                             targets  .  .  2  1  1
    """

    reach: int = 3
    vocabulary: int = 4
    length: int = 16
    d_out = None

    def __post_init__(self):
        if not 1 <= self.reach <= self.length:
            raise ValueError(f"1 <= reach <= length is needed, got {self.reach}, {self.length}")

    def batch(self, generator, size):
        tokens = torch.randint(self.vocabulary, (size, self.length), generator=generator)
        targets = torch.full_like(tokens, -100)
        targets[:, self.reach - 1 :] = tokens.unfold(1, self.reach, 1).sum(-1) % self.vocabulary
        return tokens, targets


@dataclass(frozen=True)
class GridAbove:
    """Symbols on a square grid, read row by row; at every cell the symbol above it.

    side 3    2 0 1    targets   . . .
              3 3 0              2 0 1
              1 2 0              3 3 0
    """

    side: int = 5
    vocabulary: int = 8
    d_out = None

    @property
    def length(self):
        return self.side**2

    def batch(self, generator, size):
        tokens = torch.randint(self.vocabulary, (size, self.length), generator=generator)
        targets = torch.full_like(tokens, -100)
        targets[:, self.side :] = tokens[:, : -self.side]
        return tokens, targets


@dataclass(frozen=True)
class Parity(AnyLength):
    """At every position, whether the bits so far hold an odd number of ones.

    tokens   1  0  1  1
    targets  1  1  0  1
    """

    shortest: int = 1
    longest: int = 16
    vocabulary = 2

    def of_length(self, generator, size, n):
        tokens = torch.randint(2, (size, n), generator=generator)
        return tokens, tokens.cumsum(1) % 2


@dataclass(frozen=True)
class Few:
    """A task of which only `samples` sequences exist, drawn once from `seed`: what can be learnt of few examples."""

    task: object
    samples: int
    seed: int = 0

    @cached_property
    def _drawn(self):
        return self.task.batch(torch.Generator().manual_seed(self.seed), self.samples)

    def batch(self, generator, size):
        tokens, targets = self._drawn
        chosen = torch.randint(self.samples, (size,), generator=generator)
        return tokens[chosen], targets[chosen]
