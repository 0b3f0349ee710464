"""Padding: texts of different lengths in one batch, filled up behind their last token.

A mask hides padding from attention. Parts that average over tokens (batch norm, losses of a
mixture) are told about it while the model runs.
"""

from contextlib import contextmanager

import torch

from lab.models.masks import Mask


class Padding(Mask):
    """Hides padded keys: `padding_mask` (b, k) is True or 1 at tokens, False or 0 at padding.

    `beside` is a further mask: a pair is attended if both allow it. Raises ValueError for other
    values, and for padding in front of a token.
    """

    def __init__(self, padding_mask, beside=None):
        given = padding_mask.dtype
        if given.is_floating_point or given.is_complex:
            raise ValueError(f"padding_mask must be booleans or integers, not {given}")
        real = padding_mask.bool()
        if not torch.equal(real.to(given), padding_mask):
            raise ValueError("padding_mask has values besides 0 (padding) and 1 (token)")
        if (real[:, 1:] & ~real[:, :-1]).any():
            raise ValueError("padding must stand behind the text, not in front of a token")
        self.real = real
        self.beside = beside
        self.per_head = beside is not None and beside.per_head

    def allows(self, b, h, q, k):
        seen = self.real[b, k].expand(torch.broadcast_shapes(b.shape, q.shape, k.shape))
        return seen if self.beside is None else seen & self.beside.allows(b, h, q, k)


class SeesPadding:
    """Base class of parts that average over tokens: `padding_mask` (b, k) is known in a call.

    `of_call` names attributes that a call sets as inputs of a loss; copies have None there.
    """

    of_call = ()
    padding_mask = None  # None without padding

    def tokens(self, per_token):
        """The rows of `per_token` (b, t, ...) that are not padding, (n, ...).

        Returns `per_token` itself without padding. Raises ValueError for padding inside an expert,
        whose input has no batch axis.
        """
        if self.padding_mask is None:
            return per_token
        if per_token.ndim < 3:
            raise ValueError(f"{type(self).__name__} takes no padding where it is an expert")
        return per_token[self.padding_mask[:, -per_token.shape[1] :]]

    def __getstate__(self):
        return self.__dict__ | dict.fromkeys(self.of_call)


@contextmanager
def known_padding(model, padding, shape):
    """Context in which parts that average over tokens know the Padding of texts of shape (b, k).

    Raises ValueError if the padding has another shape.
    """
    if tuple(padding.real.shape) != tuple(shape):
        raise ValueError(f"padding_mask must be {shape}, not {tuple(padding.real.shape)}")
    parts = [part for part in model.modules() if isinstance(part, SeesPadding)]
    try:
        for part in parts:
            part.padding_mask = padding.real
        yield
    finally:
        for part in parts:
            part.padding_mask = None
