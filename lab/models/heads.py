"""Heads: how the stream is split into queries, keys and values, and how the heads' results are joined (chapter §1.2).

n_heads query heads, kv_heads key-value heads (MHA: equal, GQA: fewer, MQA: one), each d_head wide.
Letters: b batch, h query head, g key-value head, t token, d head width, m model width.
"""

import torch
import torch.nn.functional as F
from torch import nn

from lab.models.seams import Seam


class Heads(nn.Module, Seam):
    """Every head projects the whole stream; the concatenation is projected back by W_O. Vaswani 2017 §3.2.2."""

    def __init__(self, config):
        super().__init__()
        self.n, self.kv, self.d = config.n_heads, config.kv_heads, config.d_head
        self.qkv = nn.Linear(config.d_model, (self.n + 2 * self.kv) * self.d, bias=config.bias)
        self.out = nn.Linear(self.n * self.d, config.d_model, bias=config.bias)

    def split(self, x):
        """x (b, t, m) to q (b, h, t, d) and k, v (b, g, t, d)."""
        heads = self.qkv(x).unflatten(-1, (-1, self.d)).transpose(1, 2)  # (b, h + 2g, t, d)
        return heads.split([self.n, self.kv, self.kv], dim=1)

    def join(self, mixed):
        """mixed (b, h, t, d) to (b, t, m)."""
        return self.out(mixed.transpose(1, 2).flatten(2))

    def value_overlap(self):
        """Mean squared cosine between value directions of different heads, times d_model: 1 for random directions."""
        rows = F.normalize(self.qkv.weight.flatten(1)[-self.kv * self.d :], dim=1)  # (g d, m)
        cosine = (rows @ rows.T).unflatten(0, (self.kv, self.d)).unflatten(2, (self.kv, self.d))  # (g, d, g, d)
        between = ~torch.eye(self.kv, dtype=torch.bool, device=rows.device)[:, None, :, None].expand_as(cosine)
        return cosine[between].square().mean() * rows.shape[1]


Heads.kinds["full"] = Heads


class Sliced(Heads, kind="sliced"):
    """Each head sees its own slice of the stream only: a frequent misreading of "splitting into heads"."""

    def __init__(self, config):
        super().__init__(config)
        if config.d_model % self.n or self.kv != self.n:
            raise ValueError("sliced heads need n_heads dividing d_model and kv_heads equal to n_heads")
        self.qkv = nn.Conv1d(config.d_model, 3 * self.n * self.d, 1, groups=self.n, bias=config.bias)

    def split(self, x):
        heads = self.qkv(x.transpose(1, 2)).unflatten(1, (self.n, 3, self.d))  # (b, h, 3, d, t)
        return heads.transpose(-1, -2).unbind(2)


class Concatenated(Heads, kind="concatenated"):
    """No W_O: a head writes into its own slice of the stream."""

    def __init__(self, config):
        super().__init__(config)
        if self.n * self.d != config.d_model:
            raise ValueError("without W_O the heads must fill d_model: n_heads x d_head = d_model")
        self.out = nn.Identity()
