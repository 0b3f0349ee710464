"""Associative recall in one layer: a pair of key and value is one token."""

from dataclasses import dataclass

import torch

from lab.tasks.task import Task, uniform


@dataclass(frozen=True)
class Pairs(Task):
    """Pairs of a key and a value, each one token, then all their keys in another order: the value of each.

    tokens   a7  c3  b7  c  a  b        keys differ within a sequence
    targets  .   .   .   3  7  7        a value 0..values-1
    """

    pairs: int = 16
    keys: int = 32
    values: int = 8

    def __post_init__(self):
        if not 1 <= self.pairs <= self.keys:
            raise ValueError(f"pairs must be 1..{self.keys}, the keys, got {self.pairs}")

    @property
    def vocabulary(self):
        return self.keys * (self.values + 1)

    @property
    def d_out(self):
        return self.values

    @property
    def length(self):
        return 2 * self.pairs

    def marks(self):
        return uniform(self.values)

    def batch(self, generator, size):
        key = torch.rand(size, self.keys, generator=generator).argsort(1)[:, : self.pairs]
        value = torch.randint(self.values, key.shape, generator=generator)
        asked = torch.rand(size, self.pairs, generator=generator).argsort(1)
        tokens = torch.cat([key * self.values + value, self.keys * self.values + key.gather(1, asked)], 1)
        return tokens, torch.cat([torch.full_like(value, -100), value.gather(1, asked)], 1)
