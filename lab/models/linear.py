"""Linear attention: weights are φ(q)·φ(k), so all queries can share one sum over keys.

    Σ_k φ(q)·φ(k) v_k  =  φ(q) · Σ_k φ(k) v_kᵀ  =  φ(q) · S        S: features x d_v, for any length

A column of ones is appended to v, so the state S (b, h, f, d + 1) also holds the denominator.
Chapter §1.6.3. Shape letters: b batch, h head, n token, c number of chunks, d head width, f
features.
"""

import math

import torch
import torch.nn.functional as F

from lab.models.decoding import recent_bytes
from lab.models.kernels import repeat_kv
from lab.models.mixers import QKVStateMixer
from lab.models.precision import wide, without_autocast


def parallel(fq, fk, v, causal=False):
    """Reference implementation in O(n²) time, with all weights: outputs (b, h, n, d)."""
    weights = fq @ fk.transpose(-2, -1)  # (b, h, q, k)
    weights = weights.tril() if causal else weights
    return safe_divide(weights @ v, weights.sum(-1, keepdim=True))


def chunked(fq, fk, v, chunk=64, state=None):
    """Causal outputs (b, h, n, d) in O(n) time, from pairs within a chunk and S of earlier chunks.

    fq and fk (b, h, n, f), v (b, h, n, d). `state` (b, h, f, d + 1) is S of the keys in the cache.
    `rescaled` does the same for features that would overflow.
    """
    n = fq.shape[2]
    padding = -n % chunk
    # (b, h, c, chunk, .)
    fq, fk, v = (F.pad(x, (0, 0, 0, padding)).unflatten(2, (-1, chunk)) for x in (fq, fk, v))
    before = fk.transpose(-2, -1) @ append_ones(v)  # (b, h, c, f, d + 1)
    before = F.pad(before[:, :, :-1].cumsum(2), (0, 0, 0, 0, 1, 0))  # sum of the earlier chunks
    if state is not None:
        before = before + state[:, :, None]
    within = (fq @ fk.transpose(-2, -1)).tril() @ append_ones(v)
    mixed = (within + fq @ before).flatten(2, 3)[:, :, :n]
    return safe_divide(mixed[..., :-1], mixed[..., -1:])


def rescaled(fq, fk, v, top, chunk=64, state=None, before=None):
    """`chunked` for keys whose features are e^top · fk, where e^top could overflow.

    Returns (state, outputs). top (b, h, n, 1) is the running maximum of the log features of the
    keys. A state is stored as S / e^m, where m is the running maximum at its last key, so that it
    cannot overflow. `state` has m = before (b, h, 1, 1); the returned state, the top of the last
    key.
    """
    n = fq.shape[2]
    padding = -n % chunk
    # (b, h, c, chunk, .)
    fq, fk, v = (F.pad(x, (0, 0, 0, padding)).unflatten(2, (-1, chunk)) for x in (fq, fk, v))
    top = F.pad(top, (0, 0, 0, padding), mode="replicate").unflatten(2, (-1, chunk))
    end = top[:, :, :, -1:]  # (b, h, c, 1, 1)
    own = (fk * (top - end).exp()).mT @ append_ones(v)  # (b, h, c, f, d + 1)
    within = (fq @ fk.mT * (top.mT - top).clamp(max=0).exp()).tril() @ append_ones(v)
    out = []
    for i in range(fq.shape[2]):
        mixed = within[:, :, i]
        if state is not None:
            mixed = mixed + fq[:, :, i] * (before - top[:, :, i]).exp() @ state
        out.append(mixed)
        if state is None:
            state = own[:, :, i]
        else:
            state = state * (before - end[:, :, i]).exp() + own[:, :, i]
        before = end[:, :, i]
    mixed = torch.cat(out, 2)[:, :, :n]
    return state, safe_divide(mixed[..., :-1], mixed[..., -1:])


def bidirectional(fq, fk, v):
    """Outputs (b, h, n, d) in O(n) time without a mask."""
    return read_state(fq, add_keys(None, fk, v))


def add_keys(state, fk, v):
    """Add n keys with features fk (b, h, n, f) to the state (b, h, f, d + 1)."""
    new = fk.transpose(-2, -1) @ append_ones(v)
    return new if state is None else state + new


def read_state(fq, state):
    """Outputs (b, h, n, d) of queries with features fq (b, h, n, f)."""
    mixed = fq @ state
    return safe_divide(mixed[..., :-1], mixed[..., -1:])


def append_ones(v):
    """Append a column of ones to the values; its weighted sum is the denominator."""
    return F.pad(v, (0, 1), value=1.0)


def safe_divide(mixed, total):
    """mixed / total, or 0 where total is 0, as for a query that sees no key."""
    return mixed / total.where(total != 0, 1)


