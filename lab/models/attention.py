"""Multi-head attention composed of its seams, and the cache of keys and values (chapter §1.1, §1.2)."""

import torch
from torch import nn

from lab.models.heads import Heads
from lab.models.norms import Norm
from lab.models.scores import Score


class Attention(nn.Module):
    """x (b, t, m) -> (b, t, m). Heads split, the position turns query and key, the score mixes, heads join."""

    def __init__(self, config, position):
        super().__init__()
        self.heads = Heads.build(config.heads, config)
        self.score = Score.build(config.score, config)
        width = config.model_copy(update={"d_model": config.d_head})
        self.query_norm, self.key_norm = (Norm.build(config.qk_norm, width) for _ in "qk")
        self.position = position

    def forward(self, x, cache=None, **visible):
        q, k, v = self.heads.split(x) if cache is None else self.heads.following(x, cache)  # (b, h, t, d), (b, g, t, d)
        q, k = self.query_norm(q), self.key_norm(k)
        q, k = self.position.at_query_key(q, k, start=0 if cache is None else cache.length)
        if cache is not None:
            k, v = cache.extend(k, v)
        return self.heads.join(self.score(q, k, v, **visible))


class Cache:
    """Preallocated keys and values of one layer: 2 x batch x kv_heads x context x d_head elements.

    Where values have a width of their own, d_value, they hold batch x kv_heads x context x d_value.
    """

    def __init__(self, batch, kv_heads, context, d_head, d_value=None, **tensor):
        self.keys = torch.empty(batch, kv_heads, context, d_head, **tensor)
        self.values = torch.empty(batch, kv_heads, context, d_value or d_head, **tensor)
        self.length = 0
        self.recent = None

    def remember(self, x, reach):
        """x (b, t, m) after the `reach` inputs before it, as far as there are any."""
        seen = x if self.recent is None else torch.cat([self.recent, x], 1)
        self.recent = seen[:, max(0, seen.shape[1] - reach) :]
        return seen

    def extend(self, k, v):
        """All keys and values so far, the new ones last. ValueError when the cache is full."""
        end = self.length + k.shape[2]
        if end > self.keys.shape[2]:
            raise ValueError(f"the cache holds {self.keys.shape[2]} positions, {end} are needed")
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]
