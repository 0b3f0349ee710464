"""Synthetic tasks with known answers: lookup, recall of pairs and facts, Markov chain, reversal."""

from dataclasses import dataclass
from functools import cached_property
from math import log2

import torch

from lab.tasks.task import Task


@dataclass(frozen=True)
class Lookup(Task):
    """Predict, at every position, the tokens at several fixed offsets back, one output per offset.

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
        """Number of logits per position: one per output and class."""
        return self.outputs * self.vocabulary

    def batch(self, generator, size):
        tokens = torch.randint(self.vocabulary, (size, self.length), generator=generator)
        targets = torch.full((size, self.length, self.outputs), -100)
        for i, offset in enumerate(self.offsets):
            targets[:, offset:, i] = tokens[:, :-offset]
        return tokens, targets


@dataclass(frozen=True)
class Pairs(Task):
    """Recall values: key-value pairs, one token per pair, then all keys as queries in random order.

    tokens   a7  c3  b7  c  a  b        the keys of a sequence are distinct
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

    def batch(self, generator, size):
        key = torch.rand(size, self.keys, generator=generator).argsort(1)[:, : self.pairs]
        value = torch.randint(self.values, key.shape, generator=generator)
        order = torch.rand(size, self.pairs, generator=generator).argsort(1)
        tokens = torch.cat(
            [key * self.values + value, self.keys * self.values + key.gather(1, order)], 1
        )
        return tokens, torch.cat([torch.full_like(value, -100), value.gather(1, order)], 1)


@dataclass(frozen=True)
class Facts(Task):
    """Recall facts: each (subject, relation) has a random object; questions have several wordings.

    wording 0   tokens  w0 s r ?     targets  . . . o      even wordings name the subject first,
    wording 1           w1 r s ?              . . . o      odd wordings the relation

    The order of token ids is subjects, relations, objects, wordings, question mark. `table_seed`
    is the seed for drawing the objects.
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
        """Information content of all facts in bits: log2(objects) per fact."""
        return self.facts * log2(self.objects)

    @cached_property
    def answers(self):
        """Object token of every fact: (facts,).

        Fact f has subject f // relations and relation f % relations.
        """
        drawn = torch.randint(
            self.objects, (self.facts,), generator=torch.Generator().manual_seed(self.table_seed)
        )
        return self.subjects + self.relations + drawn

    def questions(self, fact, wording):
        """Question tokens (b, 4) for facts (b,) in wordings (b,)."""
        subject = fact // self.relations
        relation = self.subjects + fact % self.relations
        swapped = wording % 2 == 1
        first = torch.where(swapped, relation, subject)
        second = torch.where(swapped, subject, relation)
        word = self.subjects + self.relations + self.objects + wording
        return torch.stack([word, first, second, torch.full_like(fact, self.vocabulary - 1)], 1)

    def batch(self, generator, size):
        fact = torch.randint(self.facts, (size,), generator=generator)
        tokens = self.questions(fact, torch.randint(self.wordings, (size,), generator=generator))
        targets = torch.full_like(tokens, -100)
        targets[:, -1] = self.answers[fact]
        return tokens, targets

    def table(self):
        """Question tokens (wordings, facts, 4) of all facts in all wordings; see `answers`."""
        fact = torch.arange(self.facts)
        return torch.stack(
            [self.questions(fact, torch.full_like(fact, w)) for w in range(self.wordings)]
        )


@torch.no_grad()
def recalled(model, task):
    """Whether the model's most likely token is the right object: booleans (wordings, facts)."""
    device = next(model.parameters()).device
    table = task.table()
    found = model(table.flatten(0, 1).to(device))[:, -1].argmax(-1).cpu()
    return found.view(table.shape[:2]) == task.answers


@dataclass(frozen=True)
class Markov(Task):
    """Predict the next token of a first-order Markov chain; `seed` fixes its transition matrix.

    tokens   c  a  c  b  c          row i of `transition` has the probabilities after token i
    targets  a  c  b  c  a
    """

    vocabulary: int = 16
    length: int = 64
    contrast: float = 1.5  # standard deviation of the transition logits; 0: uniform
    seed: int = 0

    @cached_property
    def transition(self):
        """Transition probabilities, next token in columns: float64 (vocabulary, vocabulary)."""
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.vocabulary, self.vocabulary)
        return (
            self.contrast * torch.randn(shape, generator=generator, dtype=torch.float64)
        ).softmax(-1)

    @cached_property
    def stationary(self):
        """Stationary distribution p = p T for the transition matrix T: float64 (vocabulary,)."""
        equations = (self.transition.T - torch.eye(self.vocabulary, dtype=torch.float64)).clone()
        equations[-1] = 1  # replace a redundant equation with sum(p) = 1
        return torch.linalg.solve(equations, torch.eye(self.vocabulary, dtype=torch.float64)[-1])

    @property
    def entropy_rate(self):
        """Entropy rate of the chain in nats per token: the lowest possible loss."""
        return (
            -(self.stationary[:, None] * torch.special.xlogy(self.transition, self.transition))
            .sum()
            .item()
        )

    @property
    def unigram_entropy(self):
        """Entropy of the stationary distribution in nats: the lowest loss without context."""
        return -torch.special.xlogy(self.stationary, self.stationary).sum().item()

    def batch(self, generator, size):
        odds = torch.rand(self.length + 1, size, generator=generator, dtype=torch.float64)
        last = self.vocabulary - 1  # the cumulative sum may round to below 1
        rows = self.transition.cumsum(1)
        token = torch.searchsorted(self.stationary.cumsum(0), odds[0]).clamp(max=last)
        text = [token]
        for draw in odds[1:]:
            token = (rows[token] < draw[:, None]).sum(1).clamp(max=last)
            text.append(token)
        text = torch.stack(text, 1)
        return text[:, :-1], text[:, 1:]


@dataclass(frozen=True)
class Reversal(Task):
    """Reverse a sequence, for encoder-decoders. Inputs: (source, target_in), (b, length) each.

    source     c  a  f  b
    target_in  S  b  f  a        S, the last id of the vocabulary, starts the answer
    targets    b  f  a  c
    """

    symbols: int = 16
    length: int = 12

    @property
    def vocabulary(self):
        return self.symbols + 1

    def batch(self, generator, size):
        source = torch.randint(self.symbols, (size, self.length), generator=generator)
        targets = source.flip(1)
        target_in = torch.cat([torch.full((size, 1), self.symbols), targets[:, :-1]], 1)
        return (source, target_in), targets
