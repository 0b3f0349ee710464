"""The test of induction heads: a block of different tokens, several times over (Olsson 2022)."""

from dataclasses import dataclass

import torch

from lab.tasks.task import Task, uniform


@dataclass(frozen=True)
class Blocks(Task):
    """Next token of a random block whose tokens all differ, `repeats` times over.

    tokens   c  a  f  c  a  f        period 3, twice; a token occurs once in a block, so its successor is certain
    targets  .  .  .  a  f  c        asked from the second block on
    """

    vocabulary: int
    period: int = 25
    repeats: int = 4

    def __post_init__(self):
        if not 1 <= self.period <= self.vocabulary or self.repeats < 2:
            raise ValueError(
                f"1 <= period <= vocabulary and repeats >= 2 are needed, got {self.period}, {self.vocabulary}, "
                f"{self.repeats}"
            )

    @property
    def length(self):
        return self.period * self.repeats

    def marks(self):
        return uniform(self.vocabulary)

    def batch(self, generator, size):
        block = torch.rand(size, self.vocabulary, generator=generator).argsort(1)[:, : self.period]
        tokens = block.repeat(1, self.repeats)
        return tokens, tokens.roll(-1, 1).where(torch.arange(self.length) >= self.period, -100)
