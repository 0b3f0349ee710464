"""Synthetic sequences whose answer is known. Each task: vocabulary, classes, length, batch(generator, size).

batch returns tokens (b, t) and targets (b, t) or (b, t, outputs); -100 marks positions without an answer.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Lookup:
    """At every position, the tokens at several fixed offsets back, each through an output of its own.

    offsets 1 and 3     tokens   c  a  f  b  e
                        output 0 .  c  a  f  b      the token 1 back
                        output 1 .  .  .  c  a      the token 3 back
    """

    offsets: tuple = (1, 3, 6, 10)
    vocabulary: int = 16
    length: int = 32

    @property
    def outputs(self):
        return len(self.offsets)

    @property
    def d_out(self):
        """Width of a readout that scores every class of every output."""
        return self.outputs * self.vocabulary

    def batch(self, generator, size):
        tokens = torch.randint(self.vocabulary, (size, self.length), generator=generator)
        targets = torch.full((size, self.length, self.outputs), -100)
        for i, offset in enumerate(self.offsets):
            targets[:, offset:, i] = tokens[:, :-offset]
        return tokens, targets


@dataclass(frozen=True)
class ConjunctiveLookup:
    """Among items (subject, predicate, value), the value of the one that matches a query in BOTH; the rest half-match.

    tokens   (a,x)=3  (b,y)=0  (a,y)=7  (b,x)=1  (a,y)?      an item is one token, the query another
    targets     .        .        .        .       7         a class 0..values-1, asked at the last position only
    """

    subjects: int = 4
    predicates: int = 4
    values: int = 8

    @property
    def pairs(self):
        return self.subjects * self.predicates

    @property
    def vocabulary(self):
        return self.pairs * (self.values + 1)

    @property
    def length(self):
        return self.pairs + 1

    def batch(self, generator, size):
        pair = torch.rand(size, self.pairs, generator=generator).argsort(1)  # every pair once, shuffled
        value = torch.randint(self.values, (size, self.pairs), generator=generator)
        asked = torch.randint(self.pairs, (size, 1), generator=generator)
        query = self.pairs * self.values + pair.gather(1, asked)
        tokens = torch.cat([pair * self.values + value, query], 1)
        targets = torch.full_like(tokens, -100)
        targets[:, -1:] = value.gather(1, asked)
        return tokens, targets


def accuracy(logits, targets):
    """Share of targets whose highest-scoring class is right; logits as in training.cross_entropy."""
    right = logits.reshape(*targets.shape, -1).argmax(-1) == targets
    return right[targets != -100].float().mean().item()
