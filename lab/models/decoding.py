"""Decoding: caches, generation, and attention with one query (chapter §1.2).

A cache holds what a layer keeps from earlier tokens: keys and values, or a state of constant size.
Shape letters: b batch, h query head, g key-value head, r = h / g, t token, k key, d head width,
m model width.
"""

from contextlib import contextmanager

import torch


class Cache:
    """The decoding state of one layer: named tensors, and `length`, the number of cached tokens."""

    def __init__(self, **tensors):
        self.tensors = tensors
        self.length = 0

    @property
    def nbytes(self):
        """Memory of the tensors in bytes."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self.tensors.values())

    def append_inputs(self, x, history):
        """Return the kept inputs followed by x (b, t, m), and keep the last `history` of these.

        Kept inputs are detached: no gradient flows through them.
        """
        seen = torch.cat([self.tensors["recent"], x], 1) if "recent" in self.tensors else x
        self.tensors["recent"] = seen[:, max(0, seen.shape[1] - history) :].detach().clone()
        return seen


class KVCache(Cache):
    """Preallocated keys (b, g, context, d_head) and values (b, g, context, d_value) of a layer."""

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

    def append(self, k, v):
        """Append k and v. Returns all keys and values. Raises ValueError if they do not fit."""
        end = self.length + k.shape[2]
        if end > self.keys.shape[2]:
            raise ValueError(f"the cache holds up to {self.keys.shape[2]} positions, got {end}")
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


def fold_groups(q, mask, bias, groups):
    """Reshape q from one query per head, (b, h, 1, d), to r queries per group, (b, g, r, d).

    Returns q, mask and bias in this form, in which the kernel reads the keys of a group once
    instead of once per query head.
    """
    if mask is not None:
        mask = mask.expand(*q.shape[:3], -1).unflatten(1, (groups, -1)).squeeze(3)
    if bias is not None:
        bias = bias.unflatten(0, (groups, -1)).squeeze(2)
    return q.unflatten(1, (groups, -1)).squeeze(3), mask, bias


class KeepsKeys:
    """Mixin for mixers whose decoding state is a key/value cache."""

    def init_cache(self, batch, context, **tensor):
        """An empty cache for `batch` sequences of up to `context` positions."""
        heads = self.heads
        return KVCache(batch, heads.kv, context, heads.d, heads.d_value, **tensor)

    def state_bytes(self, length):
        """Bytes of decoding state per sequence after `length` positions."""
        heads = self.heads
        each = heads.kv * (heads.d + heads.d_value) * heads.qkv.weight.element_size()
        return length * each + recent_bytes(heads, length)


def recent_bytes(heads, length):
    """Bytes of the earlier inputs that `heads` keeps per sequence (see QKVProjection.history)."""
    return min(length, heads.history) * heads.d_model * heads.qkv.weight.element_size()


def empty_caches(model, batch, context=None):
    """One empty cache per layer, for `batch` sequences of up to `context` tokens.

    `context` defaults to block_size. Raises ValueError for a mask that is not causal.
    """
    if not model.mask.causal:
        raise ValueError(f"a cache needs a causal mask, not {model.config.mask!r}")
    weight = model.embedding.weight
    like = {"device": weight.device, "dtype": weight.dtype}
    context = context or model.config.block_size
    return [block.mixer.init_cache(batch, context, **like) for block in model.blocks]


@torch.no_grad()
def generate(model, tokens, n, *, temperature=1.0, generator=None):
    """Append n generated tokens to the prompt (b, t), in evaluation mode. Returns (b, t + n).

    Temperature 0 means greedy decoding. Raises ValueError for an empty prompt, a negative n or
    temperature, and a mask that is not causal.
    """
    if tokens.shape[1] == 0:
        raise ValueError("a prompt must have at least one token")
    if n < 0:
        raise ValueError(f"n, the number of new tokens, must be 0 or more, got {n}")
    if not temperature >= 0:
        raise ValueError(f"temperature must be 0 or above, got {temperature}")
    caches = model.caches(len(tokens), tokens.shape[1] + n)
    new = tokens
    with eval_mode(model):
        for _ in range(n):
            logits = model(new, caches=caches)[:, -1]
            if temperature == 0:
                new = logits.argmax(-1, keepdim=True)
            else:
                shares = (logits / temperature).softmax(-1)
                new = torch.multinomial(shares, 1, generator=generator)
            tokens = torch.cat([tokens, new], dim=1)
    return tokens


@contextmanager
def eval_mode(model):
    """Set evaluation mode inside the block, and restore the mode of every module on exit."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield model.eval()
    finally:
        for module, mode in modes:
            module.training = mode
