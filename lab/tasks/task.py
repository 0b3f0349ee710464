"""The interface of a task: batches, reference scores, and held-out data."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import log

import torch


@dataclass(frozen=True)
class Marks:
    """Reference values for a score on a task; None if unknown.

    Accuracies are shares of correct answers, entropies are nats per answer. If targets are real
    numbers, chance and ceiling are shares of their variance (series.explained) and there are no
    entropies.
    """

    chance: float | None = None  # accuracy of always giving the most frequent answer
    ceiling: float | None = None  # best possible accuracy
    unigram_entropy: float | None = None  # loss of predicting the frequencies of the answers
    entropy: float | None = None  # lowest possible loss


def certain(shares):
    """Marks of answers determined by the text; `shares` are their frequencies, in any scale."""
    total = sum(shares)
    nats = -sum(share / total * log(share / total) for share in shares if share > 0)
    return Marks(max(shares) / total, 1.0, nats, 0.0)


def uniform(answers):
    """Marks of answers determined by the text, all equally frequent."""
    return Marks(1 / answers, 1.0, log(answers), 0.0)


class Task(ABC):
    """Draws batches on the CPU; they depend on the given torch.Generator alone.

    vocabulary  number of token ids
    length      tokens per sequence; the maximum, if lengths vary
    d_out       scores per position; None: one per token id
    holds_out   description of the data that only validation contains; empty if nothing is held out
                and validation draws new sequences
    """

    vocabulary: int
    length: int
    d_out = None
    holds_out = ""

    @abstractmethod
    def batch(self, generator, size):
        """Inputs and targets of `size` sequences for training.

        Inputs are tokens (b, t), or a tuple of two such tensors. Targets are (b, t) or (b, t,
        outputs): classes, with -100 where there is no answer, or real numbers, with NaN there.
        """

    @abstractmethod
    def marks(self) -> Marks:
        """Chance, ceiling and entropies of the answers of a batch."""

    def validation(self, size, seed=0):
        """Inputs and targets for evaluation, equal for equal `size` and `seed`."""
        return self.batch(torch.Generator().manual_seed(10**6 + seed), size)


def accuracy(logits, targets):
    """Share of correct argmax predictions; logits as in training.cross_entropy, -100 ignored."""
    right = logits.reshape(*targets.shape, -1).argmax(-1) == targets
    return right[targets != -100].float().mean().item()
