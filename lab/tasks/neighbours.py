"""What a neighbour decides: in a row, on a grid, or all that came before."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from lab.tasks.lengths import AnyLength
from lab.tasks.task import Task, certain, uniform


@dataclass(frozen=True)
class NeighbourSum(Task):
    """At every position, the sum of the last `reach` tokens, modulo the vocabulary.

    reach 3, vocabulary 4    tokens   1  3  2  0  3
                             targets  .  .  2  1  1
    """

    reach: int = 3
    vocabulary: int = 4
    length: int = 16

    def __post_init__(self):
        if not 1 <= self.reach <= self.length:
            raise ValueError(f"1 <= reach <= length is needed, got {self.reach}, {self.length}")

    def marks(self):
        return uniform(self.vocabulary)

    def batch(self, generator, size):
        tokens = torch.randint(self.vocabulary, (size, self.length), generator=generator)
        targets = torch.full_like(tokens, -100)
        targets[:, self.reach - 1 :] = tokens.unfold(1, self.reach, 1).sum(-1) % self.vocabulary
        return tokens, targets


@dataclass(frozen=True)
class GridAbove(Task):
    """Symbols on a square grid, read row by row; at every cell the symbol above it.

    side 3    2 0 1    targets   . . .
              3 3 0              2 0 1
              1 2 0              3 3 0
    """

    side: int = 5
    vocabulary: int = 8

    @property
    def length(self):
        return self.side**2

    def marks(self):
        return uniform(self.vocabulary)

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

    def marks(self):
        return uniform(2)

    def text_length(self, n):
        return n

    def of_length(self, generator, size, n):
        tokens = torch.randint(2, (size, n), generator=generator)
        return tokens, tokens.cumsum(1) % 2


@dataclass(frozen=True)
class Few(Task):
    """A task of which only `samples` sequences exist, drawn once from `seed`: what can be learnt of few examples.

    samples 2    batch of 4    tokens  1 3 2    0 1 1    0 1 1    1 3 2      targets as in `task`
    """

    task: Task
    samples: int
    seed: int = 0
    holds_out = "every other sequence of the task"

    @property
    def vocabulary(self):
        return self.task.vocabulary

    @property
    def length(self):
        return self.task.length

    @property
    def d_out(self):
        return self.task.d_out

    @cached_property
    def _drawn(self):
        return self.task.batch(torch.Generator().manual_seed(self.seed), self.samples)

    def batch(self, generator, size):
        tokens, targets = self._drawn
        chosen = torch.randint(self.samples, (size,), generator=generator)
        return tokens[chosen], targets[chosen]

    def marks(self):
        """Of the few sequences, whose answers the text decides as far as it does in `task`."""
        targets, whole = self._drawn[1], self.task.marks()
        counted = certain(targets[targets != -100].bincount().tolist())
        return replace(counted, ceiling=whole.ceiling, entropy=whole.entropy)

    def validation(self, size, seed=0):
        """Sequences of the whole task."""
        return self.task.validation(size, seed)
