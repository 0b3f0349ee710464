"""Attention whose weights are products of features, φ(q)·φ(k), so that a sum over keys can be kept
instead of them.

    Σ_k φ(q)·φ(k) v_k  =  φ(q) · Σ_k φ(k) v_kᵀ  =  φ(q) · S        S: features x d_v, whatever the length

Chapter §1.6.3. Letters: b batch, h head, n length, d head width, f features.
"""

import math

import torch
import torch.nn.functional as F

from lab.models.gpt import QKVMixer
from lab.models.kernels import repeat_kv


def parallel(fq, fk, v, causal=False):
    """All weights at once, in n² steps: what the other forms equal."""
    weights = fq @ fk.transpose(-2, -1)  # (b, h, q, k)
    weights = weights.tril() if causal else weights
    return divided(weights @ v, weights.sum(-1, keepdim=True))


def chunked(fq, fk, v, chunk=64, state=None):
    """The causal form in n steps: all pairs within a chunk, and the sum over the chunks before.

    `state` (b, h, f, d + 1) is the sum over the keys before the first, if there are any. `rescaled`
    is the same for features that are too large for numbers.
    """
    n = fq.shape[2]
    padding = -n % chunk
    fq, fk, v = (
        F.pad(x, (0, 0, 0, padding)).unflatten(2, (-1, chunk)) for x in (fq, fk, v)
    )  # (b, h, c, chunk, .)
    before = fk.transpose(-2, -1) @ with_ones(v)  # (b, h, c, f, d + 1)
    before = F.pad(
        before[:, :, :-1].cumsum(2), (0, 0, 0, 0, 1, 0)
    )  # what the chunks before add up to
    if state is not None:
        before = before + state[:, :, None]
    within = (fq @ fk.transpose(-2, -1)).tril() @ with_ones(v)
    mixed = (within + fq @ before).flatten(2, 3)[:, :, :n]
    return divided(mixed[..., :-1], mixed[..., -1:])


def rescaled(fq, fk, v, top, chunk=64, state=None, before=None):
    """(state, outputs) as `chunked` where the key at j stands for e^top_j times its features: top
    (b, h, n, 1), which nowhere falls, is the largest logarithm up to there.

    `state` stands for e^before times itself, before (b, h, 1, 1); the new one for e^(the last of
    top).
    """
    n = fq.shape[2]
    padding = -n % chunk
    fq, fk, v = (
        F.pad(x, (0, 0, 0, padding)).unflatten(2, (-1, chunk)) for x in (fq, fk, v)
    )  # (b, h, c, chunk, .)
    top = F.pad(top, (0, 0, 0, padding), mode="replicate").unflatten(2, (-1, chunk))
    end = top[:, :, :, -1:]  # (b, h, c, 1, 1)
    own = (fk * (top - end).exp()).mT @ with_ones(v)  # (b, h, c, f, d + 1)
    within = (fq @ fk.mT * (top.mT - top).clamp(max=0).exp()).tril() @ with_ones(v)
    out = []
    for i in range(fq.shape[2]):
        mixed = within[:, :, i]
        if state is not None:
            mixed = mixed + fq[:, :, i] * (before - top[:, :, i]).exp() @ state
        out.append(mixed)
        state = (
            own[:, :, i] if state is None else state * (before - end[:, :, i]).exp() + own[:, :, i]
        )
        before = end[:, :, i]
    mixed = torch.cat(out, 2)[:, :, :n]
    return state, divided(mixed[..., :-1], mixed[..., -1:])


def unmasked(fq, fk, v):
    """Every query sees every key, in n steps."""
    return summed(fq, added(None, fk, v))


def step(state, fq, fk, v):
    """One token of the recurrent form: (state, output) from features (b, h, f), values (b, h, d);
    state (b, h, f, d+1), None at the start. Katharopoulos 2020 §3.4.
    """
    state = added(state, fk[..., None, :], v[..., None, :])
    return state, summed(fq[..., None, :], state).squeeze(-2)


def added(state, fk, v):
    """The sum over keys, (b, h, f, d + 1), after those of (b, h, n, f) more."""
    new = fk.transpose(-2, -1) @ with_ones(v)
    return new if state is None else state + new


def summed(fq, state):
    """What queries (b, h, n, f) read from the sum."""
    mixed = fq @ state
    return divided(mixed[..., :-1], mixed[..., -1:])


def with_ones(v):
    """Values with a column of ones, whose sum is the denominator."""
    return F.pad(v, (0, 1), value=1.0)


def divided(mixed, total):
    """0 where a query saw nothing."""
    return mixed / total.where(total != 0, 1)


