"""Attention kernels: fused, naive, tiled and sparse.

Kernels take q (b, h, q, d) and k, v (b, h, k, d) and return (b, h, q, d). Shape letters: b batch,
h head, g key-value head, q query, k key, n sequence length, d head width. Chapter §1.1.2, §1.1.3,
§1.6.1, §1.6.3.
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from lab import names
from lab.models.masks import Window


def repeat_kv(x, heads):
    """Repeat key-value heads (b, g, k, d) for the query heads that share them: (b, h, k, d)."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def factor(scale, d):
    """The factor on the scores that `scale` names, for head width d.

    rsqrt: 1/√d; none: 1; half: 1/(2√d); inverse: 1/d.

    Raises ValueError for an unknown name.
    """
    root = math.sqrt(d)
    factors = {"rsqrt": 1 / root, "none": 1.0, "half": 1 / (2 * root), "inverse": 1 / d}
    return factors[names.near(scale, factors, "scale")]


def visible(scores, mask, causal):
    """Combine `mask` with a causal mask if `causal`. Returns None if there is no mask."""
    if not causal:
        return mask
    past = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return past if mask is None else mask & past


def naive_attention(q, k, v, *, causal=False, scale=None):
    """softmax(scale · q kᵀ) v, (b, h, q, d), computed with the full weight tensor (b, h, q, k).

    `scale` is 1/√d by default. Raises ValueError for causal attention with unequal numbers of
    queries and keys.
    """
    _require_square(q, k, causal)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = (q * scale) @ k.transpose(-2, -1)  # (b, h, q, k)
    if causal:
        scores = scores.masked_fill(_future(scores, 0, 0), -math.inf)
    return torch.softmax(scores, dim=-1) @ v  # (b, h, q, d)


def tiled_attention(q, k, v, *, block, causal=False):
    """`naive_attention` in tiles of block x block scores, with online softmax (FlashAttention).

    The forward pass stores only block² scores per head at a time. The backward pass recomputes one
    block of queries at a time, so it stores at most block · n weights per head. Raises ValueError
    if block < 1, and as `naive_attention` does.
    """
    _require_square(q, k, causal)
    if block < 1:
        raise ValueError(f"block must be 1 or more, got {block}")
    differentiated = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (q, k, v))
    rows = []
    for start in range(0, q.shape[-2], block):
        inputs = (q[..., start : start + block, :], k, v, start, block, causal)
        if differentiated:
            rows.append(
                checkpoint(_query_block, *inputs, use_reentrant=False, preserve_rng_state=False)
            )
        else:
            rows.append(_query_block(*inputs))
    return torch.cat(rows, dim=-2)  # (b, h, q, d)


KINDS = {
    "naive": naive_attention,
    "tiled": partial(tiled_attention, block=256),
    "fused": F.scaled_dot_product_attention,
}


def attention_call(kind, n, d_head, heads, backward=False, batch=1, device="cpu"):
    """Create q, k and v. Returns a function without arguments that runs the kernel, for timing.

    `kind` is "naive", "tiled" or "fused". With `backward`, the function returns the gradients of q,
    k and v. Raises ValueError for another kind.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind of attention {kind!r}; choose from {sorted(KINDS)}")
    generator = torch.Generator(device).manual_seed(0)
    shape = (batch, heads, n, d_head)
    q, k, v = (
        torch.randn(shape, generator=generator, device=device, requires_grad=backward)
        for _ in range(3)
    )

    def call():
        mixed = KINDS[kind](q, k, v)
        return torch.autograd.grad(mixed, (q, k, v), q.detach()) if backward else mixed

    return call


def run_attention(kind, n, d_head, heads, backward=False, batch=1, device="cpu"):
    """Create q, k and v and run the kernel once, so that peak_memory counts the inputs too."""
    attention_call(kind, n, d_head, heads, backward, batch, device)()


def _query_block(q, k, v, start, block, causal):
    """Attention of a block of queries that begins at `start`, computed key block by key block."""
    q = q / math.sqrt(q.shape[-1])
    top = q.new_full((*q.shape[:-1], 1), -math.inf)  # (b, h, block, 1)
    total = mixed = 0.0
    for at in range(0, start + q.shape[-2] if causal else k.shape[-2], block):
        scores = q @ k[..., at : at + block, :].transpose(-2, -1)  # (b, h, block, block)
        if causal:
            scores = scores.masked_fill(_future(scores, start, at), -math.inf)
        # The maximum cancels in the quotient, so it needs no gradient. It is finite, because every
        # query sees key 0, which is in the first tile.
        new_top = torch.maximum(top, scores.detach().amax(dim=-1, keepdim=True))
        shrink = torch.exp(top - new_top)
        weights = torch.exp(scores - new_top)
        total = total * shrink + weights.sum(dim=-1, keepdim=True)
        mixed = mixed * shrink + weights @ v[..., at : at + block, :]
        top = new_top
    return mixed / total


def _future(scores, first_query, first_key):
    """Booleans (q, k), True where the key comes after the query."""
    query = torch.arange(first_query, first_query + scores.shape[-2], device=scores.device)
    key = torch.arange(first_key, first_key + scores.shape[-1], device=scores.device)
    return key > query[:, None]


def _require_square(q, k, causal):
    if causal and q.shape[-2] != k.shape[-2]:
        raise ValueError(
            f"causal attention needs as many queries as keys, got {q.shape[-2]} and {k.shape[-2]}"
        )


def windowed(q, k, v, size):
    """Exact causal attention to the last `size` keys, in O(n · size) time.

    Blocks have `size` positions. Each block of queries reads two blocks of keys:

    query block i    reads key blocks [ i - 1 | i ] and masks all but each query's last `size` keys
    """
    b, _, n, _ = q.shape
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))  # (b h, n, d)
    if n % size:
        q, k, v = (F.pad(x, (0, 0, 0, -n % size)) for x in (q, k, v))
    mixed = F.scaled_dot_product_attention(*(x[:, None, :size] for x in (q, k, v)), is_causal=True)
    if n > size:
        near = Window(size=size).dense(size, 2 * size, device=q.device)[0]  # queries come last
        # views (b h, c - 1, 2 size, d)
        keys, values = (x.unfold(1, 2 * size, size).mT for x in (k, v))
        rest = F.scaled_dot_product_attention(
            q[:, size:].unflatten(1, (-1, size)), keys, values, near
        )
        mixed = torch.cat([mixed, rest], 1)
    return mixed.flatten(1, 2)[:, :n].unflatten(0, (b, -1))


def block_sparse(q, k, v, blocks, size):
    """Causal attention of each block of `size` queries to the key blocks listed in `blocks`.

    `blocks` (c, m) has one row of key block indices per query block, padded with -1, where c is
    n / size. `size` must divide n.
    """
    c = len(blocks)
    n = q.shape[2]
    at = torch.arange(n, device=q.device).view(c, size)
    place = at[blocks.clamp(min=0)].flatten(1)  # (c, m size): positions of the keys
    given = (blocks >= 0).repeat_interleave(size, 1)
    seen = (place[:, None] <= at[..., None]) & given[:, None]  # (c, size, m size)
    keys, values = (
        x.unflatten(2, (c, size))[:, :, blocks.clamp(min=0)].flatten(3, 4) for x in (k, v)
    )
    q = q.unflatten(2, (c, size))
    mixed = F.scaled_dot_product_attention(
        q.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1), seen
    )
    return mixed.unflatten(0, q.shape[:2]).flatten(2, 3)


def bigbird_blocks(count, *, links=1, seed=0):
    """The argument `blocks` of `block_sparse` for BigBird, (count, 3 + links). Zaheer 2020.

    Each query block reads itself, the block before it, the first block, and `links` random earlier
    blocks.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = torch.full((count, 3 + links), -1)
    for i in range(count):
        near = sorted({i, max(i - 1, 0), 0})
        rest = 1 + torch.randperm(max(i - 2, 0), generator=generator)[:links]  # of 1..i - 2
        row = torch.cat([torch.tensor(near), rest])
        rows[i, : len(row)] = row
    return rows


