"""What a task is: what it asks, what a score on it is held against, and what it keeps from training."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import log

import torch


@dataclass(frozen=True)
class Marks:
    """What a score on a task's answers is held against; None where it is not known.

    Accuracies are shares of right answers, entropies nats an answer. Where targets are real numbers, chance and ceiling
    are shares of their variance (series.explained), and there are no entropies.
    """

    chance: float | None = None  # of who always gives the commonest answer
    ceiling: float | None = None  # no reader gets more right
    unigram_entropy: float | None = None  # of who knows how frequent the answers are, and nothing else
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

        Inputs are tokens (b, t), or a tuple of two such. Targets are (b, t) or (b, t, outputs): classes, where -100
        marks a place without an answer, or real numbers, where NaN does.
        """

    @abstractmethod
    def marks(self) -> Marks:
        """Chance, ceiling and entropies of the answers of a batch."""

    def validation(self, size, seed=0):
        """Inputs and targets that every model is measured on, the same for the same `size` and `seed`."""
        return self.batch(torch.Generator().manual_seed(10**6 + seed), size)
