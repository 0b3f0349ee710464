"""Padding: sequences of different lengths in one batch, padded on the right.

A mask hides padding from attention. Parts that average over tokens (batch norm, load-balancing
losses) get the padding mask for the duration of a forward pass.
"""

from contextlib import contextmanager

import torch

from lab.models.masks import Mask


class Padding(Mask):
    """Mask that hides padded keys.

    `padding_mask` (b, k) is True or 1 at tokens, False or 0 at padding. `beside` is an additional
    mask; a query attends to a key if both masks allow it. Raises ValueError for other values in
    `padding_mask`, and for padding before a token.
    """

    def __init__(self, padding_mask, beside=None):
        given = padding_mask.dtype
        if given.is_floating_point or given.is_complex:
            raise ValueError(f"padding_mask must be booleans or integers, not {given}")
        real = padding_mask.bool()
        if not torch.equal(real.to(given), padding_mask):
            raise ValueError("padding_mask must contain only 0 (padding) and 1 (token)")
        if (real[:, 1:] & ~real[:, :-1]).any():
            raise ValueError("padding must be on the right, after all tokens")
        self.real = real
        self.beside = beside
        self.per_head = beside is not None and beside.per_head

    def allows(self, b, h, q, k):
        seen = self.real[b, k].expand(torch.broadcast_shapes(b.shape, q.shape, k.shape))
        return seen if self.beside is None else seen & self.beside.allows(b, h, q, k)


class SeesPadding:
    """Base class of parts that average over tokens. `padding_mask` (b, k) is set during a call.

    `of_call` lists attributes that `forward` sets for use in a loss, such as `balance`. They are
    None in copies of the module.
    """

    of_call = ()
    padding_mask = None  # None if there is no padding

    def tokens(self, per_token):
        """Select the n tokens of `per_token` (b, t, ...) that are not padding, (n, ...).

        Returns `per_token` unchanged if there is no padding. Raises ValueError if there is padding
        and this part is an expert of a mixture, whose input has no batch axis.
        """
        if self.padding_mask is None:
            return per_token
        if per_token.ndim < 3:
            raise ValueError(
                f"{type(self).__name__} does not support padding when used as an expert"
            )
        return per_token[self.padding_mask[:, -per_token.shape[1] :]]

    def __getstate__(self):
        return self.__dict__ | dict.fromkeys(self.of_call)


@contextmanager
def known_padding(model, padding, shape):
    """Set `padding_mask` in all SeesPadding parts of the model until the block ends.

    Raises ValueError if the mask of `padding` does not have this shape, (b, k).
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
