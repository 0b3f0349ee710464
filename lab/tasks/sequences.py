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
    """Find the one item that matches the query in BOTH fields; every other item matches in at most one.

    items    (a,x)=3  (a,y)=7  (b,x)=1  ...  query (a,y)     answer 7, read at the query

    An item is three tokens, subject, predicate, value; the query is two. Values are digits of their own alphabet.
    """

    subjects: int = 4
    predicates: int = 4
    values: int = 16

    @property
    def vocabulary(self):
        return self.subjects + self.predicates + self.values

    @property
    def length(self):
        return 3 * self.subjects * self.predicates + 2

    def batch(self, generator, size):
        n = self.subjects * self.predicates
        order = torch.rand(size, n, generator=generator).argsort(1)  # every pair once, shuffled
        subject = order // self.predicates
        predicate = order % self.predicates
        value = torch.randint(self.values, (size, n), generator=generator)
        items = torch.stack([subject, predicate + self.subjects, value + self.subjects + self.predicates], -1).flatten(1)
        asked = torch.randint(n, (size, 1), generator=generator)
        query = [subject.gather(1, asked), predicate.gather(1, asked) + self.subjects]
        tokens = torch.cat([items, *query], 1)
        targets = torch.full_like(tokens, -100)
        targets[:, -1:] = value.gather(1, asked) + self.subjects + self.predicates
        return tokens, targets


def accuracy(logits, targets):
    """Share of targets whose highest-scoring class is right; logits as in training.cross_entropy."""
    right = logits.reshape(*targets.shape, -1).argmax(-1) == targets
    return right[targets != -100].float().mean().item()
