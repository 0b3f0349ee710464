"""Multi-head attention composed of its seams, and the cache of keys and values (chapter §1.1, §1.2)."""

import torch

from lab.models.heads import Heads
from lab.models.mixers import ByHeads, Mixer, State
from lab.models.scores import Score


class Attention(ByHeads, kind="attention"):
    """x (b, t, m) -> (b, t, m). Heads split, the position turns query and key, the score mixes, heads join."""

    hooks = {"at_input", "at_query_key", "bias"}
    masks = None

    def __init__(self, config, position):
        Mixer.__init__(self, config, position)
        self.heads = Heads.build(config.heads, config)
        self.score = Score.build(config.score, config)
        self.complete(config, position)

    def inputs(self, sight):
        bias = sight.bias(self.position)
        return {"bias": bias} | sight.pairs(biased=bias is not None, heads=self.heads.n)

    def forward(self, x, cache=None, **visible):
        q, k, v = self.split(x, cache)
        if cache is not None:
            k, v = cache.extend(k, v)
        return self.heads.join(self.score(q, k, v, **visible))

    def empty(self, batch, context, **tensor):
        return Cache(batch, self.heads.kv, context, self.heads.d, self.heads.d_value, **tensor)

    def state_bytes(self, length):
        element = self.heads.kv * (self.heads.d + self.heads.d_value) * self.heads.qkv.weight.element_size()
        return length * element + self.recent_bytes(length)


class Cache(State):
    """Preallocated keys and values of one layer: 2 x batch x kv_heads x context x d_head elements.

    Where values have a width of their own, d_value, they hold batch x kv_heads x context x d_value.
    """

    def __init__(self, batch, kv_heads, context, d_head, d_value=None, **tensor):
        super().__init__(
            keys=torch.empty(batch, kv_heads, context, d_head, **tensor),
            values=torch.empty(batch, kv_heads, context, d_value or d_head, **tensor),
        )

    @property
    def keys(self):
        return self.tensors["keys"]

    @property
    def values(self):
        return self.tensors["values"]

    def extend(self, k, v):
        """All keys and values so far, the new ones last. ValueError when the cache is full."""
        end = self.length + k.shape[2]
        if end > self.keys.shape[2]:
            raise ValueError(f"the cache holds {self.keys.shape[2]} positions, {end} are needed")
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]
