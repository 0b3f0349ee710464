"""Sparse masks by distance, by head and by the structure of the input (§1.6.1, exercise 1.13).

Masks that depend only on positions and heads are kinds of Mask. Masks that depend on the input
(speakers, turns, links, trees) are built for each batch and passed to the model:
`model(tokens, mask=SameSpeaker(speaker))`. Shape letters: b batch, h head, q query, k key, t token.
"""

import torch

from lab.models.masks import Causal, Mask


class Band(Mask, kind="band"):
    """Not causal: keys less than `size` positions away, on both sides."""

    def __init__(self, *, size):
        self.size = size

    def allows(self, b, h, q, k):
        return (q - k).abs() < self.size


class Dilated(Mask, kind="dilated"):
    """Causal: every `dilation`-th position, counted back from the query. van den Oord 2016.

    With `size`, only the nearest `size` of them, including the query's own.
    """

    causal = True

    def __init__(self, *, dilation, size=None):
        self.dilation = dilation
        self.size = size

    def allows(self, b, h, q, k):
        near = q - k < self.dilation * self.size if self.size else k <= q
        return (k <= q) & near & ((q - k) % self.dilation == 0)


class Strided(Mask, kind="strided"):
    """Causal: the last `stride` positions and every `stride`-th earlier one. Child 2019.

    With stride √n there are O(n√n) pairs, and two layers connect a query to all earlier positions.
    """

    causal = True

    def __init__(self, *, stride):
        self.stride = stride

    def allows(self, b, h, q, k):
        return (k <= q) & ((q - k < self.stride) | ((q - k) % self.stride == 0))


class Periodic(Mask, kind="periodic"):
    """Causal: keys k <= q with q - k + lead divisible by `period`, for query q.

    With lead 1, these keys come one position after q - period, q - 2 period and so on.
    """

    causal = True

    def __init__(self, *, period, lead=0):
        self.period = period
        self.lead = lead

    def allows(self, b, h, q, k):
        return (k <= q) & ((q - k + self.lead) % self.period == 0)


class Global(Mask, kind="global"):
    """The first `tokens` positions see all positions and are seen by all. Beltagy 2020."""

    def __init__(self, *, tokens=1):
        self.tokens = tokens

    def allows(self, b, h, q, k):
        return (q < self.tokens) | (k < self.tokens)


class Random(Mask, kind="random"):
    """About `links` random keys per query, determined by `seed`.

    The keys are at positions up to the query's or, if `length` is given, below `length`.
    """

    def __init__(self, *, links, seed=0, length=None):
        self.links = links
        self.seed = seed
        self.length = length
        self.causal = length is None

    def allows(self, b, h, q, k):
        number = (q * 2654435761 + k * 40503 + self.seed * 97531 + 12345) & 0x7FFFFFFF
        for _ in range(2):  # hash the pair: mix the bits of its number
            number = ((number ^ (number >> 15)) * 1103515245 + 12345) & 0x7FFFFFFF
        number = (number ^ (number >> 13)) & 0xFFFFFF
        if self.length:
            return number * self.length < self.links * 2**24
        return (k <= q) & (number * (q + 1) < self.links * 2**24)


class Composed(Mask):
    """Base class of kinds that combine other masks."""

    def __init__(self, mask):
        self.mask = mask
        self.causal = mask.causal
        self.per_head = mask.per_head

    def allows(self, b, h, q, k):
        return self.mask.allows(b, h, q, k)


class Longformer(Composed, kind="longformer"):
    """`Band` | `Global`; causal by default. Beltagy 2020."""

    def __init__(self, *, size, tokens=1, causal=True):
        mask = Band(size=size) | Global(tokens=tokens)
        super().__init__(mask & Causal() if causal else mask)


