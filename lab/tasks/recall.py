"""Associative recall: a memory of pairs is written, then read by key."""

from dataclasses import dataclass

import torch

from lab.tasks.task import Task, uniform


@dataclass(frozen=True)
class Recall(Task):
    """Pairs of a key and its value, then keys alone: the value of each (associative recall, Arora 2023).

    tokens   a  7  c  3  b  7  b  c      keys 0..keys-1 differ within a sequence, values are keys..vocabulary-1
    targets  .  .  .  .  .  .  7  3      the value's own token
    """

    pairs: int = 8
    keys: int = 16
    values: int = 16
    queries: int = 4

    def __post_init__(self):
        if not self.queries <= self.pairs <= self.keys:
            raise ValueError(f"queries <= pairs <= keys is needed, got {self.queries}, {self.pairs}, {self.keys}")

    @property
    def vocabulary(self):
        return self.keys + self.values

    @property
    def length(self):
        return 2 * self.pairs + self.queries

    def marks(self):
        return uniform(self.values)

    def batch(self, generator, size):
        key = torch.rand(size, self.keys, generator=generator).argsort(1)[:, : self.pairs]
        value = torch.randint(self.keys, self.vocabulary, key.shape, generator=generator)
        asked = torch.rand(size, self.pairs, generator=generator).argsort(1)[:, : self.queries]
        tokens = torch.cat([torch.stack([key, value], 2).flatten(1), key.gather(1, asked)], 1)
        targets = torch.full_like(tokens, -100)
        targets[:, 2 * self.pairs :] = value.gather(1, asked)
        return tokens, targets
