"""Masks as predicates on batch, head, query and key.

Dense tensors, numbers of pairs and reach all derive from `allows(b, h, q, k)`, which takes
broadcastable index tensors and returns booleans. `&` and `|` combine masks. Sparse patterns are in
sparse_masks.py.
"""

import torch

from lab.models.registry import POSITION_DEPENDENCE, Seam


class Mask(Seam):
    """Base class: every position sees every other."""

    causal = False  # True if no query sees a later key
    position_dependence = "place"  # a word of registry.POSITION_DEPENDENCE
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


class Everything(Mask, kind="none"):
    """Every position sees every other."""

    position_dependence = "order"


class Causal(Mask, kind="causal"):
    """No position sees a later one (chapter §1.1.6)."""

    causal = True
    position_dependence = "order"

    def allows(self, b, h, q, k):
        return k <= q


class Window(Mask, kind="window"):
    """The last `size` positions, itself included; causal."""

    causal = True
    position_dependence = "distance"

    def __init__(self, *, size):
        self.size = size

    def allows(self, b, h, q, k):
        return (k <= q) & (q - k < self.size)


class Padding(Mask):
    """Hides padded keys: `padding_mask` (batch, k) is True at tokens, False at padding."""

    def __init__(self, padding_mask):
        self.padding_mask = padding_mask

    def allows(self, b, h, q, k):
        return self.padding_mask[b, k].expand(torch.broadcast_shapes(b.shape, q.shape, k.shape))


class Both(Mask):
    def __init__(self, left, right):
        self.left = left
        self.right = right
        self.per_head = left.per_head or right.per_head
        self.causal = left.causal or right.causal
        self.position_dependence = strongest_dependence(left, right)

    def allows(self, b, h, q, k):
        return self.left.allows(b, h, q, k) & self.right.allows(b, h, q, k)


class Either(Mask):
    def __init__(self, left, right):
        self.left = left
        self.right = right
        self.per_head = left.per_head or right.per_head
        self.causal = left.causal and right.causal
        self.position_dependence = strongest_dependence(left, right)

    def allows(self, b, h, q, k):
        return self.left.allows(b, h, q, k) | self.right.allows(b, h, q, k)


def strongest_dependence(*masks):
    """The strongest position dependence among the masks: a word of POSITION_DEPENDENCE."""
    return max((mask.position_dependence for mask in masks), key=POSITION_DEPENDENCE.index)


def real_tokens(padding_mask, shape):
    """`padding_mask` as booleans (b, k), True at tokens; integers 0 and 1 are accepted.

    Raises ValueError for another shape, for floating point or complex numbers and for other values.
    """
    if tuple(padding_mask.shape) != tuple(shape):
        raise ValueError(f"padding_mask must be {tuple(shape)}, not {tuple(padding_mask.shape)}")
    if padding_mask.is_floating_point() or padding_mask.is_complex():
        raise ValueError(f"padding_mask must be booleans or integers, not {padding_mask.dtype}")
    if padding_mask.dtype != torch.bool and ((padding_mask != 0) & (padding_mask != 1)).any():
        raise ValueError("padding_mask has values besides 0 (padding) and 1 (token)")
    return padding_mask.bool()


def padding_before_tokens(padding_mask):
    """Whether in any text padding precedes a token, and whether it lies between tokens: two bools.

    `padding_mask` (b, k) is True at tokens.
    """
    follows = padding_mask[:, 1:] & ~padding_mask[:, :-1]
    between = follows & (padding_mask.cumsum(1) > 0)[:, :-1]
    return bool(follows.any()), bool(between.any())


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