def hashes(x, rotations):
    """LSH buckets (r, b, h, n) of x (b, h, n, d), given directions `rotations` (r, d, c).

    There are 2c directions in each of r rounds, ±`rotations`. The bucket is the index of the
    direction with the largest dot product with x.
    """
    turned = torch.einsum("bhnd,rdc->rbhnc", x, rotations)
    return torch.cat([turned, -turned], -1).argmax(-1)


def sorted_lsh(q, k, v, rotations, chunk):
    """LSH attention with a causal mask, in O(n log n) time. Kitaev 2020 §2.

    In each round, queries and keys are sorted by bucket and split into chunks. A chunk of queries
    reads the keys of the same chunk and of the one before. Pairs are lost if a bucket is longer
    than a chunk, or if it is at different places among the sorted queries and the sorted keys.
    Rounds are weighted by their softmax denominators; a pair that occurs in m rounds counts
    1/m in each. `chunk` must divide n.

    Despite the mask, later tokens can change earlier outputs: they move the borders of the sorted
    chunks.
    """
    n, d = q.shape[2:]
    at = torch.arange(n, device=q.device)
    mixed = []
    logs = []
    buckets = [hashes(x, rotations) for x in (q, k)]  # (r, b, h, n)
    orders = [(x * n + at).argsort(-1) for x in buckets]
    labels = [  # bucket and chunk numbers of queries and keys
        torch.stack([x, o.argsort(-1) // chunk]) for x, o in zip(buckets, orders, strict=True)
    ]
    for own, (order_q, order_k) in enumerate(zip(*orders, strict=True)):
        sq, sk, sv = (
            x.take_along_dim(o[..., None], 2).unflatten(2, (-1, chunk))
            for x, o in ((q, order_q), (k, order_k), (v, order_k))
        )
        query, key = (  # bucket and chunk numbers in every round, (2, r, b, h, c, chunk)
            x.take_along_dim(o[None, None], -1).unflatten(-1, (-1, chunk))
            for x, o in zip(labels, (order_q, order_k), strict=True)
        )
        place, place_k = (o.unflatten(-1, (-1, chunk)) for o in (order_q, order_k))
        sk, sv = (torch.cat([x.roll(1, 2), x], 3) for x in (sk, sv))
        key, place_k = (torch.cat([x.roll(1, -2), x], -1) for x in (key, place_k))
        met = query[0, ..., None] == key[0, ..., None, :]  # (r, b, h, c, chunk, 2 chunk)
        met &= (query[1, ..., None] - key[1, ..., None, :]) % (n // chunk) <= 1
        same = met[own] & (place_k[..., None, :] <= place[..., None])
        times = met.sum(0).clamp(min=1).to(q.dtype)  # number of rounds in which a pair occurs
        scores = (sq @ sk.transpose(-2, -1) / math.sqrt(d)) - times.log()
        scores = scores.masked_fill(~same, -1e9)  # (b, h, c, chunk, 2 chunk)
        log = scores.logsumexp(-1, keepdim=True)
        found = torch.exp(scores - log).where(same, 0) @ sv
        back = order_q.argsort(-1)[..., None]
        mixed.append(found.flatten(2, 3).take_along_dim(back, 2))
        logs.append(log.flatten(2, 3).take_along_dim(back, 2))
    return (torch.stack(mixed) * torch.stack(logs).softmax(0)).sum(0)
