"""Attention that looks at fewer keys: a window, hashed buckets, or keys projected to fewer (chapter §1.6.1, §1.6.3).

As in scores.py: q (b, h, q, d), k and v (b, g, k, d) to (b, h, q, d).
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from lab.models.masks import Window
from lab.models.scores import Score, mix, repeated
from lab.models.sparse import Band


def windowed(q, k, v, size):
    """Exact causal attention to the last `size` keys in n · size steps: each block of queries sees two of keys.

    block i of queries    keys   [ block i - 1 | block i ]      of these the last `size` up to the query
    """
    b, _, n, _ = q.shape
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))  # (b h, n, d)
    if n % size:
        q, k, v = (F.pad(x, (0, 0, 0, -n % size)) for x in (q, k, v))
    mixed = F.scaled_dot_product_attention(*(x[:, None, :size] for x in (q, k, v)), is_causal=True)
    if n > size:
        near = Window(size=size).dense(size, 2 * size, device=q.device)[0]  # the queries are the last
        keys, values = (x.unfold(1, 2 * size, size).mT for x in (k, v))  # (b h, c - 1, 2 size, d), nothing copied
        rest = F.scaled_dot_product_attention(q[:, size:].unflatten(1, (-1, size)), keys, values, near)
        mixed = torch.cat([mixed, rest], 1)
    return mixed.flatten(1, 2)[:, :n].unflatten(0, (b, -1))


def block_sparse(q, k, v, blocks, size):
    """Causal attention of each block of `size` queries to the key blocks of its row of `blocks` (c, m), -1 for none.

    `size` divides n, and c = n / size.
    """
    c, n = len(blocks), q.shape[2]
    at = torch.arange(n, device=q.device).view(c, size)
    place = at[blocks.clamp(min=0)].flatten(1)  # (c, m size): where the keys stand
    given = (blocks >= 0).repeat_interleave(size, 1)
    seen = (place[:, None] <= at[..., None]) & given[:, None]  # (c, size, m size)
    keys, values = (x.unflatten(2, (c, size))[:, :, blocks.clamp(min=0)].flatten(3, 4) for x in (k, v))
    q = q.unflatten(2, (c, size))
    mixed = F.scaled_dot_product_attention(q.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1), seen)
    return mixed.unflatten(0, q.shape[:2]).flatten(2, 3)


def bigbird_blocks(count, *, links=1, seed=0):
    """Key blocks of `count` blocks of queries: itself, the one before, the first, and `links` random others earlier."""
    generator, rows = torch.Generator().manual_seed(seed), torch.full((count, 3 + links), -1)
    for i in range(count):
        near = sorted({i, max(i - 1, 0), 0})
        rest = 1 + torch.randperm(max(i - 2, 0), generator=generator)[:links]  # of 1..i - 2
        row = torch.cat([torch.tensor(near), rest])
        rows[i, : len(row)] = row
    return rows


class Local(Score, kind="local"):
    """Softmax over keys nearer than `size`: a causal model in n · size steps, any other by a mask. Beltagy 2020."""

    by_distance = True

    def __init__(self, config, *, size):
        super().__init__(config)
        self.size = size

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        n, heads = k.shape[2], q.shape[1]
        if causal and mask is None and bias is None and q.shape[2] == n:
            return windowed(q, repeated(k, heads), repeated(v, heads), self.size)
        near = (Window if causal else Band)(size=self.size).dense(q.shape[2], n, device=q.device)
        return mix(q, k, v, near if mask is None else near & mask, bias)


class Lsh(Score, kind="lsh"):
    """Softmax over the keys that fall into the query's bucket in any of `rounds` random rotations; 0 where none does.

    What Reformer's sorted chunks compute where no bucket is cut; here by a mask, `sorted_lsh` is the cheap way.
    Queries and keys stay apart. Kitaev 2020.
    """

    def __init__(self, config, *, buckets=4, rounds=2):
        super().__init__(config)
        if buckets % 2:
            raise ValueError(f"buckets come in opposite pairs: give an even number, not {buckets}")
        self.register_buffer("rotations", torch.randn(rounds, config.d_head, buckets // 2))

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        hashed_q, hashed_k = hashes(q, self.rotations), hashes(repeated(k, q.shape[1]), self.rotations)
        same = (hashed_q[..., :, None] == hashed_k[..., None, :]).any(0)  # (b, h, q, k)
        same = same.tril() if causal else same
        return mix(q, k, v, same if mask is None else same & mask, bias)


def hashes(x, rotations):
    """Buckets of x (b, h, n, d) in each round: the nearest of random directions and their opposites, (r, b, h, n)."""
    turned = torch.einsum("bhnd,rdc->rbhnc", x, rotations)
    return torch.cat([turned, -turned], -1).argmax(-1)


def sorted_lsh(q, k, v, rotations, chunk):
    """LSH attention in n log n steps: sorted by bucket, each chunk sees itself and the one before. Kitaev 2020 §2.

    Causal. Buckets longer than a chunk are cut; rounds are joined by their softmax sums, a pair that met in m of them
    counting 1/m in each. `chunk` divides n.
    """
    n, d = q.shape[2:]
    at, mixed, logs = torch.arange(n, device=q.device), [], []
    buckets = [hashes(x, rotations) for x in (q, k)]  # (r, b, h, n)
    orders = [(x * n + at).argsort(-1) for x in buckets]
    labels = [torch.stack([x, o.argsort(-1) // chunk]) for x, o in zip(buckets, orders, strict=True)]  # bucket, chunk
    for own, (order_q, order_k) in enumerate(zip(*orders, strict=True)):
        sq, sk, sv = (
            x.take_along_dim(o[..., None], 2).unflatten(2, (-1, chunk))
            for x, o in ((q, order_q), (k, order_k), (v, order_k))
        )
        query, key = (  # buckets and chunks in every round, (2, r, b, h, c, chunk)
            x.take_along_dim(o[None, None], -1).unflatten(-1, (-1, chunk))
            for x, o in zip(labels, (order_q, order_k), strict=True)
        )
        place, place_k = (o.unflatten(-1, (-1, chunk)) for o in (order_q, order_k))
        sk, sv = (torch.cat([x.roll(1, 2), x], 3) for x in (sk, sv))
        key, place_k = (torch.cat([x.roll(1, -2), x], -1) for x in (key, place_k))
        met = query[0, ..., None] == key[0, ..., None, :]  # (r, b, h, c, chunk, 2 chunk)
        met &= (query[1, ..., None] - key[1, ..., None, :]) % (n // chunk) <= 1
        same = met[own] & (place_k[..., None, :] <= place[..., None])
        scores = (sq @ sk.transpose(-2, -1) / math.sqrt(d)) - met.sum(0).clamp(min=1).to(q.dtype).log()
        scores = scores.masked_fill(~same, -1e9)  # (b, h, c, chunk, 2 chunk)
        log = scores.logsumexp(-1, keepdim=True)
        found = torch.exp(scores - log).where(same, 0) @ sv
        back = order_q.argsort(-1)[..., None]
        mixed.append(found.flatten(2, 3).take_along_dim(back, 2))
        logs.append(log.flatten(2, 3).take_along_dim(back, 2))
    return (torch.stack(mixed) * torch.stack(logs).softmax(0)).sum(0)


class Linformer(Score, kind="linformer"):
    """Softmax over `rank` learned mixtures of the keys of a whole sequence, up to the configured context. Wang 2020.

    A mixture holds keys of all positions, so there is no causal form, no mask and no bias: ValueError for them.
    """

    def __init__(self, config, *, rank):
        super().__init__(config)
        self.keys = nn.Linear(config.context, rank, bias=False)
        self.values = nn.Linear(config.context, rank, bias=False)

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        if causal or mask is not None or bias is not None:
            raise ValueError("linformer mixes all positions: it has no causal form and takes no mask or bias")
        n = k.shape[2]
        if n > self.keys.in_features:
            raise ValueError(f"linformer is trained for {self.keys.in_features} positions, {n} were given")
        k, v = (part.weight[:, :n] @ x for part, x in ((self.keys, k), (self.values, v)))  # (b, g, rank, d)
        return mix(q, k, v)
