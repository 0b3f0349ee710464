"""Masks as predicates on batch, head, query and key.

Dense tensors, numbers of pairs and reach all derive from `allows(b, h, q, k)`, which takes
broadcastable index tensors and returns booleans. `&` and `|` combine masks. Sparse patterns are in
sparse_masks.py.
"""

import torch

from lab.models.registry import Seam


class Mask(Seam, kind="none"):
    """Every position sees every other; a kind overrides `allows`."""

    causal = False  # True if no query sees a later key
    per_head = False  # True if heads have different masks

    def allows(self, b, h, q, k):
        return torch.ones_like(q + k, dtype=torch.bool)

    def __and__(self, other):
        return Both(self, other)

    def __or__(self, other):
        return Either(self, other)

    def dense(self, q_len, k_len, *, batch=1, heads=1, device=None):
        """Booleans (batch, heads, q, k), True where attended.

        The queries are the last q_len of k_len positions.
        """
        t = [torch.arange(n, device=device) for n in (batch, heads, k_len)]
        b = t[0][:, None, None, None]
        h = t[1][:, None, None]
        q = t[2][k_len - q_len :, None]
        return self.allows(b, h, q, t[2]).expand(batch, heads, q_len, k_len)

    def edges(self, n, **sizes):
        """Number of attended (query, key) pairs over n positions."""
        return int(self.dense(n, n, **sizes).sum())

    def reach(self, n, layers, **sizes):
        """Booleans (batch, q, k), True where `layers` layers let the query depend on the key."""
        return reachable([self.dense(n, n, **sizes)] * layers)


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


class Both(Mask):
    def __init__(self, left, right):
        self.left = left
        self.right = right
        self.per_head = left.per_head or right.per_head
        self.causal = left.causal or right.causal

    def allows(self, b, h, q, k):
        return self.left.allows(b, h, q, k) & self.right.allows(b, h, q, k)


class Either(Mask):
    def __init__(self, left, right):
        self.left = left
        self.right = right
        self.per_head = left.per_head or right.per_head
        self.causal = left.causal and right.causal

    def allows(self, b, h, q, k):
        return self.left.allows(b, h, q, k) | self.right.allows(b, h, q, k)


def reachable(layers):
    """Booleans (b, q, k), True where the query's final state can depend on the key's input.

    `layers` are the masks (b, h, q, k) of the layers, in order. Residual connections keep a
    position's own state; a layer combines what its heads see.
    """
    eye = torch.eye(layers[0].shape[-1], device=layers[0].device)
    found = eye.expand(len(layers[0]), -1, -1)
    for seen in layers:
        found = ((seen.any(1) + eye).clamp(max=1) @ found).clamp(max=1)
    return found > 0


class Visibility:
    """What the queries of one forward pass may see. Layers share it, so masks are built once.

    Queries are the last q_len of k_len positions. `batch_mask` is a Mask for this batch only: a
    pair is attended if both it and `mask` allow it.
    """

    def __init__(self, mask, q_len, k_len, *, batch, device, batch_mask=None):
        self.mask = mask if batch_mask is None else mask & batch_mask
        self.batch_mask = batch_mask
        self.batch = 1 if batch_mask is None else batch
        self.q_len = q_len
        self.k_len = k_len
        self.device = device
        self.biases = {}  # by position encoding
        self.masks = {}  # by number of heads

    def dense(self, heads):
        """The mask as booleans (b or 1, h or 1, q, k)."""
        heads = heads if self.mask.per_head else 1
        if heads not in self.masks:
            sizes = {"batch": self.batch, "heads": heads, "device": self.device}
            self.masks[heads] = self.mask.dense(self.q_len, self.k_len, **sizes)
        return self.masks[heads]
