"""Attention masks as predicates on batch, head, query and key.

A mask defines `allows(b, h, q, k)`, which takes index tensors that broadcast and returns booleans,
True where query q may attend to key k. The other methods use it. `&` and `|` combine masks. Sparse
masks are in sparse_masks.py.
"""

import torch

from lab.models.registry import Seam


class Mask(Seam, kind="none"):
    """Base class of masks, which override `allows`. In kind "none", all positions are visible."""

    causal = False  # True if no query sees a later key
    per_head = False  # True if heads have different masks

    def allows(self, b, h, q, k):
        return torch.ones_like(q + k, dtype=torch.bool)

    def __and__(self, other):
        return Both(self, other)

    def __or__(self, other):
        return Either(self, other)

    def dense(self, q_len, k_len, *, batch=1, heads=1, device=None):
        """The mask as booleans (batch, heads, q, k), True where attended.

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
        """Booleans (batch, q, k), True where q can depend on k through `layers` layers."""
        return reachable([self.dense(n, n, **sizes)] * layers)


class Causal(Mask, kind="causal"):
    """No query sees a later key (chapter §1.1.6)."""

    causal = True

    def allows(self, b, h, q, k):
        return k <= q


class Window(Mask, kind="window"):
    """Causal sliding window: the last `size` positions, including the query's own."""

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

    `layers` is a list of the masks (b, h, q, k) of all layers, in order. A position reads the keys
    that any of its heads sees and, through the residual connection, itself.
    """
    eye = torch.eye(layers[0].shape[-1], device=layers[0].device)
    found = eye.expand(len(layers[0]), -1, -1)
    for seen in layers:
        found = ((seen.any(1) + eye).clamp(max=1) @ found).clamp(max=1)
    return found > 0


class Visibility:
    """Masks and biases of one forward pass. Each is built once, because layers share them.

    The queries are the last q_len of k_len positions. `batch_mask` is an additional Mask for this
    batch: a query attends to a key if both masks allow it.
    """

    def __init__(self, mask, q_len, k_len, *, batch, device, batch_mask=None):
        self.mask = mask if batch_mask is None else mask & batch_mask
        self.batch_mask = batch_mask
        self.batch = 1 if batch_mask is None else batch
        self.q_len = q_len
        self.k_len = k_len
        self.device = device
        self.biases = {}  # {position encoding: bias}
        self.masks = {}  # {number of heads: dense mask}

    def dense(self, heads):
        """The mask as booleans (b or 1, h or 1, q, k), for a layer with this number of heads."""
        heads = heads if self.mask.per_head else 1
        if heads not in self.masks:
            sizes = {"batch": self.batch, "heads": heads, "device": self.device}
            self.masks[heads] = self.mask.dense(self.q_len, self.k_len, **sizes)
        return self.masks[heads]
