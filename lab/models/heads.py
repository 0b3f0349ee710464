"""Kinds of projections to queries, keys and values, and back to the residual stream (§1.2).

Shape letters: b batch, h query head, g key-value head, t token, d head width, m model width.
"""

import torch
import torch.nn.functional as F
from torch import nn

from lab.models.gpt import QKVProjection


class Sliced(QKVProjection, kind="sliced"):
    """Each head reads only its own slice of x: a common misunderstanding of multi-head attention.

    Raises ValueError unless n_heads divides d_model and equals kv_heads.
    """

    def __init__(self, config):
        super().__init__(config)
        if config.d_model % self.n or self.kv != self.n:
            raise ValueError(
                "sliced heads need an n_heads that divides d_model, and kv_heads equal to n_heads"
            )
        sizes = (config.d_model, 3 * self.n * self.d, 1)
        self.qkv = nn.Conv1d(*sizes, groups=self.n, bias=config.bias)

    def split(self, x, cache=None):
        heads = self.qkv(x.transpose(1, 2)).unflatten(1, (self.n, 3, self.d))  # (b, h, 3, d, t)
        return heads.transpose(-1, -2).unbind(2)

    def matrices(self):
        """Views of the query, key and value weights of head 0, then of head 1, and so on."""
        return self.qkv.weight.split(self.d)

    def query_key_weights(self):
        parts = self.matrices()
        return [*parts[::3], *parts[1::3]]

    def value_weights(self):
        return self.matrices()[2::3]


class Concatenated(QKVProjection, kind="concatenated"):
    """No W_O: each head writes to its own slice of the residual stream.

    Raises ValueError unless n_heads x d_head = d_model.
    """

    def __init__(self, config):
        super().__init__(config)
        if self.n * self.d != config.d_model:
            raise ValueError("without W_O, n_heads x d_head must equal d_model")
        self.out = nn.Identity()


def project(linear, x, rows, d):
    """Project x (b, t, m) with the given rows of a linear map, to heads (b, heads, t, d)."""
    bias = None if linear.bias is None else linear.bias[rows]
    return F.linear(x, linear.weight[rows], bias).unflatten(-1, (-1, d)).transpose(1, 2)


class QueryKey(QKVProjection):
    """Base class of projections whose `qkv` has only W_Q and W_K. Subclasses define `values`."""

    def __init__(self, config):
        super().__init__(config)
        width = (self.n + self.kv) * self.d
        self.qkv = nn.Linear(config.d_model, width, bias=config.bias)

    def split(self, x, cache=None):
        v = self.values(x)
        queries = self.n * self.d
        q = project(self.qkv, x, slice(queries), self.d)
        k = project(self.qkv, x, slice(queries, None), self.d)
        return q, k, v

    def matrices(self):
        return self.qkv.weight.split([self.n * self.d, self.kv * self.d])


class LowRankValue(QueryKey, kind="low-rank-value"):
    """W_V with a bottleneck: d_model -> rank -> kv_heads x d_head.

    `rank` defaults to a quarter of kv_heads x d_head.
    """

    def __init__(self, config, *, rank=None):
        super().__init__(config)
        width = self.kv * self.d
        rank = rank or max(1, width // 4)
        self.value_down = nn.Linear(config.d_model, rank, bias=False)
        self.value_up = nn.Linear(rank, width, bias=config.bias)

    def values(self, x):
        """Values (b, g, t, d)."""
        return self.value_up(self.value_down(x)).unflatten(-1, (-1, self.d)).transpose(1, 2)

    def value_weights(self):
        return [self.value_down.weight, self.value_up.weight]


class FullValue(QueryKey, kind="full-value"):
    """A d_model x d_model value map per head and no W_O; the head outputs are summed.

    In a standard head this map, W_V followed by the head's part of W_O, has rank at most d_head.
    Raises ValueError unless kv_heads equals n_heads.
    """

    def __init__(self, config):
        super().__init__(config)
        if self.kv != self.n:
            raise ValueError(
                "full-value heads have one value map per head: kv_heads must equal n_heads"
            )
        self.d_value = config.d_model
        # the value maps of all heads, concatenated
        self.out = nn.Linear(self.n * config.d_model, config.d_model, bias=config.bias)

    def values(self, x):
        """x for every head, (b, h, t, m); `out` applies the value maps after attention."""
        return x[:, None].expand(-1, self.n, -1, -1)

    def value_weights(self):
        return []  # the value maps are in `out`


class Primer(QKVProjection, kind="primer"):
    """A causal depthwise convolution over positions after W_Q, W_K and W_V. So 2021 (Primer).

    x ── W ── p      q_t, k_t or v_t = w_0 p_t + w_1 p_(t-1) + ... + w_(width-1) p_(t-width+1)

    Each channel has its own w, and p is 0 before the first position. With every initialization
    scheme, w starts as in Primer: w_0 is 1/2, the others are 1/(2 width). Raises ValueError for
    width < 1.
    """

    undecayed = ("conv_weight",)

    def __init__(self, config, *, width=3):
        super().__init__(config)
        if width < 1:
            raise ValueError(f"primer: width must be at least 1, got {width}")
        self.history = width - 1
        start = torch.full((self.qkv.out_features, width), 0.5 / width)
        start[:, 0] = 0.5
        self.conv_weight = nn.Parameter(start)  # (channels, width)

    def split(self, x, cache=None):
        seen = x if cache is None else cache.append_inputs(x, self.history)
        queries = self.n * self.d
        q = self.convolved(seen, slice(queries))
        k, v = self.convolved(seen, slice(queries, None)).split(self.kv, dim=1)
        return [part[:, :, -x.shape[1] :] for part in (q, k, v)]

    def convolved(self, x, rows):
        """Project x (b, t, m) with the given rows of W and convolve: (b, heads, t, d)."""
        p = project(self.qkv, x, rows, self.d)
        weight = self.conv_weight[rows].unflatten(0, (-1, self.d))  # (heads, d, width)
        return sum(
            F.pad(p, (0, 0, i, 0))[:, :, : p.shape[2]] * weight[:, None, :, i]
            for i in range(self.history + 1)
        )