class BigBird(Composed, kind="bigbird"):
    """A `Band`, `Global` tokens and `Random` keys. Zaheer 2020.

    Without `length` it is causal. With `length` it is not: random keys come from all `length`
    positions.
    """

    def __init__(self, *, size, tokens=1, links=1, seed=0, length=None):
        mask = (
            Band(size=size) | Global(tokens=tokens) | Random(links=links, seed=seed, length=length)
        )
        super().__init__(mask if length else mask & Causal())


class ByHead(Mask, kind="by-head"):
    """A mask per head: head i uses entry i modulo the length of `masks`, a list of choices.

    For example, dilations 1, 2, 4, … let the heads of a layer see different scales.
    """

    per_head = True

    def __init__(self, *, masks):
        self.masks = [Mask.build(choice) for choice in masks]
        self.causal = all(mask.causal for mask in self.masks)

    def allows(self, b, h, q, k):
        turn = h % len(self.masks)
        found = False
        for i, mask in enumerate(self.masks):
            found = found | ((turn == i) & mask.allows(b, h, q, k))
        return found


# Masks built from the input of a batch


class SameSpeaker(Mask):
    """Causal: tokens of the query's speaker. `speaker` (b, t) has one integer per token."""

    causal = True

    def __init__(self, speaker):
        self.speaker = speaker

    def allows(self, b, h, q, k):
        return (k <= q) & (self.speaker[b, q] == self.speaker[b, k])


class Marked(Mask):
    """Causal: marked keys, such as the first token of each turn. `marked` (b, t): bool."""

    causal = True

    def __init__(self, marked):
        self.marked = marked

    def allows(self, b, h, q, k):
        return (k <= q) & self.marked[b, k]


class Linked(Mask):
    """One key per query, such as the definition of a name: `to` (b, t) is its index, or -1."""

    def __init__(self, to):
        self.to = to

    def allows(self, b, h, q, k):
        return self.to[b, q] == k


class Seen(Mask):
    """A mask given as booleans `table` (b, h, q, k), with b or h = 1 to broadcast."""

    def __init__(self, table):
        self.table = table
        self.per_head = table.shape[1] > 1

    def allows(self, b, h, q, k):
        batch, heads = self.table.shape[:2]
        return self.table[b if batch > 1 else b * 0, h if heads > 1 else h * 0, q, k]


class Tree(Seen):
    """Ancestors in a syntax tree: `parent` (b, t) is the index of each parent, -1 at a root."""

    def __init__(self, parent):
        at = torch.arange(parent.shape[1], device=parent.device)
        above = torch.zeros(*parent.shape, len(at), dtype=torch.bool, device=parent.device)
        up = parent
        while (up >= 0).any():
            above |= up[..., None] == at
            up = parent.gather(1, up.clamp(min=0)).where(up >= 0, -1)
        super().__init__(above[:, None])


class Filled(Mask):
    """Exactly `size` keys per query: those of `mask`, nearest first, then the nearest others.

    If causal, queries with fewer than `size` keys up to their own position see all of these.
    """

    def __init__(self, mask, size, *, causal=True):
        self.mask = mask
        self.size = size
        self.causal = causal
        self.per_head = mask.per_head

    def dense(self, q_len, k_len, *, batch=1, heads=1, device=None):
        preferred = self.mask.dense(k_len, k_len, batch=batch, heads=heads, device=device)
        k = torch.arange(k_len, device=device)
        q = k[:, None]
        near = (k < q).int() - 2 * (q - k).abs()  # at equal distances, prefer the earlier key
        if self.causal:
            near = near.masked_fill(k > q, -(2**31))
        best = (near + 2 * k_len * preferred).topk(min(self.size, k_len), -1).indices
        table = torch.zeros_like(preferred).scatter_(-1, best, True)
        return (table & (k <= q) if self.causal else table)[:, :, k_len - q_len :]

    def allows(self, b, h, q, k):
        n = int(max(q.max(), k.max())) + 1
        heads = int(h.max()) + 1
        return self.dense(n, n, batch=int(b.max()) + 1, heads=heads, device=k.device)[b, h, q, k]
