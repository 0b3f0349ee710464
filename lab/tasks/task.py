"""The interface of a task: batches for training, data for validation, and accuracy."""

from abc import ABC, abstractmethod

import torch


class Task(ABC):
    """Draws batches on the CPU; they depend on the given torch.Generator alone.

    vocabulary  number of token ids
    length      tokens per sequence; the maximum, if lengths vary
    d_out       scores per position; None: one per token id
    """

    vocabulary: int
    length: int
    d_out = None

    @abstractmethod
    def batch(self, generator, size):
        """Inputs and targets of `size` sequences for training.

        Inputs are tokens (b, t), or a tuple of two such tensors. Targets are (b, t) or (b, t,
        outputs): classes, with -100 where there is no answer, or real numbers, with NaN there.
        """

    def validation(self, size, seed=0):
        """Inputs and targets for evaluation, equal for equal `size` and `seed`."""
        return self.batch(torch.Generator().manual_seed(10**6 + seed), size)


def accuracy(logits, targets):
    """Share of correct argmax predictions; logits as in training.cross_entropy, -100 ignored.

    NaN where all scores of an answer are NaN: a model that predicts nothing does not predict class 0.
    """
    scores = logits.reshape(*targets.shape, -1)[targets != -100]  # (answers, classes)
    right = scores.argmax(-1) == targets[targets != -100]
    return right.float().masked_fill(scores.isnan().all(-1), torch.nan).mean().item()
