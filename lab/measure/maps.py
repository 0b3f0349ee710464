"""Statistics of attention maps: where heads attend, relative to uniform weights, and similarity.

Maps are weights (b, h, q, k) of causal attention, as returned by `attention_maps`. Targets are
boolean patterns (b or 1, q, k), True at the target keys of each query. Queries are booleans (b or
1, q). Results have one number per head, (h,), unless stated otherwise.
"""

import base64
import math

import numpy as np
import torch

from lab.measure.attention import distance, entropy, mass_on, query_mean


def induction_targets(n, period, offset):
    """Targets on a block of `period` tokens repeated over n tokens: (1, n, n).

    They lie `offset` after the earlier occurrences of the query's token; queries of the first block
    have none. An induction head has offset 1, the token that followed, and a duplicate-token head
    has offset 0. Offset -1 is the definition printed in Olsson 2022, which an ideal induction head
    does not meet.
    """
    q = torch.arange(n)[:, None]
    k = torch.arange(n)
    behind = q - k + offset
    return ((behind > 0) & (behind % period == 0) & (q >= period) & (k <= q) & (k >= offset))[None]


def one_hot_targets(index):
    """One-hot targets (b, q, q) from one key index per query (b, q), -1 for none."""
    return index[..., None] == torch.arange(index.shape[1], device=index.device)


def uniform_mass(targets):
    """Weight on the targets under uniform causal weights: a number.

    The mean is over queries that have targets.
    """
    visible = targets.tril()
    share = visible.sum(-1) / torch.arange(1, targets.shape[1] + 1, device=targets.device)  # (b, q)
    return share[targets.any(-1)].mean().item()


def mass(maps, targets):
    """Mean weight on the targets over batch and queries with targets, NaN if none have: (h,)."""
    return query_mean(mass_on(targets)(maps))


def relative_distance(maps, queries):
    """Mean |q - k| under the weights at `queries`, relative to uniform causal weights: (h,)."""
    uniform = torch.arange(maps.shape[2], device=maps.device) / 2  # (q,)
    queries = queries.expand(len(maps), -1)
    total = (distance(maps) * queries[:, None]).sum((0, 2))  # (h,)
    return total / uniform.expand(queries.shape)[queries].sum()


def hits(maps, targets):
    """Share of queries whose largest weight is on their target, (b or 1, q), -1 for none: (h,).

    Queries without a target are ignored.
    """
    targets = targets.expand(len(maps), -1)
    some = targets >= 0  # (b, q)
    right = maps.argmax(-1) == targets[:, None]  # (b, h, q)
    return (right & some[:, None]).sum((0, 2)) / some.sum()


def divergence(maps, others=None):
    """Jensen-Shannon divergence of every head of `maps` from every head of `others`: (h, g).

    The unit is bits; the mean is over batch and queries. `others` defaults to `maps`. With
    `maps.roll(1, 0)` each input is paired with another one, so that heads are similar by position
    only, not by content.
    """
    others = maps if others is None else others
    own = entropy(maps)
    other = entropy(others)
    rows = []
    for i in range(maps.shape[1]):
        mixed = entropy((maps[:, i : i + 1] + others) / 2)
        rows.append((mixed - (own[:, i : i + 1] + other) / 2).mean((0, 2)) / math.log(2))
    return torch.stack(rows)


def match_entropy(maps, reference):
    """Maps (b, h, q, k) rescaled to the mean entropy of `reference`.

    All scores are multiplied by one number c: softmax(c z) is softmax(z)^c, normalised. This is the
    null model for heads that differ only by their entropy.
    """
    target = entropy(reference).mean()
    low, high = -6.0, 10.0  # bounds of log2 c
    logs = maps.clamp_min(torch.finfo(maps.dtype).tiny).log()
    for _ in range(30):
        middle = (low + high) / 2
        sharp = torch.softmax(2**middle * logs, -1) * (maps > 0)
        low, high = (middle, high) if entropy(sharp).mean() > target else (low, middle)
    return sharp


def packed(weights):
    """One head's map (q, k) as a base64 string in steps of 1/255, for tables."""
    return base64.b64encode((weights * 255).round().byte().cpu().numpy().tobytes()).decode()


def unpacked(word):
    """The square map (q, k) of a string made by `packed`."""
    flat = np.frombuffer(base64.b64decode(word), dtype=np.uint8) / 255
    return flat.reshape(math.isqrt(len(flat)), -1)
