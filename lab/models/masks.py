"""Masks as predicates: who may look at whom. Everything else (tensor, picture, edge count) derives from one question.

`allows(b, h, q, k)` is asked with broadcastable index tensors of batch, head, query and key and answers with booleans.
`&` and `|` compose masks.
"""

import torch

from lab.models.seams import Seam


class Mask(Seam):
    causal = False  # True where no query is allowed a later key

    def allows(self, b, h, q, k):
        return torch.ones_like(q + k, dtype=torch.bool)

    def __and__(self, other):
        return Both(self, other)

    def __or__(self, other):
        return Either(self, other)

    def dense(self, q_len, k_len, *, batch=1, heads=1, device=None):
        """Booleans (batch, heads, q, k), True where attended; the queries are the last q_len of k_len positions."""
        t = [torch.arange(n, device=device) for n in (batch, heads, k_len)]
        b, h, q, k = t[0][:, None, None, None], t[1][:, None, None], t[2][k_len - q_len :, None], t[2]
        return self.allows(b, h, q, k).expand(batch, heads, q_len, k_len)

    def edges(self, n, **sizes):
        """Number of attended (query, key) pairs over n positions."""
        return int(self.dense(n, n, **sizes).sum())


class Everything(Mask, kind="none"):
    """Every position sees every other."""


class Causal(Mask, kind="causal"):
    """No position sees a later one (chapter §1.1.6)."""

    causal = True

    def allows(self, b, h, q, k):
        return k <= q


class Window(Mask, kind="window"):
    """The last `size` positions, itself included; causal."""

    causal = True

    def __init__(self, *, size):
        self.size = size

    def allows(self, b, h, q, k):
        return (k <= q) & (q - k < self.size)


class Padding(Mask):
    """Keys that are real: `real` is (batch, k), True where a token is no padding."""

    def __init__(self, real):
        self.real = real

    def allows(self, b, h, q, k):
        return self.real[b, k].expand(torch.broadcast_shapes(b.shape, q.shape, k.shape))


class Both(Mask):
    def __init__(self, left, right):
        self.left, self.right = left, right
        self.causal = left.causal or right.causal

    def allows(self, b, h, q, k):
        return self.left.allows(b, h, q, k) & self.right.allows(b, h, q, k)


class Either(Mask):
    def __init__(self, left, right):
        self.left, self.right = left, right
        self.causal = left.causal and right.causal

    def allows(self, b, h, q, k):
        return self.left.allows(b, h, q, k) | self.right.allows(b, h, q, k)
