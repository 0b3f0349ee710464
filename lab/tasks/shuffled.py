"""Real code whose order is taken away, a little or altogether."""

from dataclasses import dataclass, field

import torch

from lab.tasks.code import Code
from lab.tasks.task import Task


@dataclass(frozen=True)
class Shuffled(Task):
    """The byte that follows a window of code whose bytes were shuffled within spans; 256 at the end asks, mask "none".

    span 2    text     d e f _ f ( x        tokens   e d  f _  ( f  #      the spans tile the window
                                            targets  . .  . .  . .  x      the true next byte in every arm
    """

    code: Code = field(default_factory=Code)
    span: int = 1  # 1 leaves the text as it is
    vocabulary = 257
    d_out = 256
    holds_out = Code.holds_out

    def __post_init__(self):
        if self.span < 1 or self.code.context % self.span:
            raise ValueError(f"span {self.span} does not divide context {self.code.context}")

    @property
    def length(self):
        return self.code.context + 1

    def marks(self):
        return self.code.marks()

    def batch(self, generator, size):
        return self._asked(*self.code.batch(generator, size), generator)

    def validation(self, size, seed=0):
        """Windows of the validation text, the same for every model."""
        return self._asked(*self.code.validation(size, seed), torch.Generator().manual_seed(seed))

    def _asked(self, text, following, generator):
        spans = text.unflatten(1, (-1, self.span))
        order = torch.rand(spans.shape, generator=generator).argsort(-1)  # drawn in every arm: all see the same windows
        query = torch.full((len(text), 1), 256)
        tokens = torch.cat([spans.gather(2, order).flatten(1), query], 1)
        return tokens, torch.cat([torch.full_like(text, -100), following[:, -1:]], 1)
