"""The interface of tasks: training batches, validation data, and accuracy."""

from abc import ABC, abstractmethod

import torch


class Task(ABC):
    """Base class of tasks. Batches are on the CPU and depend only on the torch.Generator passed in.

    vocabulary  number of token ids
    length      number of tokens per sequence, or the maximum if lengths vary
    d_out       number of logits per position; None means `vocabulary`
    """

    vocabulary: int
    length: int
    d_out = None

    @abstractmethod
    def batch(self, generator, size):
        """Training inputs and targets of `size` sequences.

        Inputs are tokens (b, t), or a tuple of two such tensors. Targets have shape (b, t) or
        (b, t, outputs). They are classes, with -100 for no answer, or real numbers, with NaN for no
        answer.
        """

    def validation(self, size, seed=0):
        """Validation inputs and targets, as in `batch`; the same for the same `size` and `seed`."""
        return self.batch(torch.Generator().manual_seed(10**6 + seed), size)


def accuracy(logits, targets):
    """Share of correct argmax predictions, over the targets that are not -100.

    Shapes are as in training.cross_entropy. Returns NaN if all logits of some answer are NaN, since
    argmax would return class 0 for it.
    """
    scores = logits.reshape(*targets.shape, -1)[targets != -100]  # (answers, classes)
    right = scores.argmax(-1) == targets[targets != -100]
    return right.float().masked_fill(scores.isnan().all(-1), torch.nan).mean().item()