class LinearAttention(QKVMixer, kind="linear"):
    """Features elu(x) + 1; decoding keeps the sum over keys, h x d x (d_value + 1).

    Katharopoulos 2020.

    Under mask "none" every query sees every key; of a text in parts, those of its part and of the
    parts before.
    """

    masks = {"causal", "none"}

    def __init__(self, config, position, *, chunk=64):
        super().__init__(config, position)
        self.chunk, self.causal, self.width = chunk, config.causal, config.d_head  # width: features

    def features(self, q, k):
        """(φ(q), φ(k)), each (b, h, n, f)."""
        return F.elu(q) + 1, F.elu(k) + 1

    def forward(self, x, cache=None, padding_mask=None):
        q, k, v = self.split(x, cache)
        k, v = repeat_kv(k, q.shape[1]), repeat_kv(v, q.shape[1])
        return self.heads.join(
            self.attended(
                q, k, v, cache, None if padding_mask is None else padding_mask[:, None, :, None]
            )
        )

    def attended(self, q, k, v, cache=None, padding_mask=None):
        """The mix (b, h, n, d_value) of q, k (b, h, n, d) and v; `padding_mask` (b, 1, n, 1)."""
        fq, fk = self.features(q, k)
        fk = fk if padding_mask is None else fk * padding_mask
        return self.mixed(fq, fk, v) if cache is None else self.following(cache, fq, fk, v)

    def mixed(self, fq, fk, v):
        return chunked(fq, fk, v, self.chunk) if self.causal else unmasked(fq, fk, v)

    def following(self, cache, fq, fk, v):
        """The same after the keys in `cache`, which then holds these too."""
        before, n = cache.tensors.get("sum"), v.shape[2]
        state = added(before, fk, v)
        if self.causal and n > 1:
            mixed = chunked(fq, fk, v, min(self.chunk, n), before)
        else:
            mixed = summed(fq, state)
        cache.tensors["sum"] = state.detach()
        cache.length += n
        return mixed

    def state_bytes(self, length):
        weight = self.heads.qkv.weight
        return self.heads.n * self.width * (
            self.heads.d_value + 1
        ) * weight.element_size() + self.recent_bytes(length)


class Performer(LinearAttention, kind="performer"):
    """Positive random features, whose product is e^(q·k/√d) on average. Choromanski 2020 (FAVOR+).

    Common factors cancel in the quotient and are taken out: of each query, and of the keys that it
    sees, none of which is padding or later. So no token changes another's numbers that does not see
    it.
    """

    def __init__(self, config, position, *, features=None, chunk=64):
        super().__init__(config, position, chunk=chunk)
        self.width = features or 4 * config.d_head
        self.register_buffer("projection", orthogonal_rows(self.width, config.d_head))

    def attended(self, q, k, v, cache=None, padding_mask=None):
        q, k = log_positive_features(q, self.projection), log_positive_features(k, self.projection)
        fq = (q - q.detach().amax(-1, keepdim=True)).exp()
        k = k if padding_mask is None else k.masked_fill(~padding_mask, -torch.inf)
        state, before = (
            (None, None) if cache is None else (cache.tensors.get(name) for name in ("sum", "top"))
        )
        largest = (
            k.detach().amax(-1, keepdim=True).clamp(min=torch.finfo(k.dtype).min)
        )  # (b, h, n, 1)
        largest = largest if before is None else torch.maximum(largest, before)
        top = (
            largest.cummax(2).values
            if self.causal
            else largest.amax(2, keepdim=True).expand_as(largest)
        )
        fk = (k - top).exp()
        if self.causal:
            state, mixed = rescaled(fq, fk, v, top, min(self.chunk, k.shape[2]), state, before)
        else:
            state = added(None if state is None else state * (before - top[:, :, -1:]).exp(), fk, v)
            mixed = summed(fq, state)
        if cache is not None:
            cache.tensors |= {"sum": state.detach(), "top": top[:, :, -1:].clone()}
            cache.length += k.shape[2]
        return mixed

    def state_bytes(self, length):
        return (
            super().state_bytes(length) + self.heads.n * self.projection.element_size()
        )  # the largest key


def positive_features(q, k, projection, top=None):
    """(φ(q), φ(k), top): common factors are taken out of each query, and e^top out of all keys of a
    head: they cancel in the quotient. `top` (b, h, 1, 1) is the largest logarithm among the keys
    and, where given, those before.
    """
    q, k = log_positive_features(q, projection), log_positive_features(k, projection)
    new = k.detach().amax((-2, -1), keepdim=True)
    top = new if top is None else torch.maximum(new, top)
    return (q - q.detach().amax(-1, keepdim=True)).exp(), (k - top).exp(), top


def orthogonal_rows(count, width, generator=None):
    """`count` directions in `width` dimensions, orthogonal in groups, as long as Gaussian ones:
    (count, width).
    """
    groups = [
        torch.linalg.qr(torch.randn(width, width, generator=generator))[0]
        for _ in range(math.ceil(count / width))
    ]
    lengths = torch.randn(count, width, generator=generator).norm(dim=1, keepdim=True)
    return torch.cat(groups)[:count] * lengths


def log_positive_features(x, projection):
    """Logarithms of the features of x (..., d), scaled so that products estimate e^(x·y/√d): (...,
    f).
    """
    x = x * x.shape[-1] ** -0.25
    return x @ projection.T - x.square().sum(-1, keepdim=True) / 2 - math.log(len(projection)) / 2


def trigonometric_features(x, projection):
    """The older estimator of the same kernel, by sines and cosines, which may be negative.

    Rahimi & Recht 2007.
    """
    x = x * x.shape[-1] ** -0.25
    angle, size = x @ projection.T, (x.square().sum(-1, keepdim=True) / 2).exp()
    return size * torch.cat([angle.sin(), angle.cos()], -1) * len(projection) ** -0.5


def positive_variance(x, y, features):
    """Variance of the positive estimate of e^(x·y) from so many independent Gaussian directions.

    Choromanski 2020.
    """
    total = (x + y).square().sum(-1)
    return total.exp() * (2 * (x * y).sum(-1)).exp() * (1 - (-total).exp()) / features


def trigonometric_variance(x, y, features):
    """The same of the trigonometric estimate."""
    total, apart = (x + y).square().sum(-1), (x - y).square().sum(-1)
    return (
        total.exp() * (-2 * (x * y).sum(-1)).exp() * (1 - (-apart).exp()).square() / (2 * features)
    )
