"""What a task is: what it asks, what a score on it is held against, and what it keeps from
training.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from math import log

import torch


@dataclass(frozen=True)
class Marks:
    """What a score on a task's answers is held against; None where it is not known.

    Accuracies are shares of right answers, entropies nats an answer. Where targets are real
    numbers, chance and ceiling are shares of their variance (series.explained), and there are no
    entropies.
    """

    chance: float | None = None  # of who always gives the commonest answer
    ceiling: float | None = None  # no reader gets more right
    unigram_entropy: float | None = (
        None  # of who knows how frequent the answers are, and nothing else
    )
    entropy: float | None = None  # no reader gets below


def certain(shares):
    """Marks of answers that the text decides, where `shares` are their frequencies (any scale)."""
    total = sum(shares)
    nats = -sum(share / total * log(share / total) for share in shares if share > 0)
    return Marks(max(shares) / total, 1.0, nats, 0.0)


def uniform(answers):
    """Marks of answers that the text decides, all as frequent."""
    return Marks(1 / answers, 1.0, log(answers), 0.0)


class Task(ABC):
    """Draws batches on the CPU from a torch.Generator, on which alone they depend.

    vocabulary  ids that tokens have
    length      tokens of a sequence; the most, where lengths vary
    d_out       scores that a model gives at a position; None: one for each id of the vocabulary
    holds_out   what validation has that training never sees, in words; empty: nothing, sequences are drawn anew
    """

    vocabulary: int
    length: int
    d_out = None
    holds_out = ""

    @abstractmethod
    def batch(self, generator, size):
        """Inputs and targets of `size` sequences for training.

        Inputs are tokens (b, t), or a tuple of two such. Targets are (b, t) or (b, t, outputs):
        classes, where -100 marks a place without an answer, or real numbers, where NaN does.
        """

    @abstractmethod
    def marks(self) -> Marks:
        """Chance, ceiling and entropies of the answers of a batch."""

    def validation(self, size, seed=0):
        """Inputs and targets that every model is measured on, the same for the same `size` and
        `seed`.
        """
        return self.batch(torch.Generator().manual_seed(10**6 + seed), size)


def accuracy(logits, targets):
    """Share of targets whose highest-scoring class is right; logits as in training.cross_entropy."""
    right = logits.reshape(*targets.shape, -1).argmax(-1) == targets
    return right[targets != -100].float().mean().item()


@dataclass(frozen=True)
class Few(Task):
    """A task of which only `samples` sequences exist, drawn once from `seed`: what can be learnt of
    few examples.

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
