"""Recall of values by key: from the text, or, for learnt facts, from the weights."""

from dataclasses import dataclass
from functools import cached_property
from math import log2

import torch

from lab.tasks.task import Task, certain, uniform


@dataclass(frozen=True)
class MQAR(Task):
    """Multi-query associative recall: key-value pairs, then keys as queries. Arora 2023.

    tokens   a  7  c  3  b  7  b  c
    targets  .  .  .  .  .  .  7  3      the token of the value

    Keys are 0..keys-1 and differ within a sequence; values are keys..vocabulary-1.
    """

    pairs: int = 8
    keys: int = 16
    values: int = 16
    queries: int = 4

    def __post_init__(self):
        if not self.queries <= self.pairs <= self.keys:
            raise ValueError(
                f"queries <= pairs <= keys must hold, got {self.queries}, {self.pairs}, {self.keys}"
            )

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
        chosen = torch.rand(size, self.pairs, generator=generator).argsort(1)[:, : self.queries]
        tokens = torch.cat([torch.stack([key, value], 2).flatten(1), key.gather(1, chosen)], 1)
        targets = torch.full_like(tokens, -100)
        targets[:, 2 * self.pairs :] = value.gather(1, chosen)
        return tokens, targets


@dataclass(frozen=True)
class Pairs(Task):
    """Key-value pairs of one token each, then all keys in another order, as queries.

    tokens   a7  c3  b7  c  a  b        keys differ within a sequence
    targets  .   .   .   3  7  7        a value 0..values-1
    """

    pairs: int = 16
    keys: int = 32
    values: int = 8

    def __post_init__(self):
        if not 1 <= self.pairs <= self.keys:
            raise ValueError(f"pairs must be 1..{self.keys}, the number of keys, got {self.pairs}")

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
        order = torch.rand(size, self.pairs, generator=generator).argsort(1)
        tokens = torch.cat(
            [key * self.values + value, self.keys * self.values + key.gather(1, order)], 1
        )
        return tokens, torch.cat([torch.full_like(value, -100), value.gather(1, order)], 1)


@dataclass(frozen=True)
class ConjunctiveLookup(Task):
    """The value of the item (subject, predicate, value) that matches a query in both parts.

    All combinations of subject and predicate occur, so some items match in one part only.

    tokens   (a,x)=3  (b,y)=0  (a,y)=7  (b,x)=1  (a,y)?
    targets     .        .        .        .       7         a class 0..values-1

    An item is one token, and the query is one token.
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

    def marks(self):
        return uniform(self.values)

    def batch(self, generator, size):
        # every pair once, shuffled
        pair = torch.rand(size, self.pairs, generator=generator).argsort(1)
        value = torch.randint(self.values, (size, self.pairs), generator=generator)
        chosen = torch.randint(self.pairs, (size, 1), generator=generator)
        query = self.pairs * self.values + pair.gather(1, chosen)
        tokens = torch.cat([pair * self.values + value, query], 1)
        targets = torch.full_like(tokens, -100)
        targets[:, -1:] = value.gather(1, chosen)
        return tokens, targets


@dataclass(frozen=True)
class Facts(Task):
    """The object of each (subject, relation), drawn once at random and asked in several wordings.

    wording 0   tokens  w0 s r ?     targets  . . . o      even wordings name the subject first,
    wording 1           w1 r s ?              . . . o      odd ones the relation

    Token ids: subjects, relations, objects, wordings, then the question mark.
    """

    subjects: int = 16
    relations: int = 4
    objects: int = 16
    wordings: int = 2
    table_seed: int = 0
    length = 4

    @property
    def vocabulary(self):
        return self.subjects + self.relations + self.objects + self.wordings + 1

    @property
    def facts(self):
        return self.subjects * self.relations

    @property
    def bits(self):
        """Information in the table: log2(objects) per fact."""
        return self.facts * log2(self.objects)

    @cached_property
    def answers(self):
        """The object token of every fact, (facts,).

        Fact f has subject f // relations and relation f % relations.
        """
        drawn = torch.randint(
            self.objects, (self.facts,), generator=torch.Generator().manual_seed(self.table_seed)
        )
        return self.subjects + self.relations + drawn

    def questions(self, fact, wording):
        """Tokens (b, 4) that ask for facts (b,) in wordings (b,)."""
        subject = fact // self.relations
        relation = self.subjects + fact % self.relations
        swapped = wording % 2 == 1
        first = torch.where(swapped, relation, subject)
        second = torch.where(swapped, subject, relation)
        word = self.subjects + self.relations + self.objects + wording
        return torch.stack([word, first, second, torch.full_like(fact, self.vocabulary - 1)], 1)

    def marks(self):
        return certain(self.answers.bincount().tolist())

    def batch(self, generator, size):
        fact = torch.randint(self.facts, (size,), generator=generator)
        tokens = self.questions(fact, torch.randint(self.wordings, (size,), generator=generator))
        targets = torch.full_like(tokens, -100)
        targets[:, -1] = self.answers[fact]
        return tokens, targets

    def table(self):
        """Tokens (wordings, facts, 4) of every fact in every wording; the answers are `answers`."""
        fact = torch.arange(self.facts)
        return torch.stack(
            [self.questions(fact, torch.full_like(fact, w)) for w in range(self.wordings)]
        )


@torch.no_grad()
def recalled(model, task):
    """Whether the most likely token is the object: booleans (wordings, facts)."""
    device = next(model.parameters()).device
    table = task.table()
    found = model(table.flatten(0, 1).to(device))[:, -1].argmax(-1).cpu()
    return found.view(table.shape[:2]) == task.answers