class LinearAttention(QKVStateMixer, kind="linear"):
    """Linear attention with φ(x) = elu(x) + 1. Katharopoulos 2020.

    Decoding keeps one sum over keys per head, (b, h, d, d_value + 1). Sums are computed in float32
    or wider. With mask "none", every query sees every key.
    """

    masks = {"causal", "none"}

    def __init__(self, config, position, *, chunk=64):
        super().__init__(config, position)
        self.chunk = chunk
        self.causal = config.causal
        self.width = config.d_head  # number of features

    def features(self, q, k):
        """(φ(q), φ(k)), each (b, h, n, f)."""
        return F.elu(q) + 1, F.elu(k) + 1

    def forward(self, x, cache=None):
        q, k, v = self.split(x, cache)
        k = repeat_kv(k, q.shape[1])
        v = repeat_kv(v, q.shape[1])
        with without_autocast(x):
            mixed = self.mix(wide(q), wide(k), wide(v), cache)
        return self.heads.join(mixed.to(x.dtype))

    def mix(self, q, k, v, cache=None):
        """Outputs (b, h, n, d_value) of q, k (b, h, n, d) and v. Updates the cache."""
        fq, fk = self.features(q, k)
        if cache is None:
            return chunked(fq, fk, v, self.chunk) if self.causal else bidirectional(fq, fk, v)
        before = cache.tensors.get("sum")
        n = v.shape[2]
        state = add_keys(before, fk, v)
        if self.causal and n > 1:
            mixed = chunked(fq, fk, v, min(self.chunk, n), before)
        else:
            mixed = read_state(fq, state)
        cache.tensors["sum"] = state.detach()
        cache.length += n
        return mixed

    def state_bytes(self, length):
        size = wide(self.heads.qkv.weight[:0]).element_size()
        elements = self.heads.n * self.width * (self.heads.d_value + 1)
        return elements * size + recent_bytes(self.heads, length)


class Performer(LinearAttention, kind="performer"):
    """Linear attention with random features, E[φ(q)·φ(k)] = e^(q·k/√d). Choromanski 2020.

    The features are positive (FAVOR+). To prevent overflow, the features of a query are divided by
    their maximum, and the features of keys by the maximum over the keys that the query sees. Both
    factors cancel in the quotient, and a key never affects queries that do not see it.
    """

    def __init__(self, config, position, *, features=None, chunk=64):
        super().__init__(config, position, chunk=chunk)
        self.width = features or 4 * config.d_head
        self.register_buffer("projection", orthogonal_rows(self.width, config.d_head))

    def mix(self, q, k, v, cache=None):
        projection = wide(self.projection)
        q = log_positive_features(q, projection)
        k = log_positive_features(k, projection)
        fq = (q - q.detach().amax(-1, keepdim=True)).exp()
        state = None if cache is None else cache.tensors.get("sum")
        before = None if cache is None else cache.tensors.get("top")
        largest = k.detach().amax(-1, keepdim=True)  # (b, h, n, 1)
        largest = largest if before is None else torch.maximum(largest, before)
        if self.causal:
            top = largest.cummax(2).values
        else:
            top = largest.amax(2, keepdim=True).expand_as(largest)
        fk = (k - top).exp()
        if self.causal:
            state, mixed = rescaled(fq, fk, v, top, min(self.chunk, k.shape[2]), state, before)
        else:
            if state is not None:
                state = state * (before - top[:, :, -1:]).exp()
            state = add_keys(state, fk, v)
            mixed = read_state(fq, state)
        if cache is not None:
            cache.tensors |= {"sum": state.detach(), "top": top[:, :, -1:].clone()}
            cache.length += k.shape[2]
        return mixed

    def state_bytes(self, length):
        largest_key = self.heads.n * wide(self.projection[:0]).element_size()
        return super().state_bytes(length) + largest_key


def positive_features(q, k, projection, top=None):
    """Scaled features (φ(q), φ(k), top): φ(q) is divided by its maximum, φ(k) by e^top.

    Both factors cancel in the quotient. The returned top (b, h, 1, 1) is the maximum of the log
    features of all keys of a head and of the argument `top`, the maximum for earlier keys.
    """
    q = log_positive_features(q, projection)
    k = log_positive_features(k, projection)
    new = k.detach().amax((-2, -1), keepdim=True)
    top = new if top is None else torch.maximum(new, top)
    return (q - q.detach().amax(-1, keepdim=True)).exp(), (k - top).exp(), top


def orthogonal_rows(count, width, generator=None):
    """Random rows (count, width): orthogonal in groups of `width`, norms of Gaussian vectors."""
    groups = [
        torch.linalg.qr(torch.randn(width, width, generator=generator))[0]
        for _ in range(math.ceil(count / width))
    ]
    lengths = torch.randn(count, width, generator=generator).norm(dim=1, keepdim=True)
    return torch.cat(groups)[:count] * lengths


def log_positive_features(x, projection):
    """log φ(x), (..., f), of x (..., d). The products φ(x)·φ(y) estimate e^(x·y/√d)."""
    x = x * x.shape[-1] ** -0.25
    return x @ projection.T - x.square().sum(-1, keepdim=True) / 2 - math.log(len(projection)) / 2
