"""Attention whose weights are products of features, φ(q)·φ(k), so that a sum over keys can be kept instead of them.

    Σ_k φ(q)·φ(k) v_k  =  φ(q) · Σ_k φ(k) v_kᵀ  =  φ(q) · S        S: features x d_v, whatever the length

Chapter §1.6.3. Letters: b batch, h head, n length, d head width, f features.
"""

import math

import torch
import torch.nn.functional as F

from lab.models.scores import Score, repeated, visible


def parallel(fq, fk, v, mask=None, bias=None, causal=False):
    """All weights at once, in n² steps; the only form that takes a mask, or a bias on the logarithm of the weights."""
    weights = fq @ fk.transpose(-2, -1)  # (b, h, q, k)
    if bias is not None:
        weights = weights * (bias - bias.detach().amax(-1, keepdim=True)).exp()
    mask = visible(weights, mask, causal)
    if mask is not None:
        weights = weights.where(mask, 0)
    return divided(weights @ v, weights.sum(-1, keepdim=True))


def chunked(fq, fk, v, chunk=64):
    """The causal form in n steps: all pairs within a chunk, and the sum over the chunks before."""
    n = fq.shape[2]
    padding = -n % chunk
    fq, fk, v = (F.pad(x, (0, 0, 0, padding)).unflatten(2, (-1, chunk)) for x in (fq, fk, v))  # (b, h, c, chunk, .)
    before = fk.transpose(-2, -1) @ with_ones(v)  # (b, h, c, f, d + 1)
    before = F.pad(before[:, :, :-1].cumsum(2), (0, 0, 0, 0, 1, 0))  # what the chunks before add up to
    within = (fq @ fk.transpose(-2, -1)).tril() @ with_ones(v)
    mixed = (within + fq @ before).flatten(2, 3)[:, :, :n]
    return divided(mixed[..., :-1], mixed[..., -1:])


def unmasked(fq, fk, v):
    """Every query sees every key, in n steps."""
    mixed = fq @ (fk.transpose(-2, -1) @ with_ones(v))
    return divided(mixed[..., :-1], mixed[..., -1:])


def step(state, fq, fk, v):
    """One token of the recurrent form: (state, output) from features (b, h, f), values (b, h, d); state (b, h, f, d+1),
    None at the start. Katharopoulos 2020 §3.4."""
    new = fk[..., None] * with_ones(v)[..., None, :]
    state = new if state is None else state + new
    mixed = (fq[..., None, :] @ state).squeeze(-2)
    return state, divided(mixed[..., :-1], mixed[..., -1:])


def with_ones(v):
    """Values with a column of ones, whose sum is the denominator."""
    return F.pad(v, (0, 1), value=1.0)


def divided(mixed, total):
    """0 where a query saw nothing."""
    return mixed / total.where(total != 0, 1)


class Linear(Score, kind="linear"):
    """Features elu(x) + 1. Katharopoulos 2020."""

    def __init__(self, config, *, chunk=64):
        super().__init__(config)
        self.chunk = chunk

    def features(self, q, k):
        """(φ(q), φ(k)), each (b, h, n, f)."""
        return F.elu(q) + 1, F.elu(k) + 1

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        fq, fk = self.features(q, repeated(k, q.shape[1]))
        v = repeated(v, q.shape[1])
        if mask is not None or bias is not None or q.shape[2] != k.shape[2] and causal:
            return parallel(fq, fk, v, mask, bias, causal)
        return chunked(fq, fk, v, self.chunk) if causal else unmasked(fq, fk, v)


class Performer(Linear, kind="performer"):
    """Positive random features, whose product is e^(q·k/√d) on average. Choromanski 2020 (FAVOR+)."""

    def __init__(self, config, *, features=None, chunk=64):
        super().__init__(config, chunk=chunk)
        count = features or 4 * config.d_head
        self.register_buffer("projection", orthogonal_rows(count, config.d_head))

    def features(self, q, k):
        """Common factors are taken out of each query, and of all keys of a head: they cancel in the quotient."""
        q, k = log_positive_features(q, self.projection), log_positive_features(k, self.projection)
        return (q - q.detach().amax(-1, keepdim=True)).exp(), (k - k.detach().amax((-2, -1), keepdim=True)).exp()


def orthogonal_rows(count, width, generator=None):
    """`count` directions in `width` dimensions, orthogonal in groups, as long as Gaussian ones: (count, width)."""
    groups = [
        torch.linalg.qr(torch.randn(width, width, generator=generator))[0] for _ in range(math.ceil(count / width))
    ]
    lengths = torch.randn(count, width, generator=generator).norm(dim=1, keepdim=True)
    return torch.cat(groups)[:count] * lengths


def log_positive_features(x, projection):
    """Logarithms of the features of x (..., d), scaled so that products estimate e^(x·y/√d): (..., f)."""
    x = x * x.shape[-1] ** -0.25
    return x @ projection.T - x.square().sum(-1, keepdim=True) / 2 - math.log(len(projection)) / 2


def trigonometric_features(x, projection):
    """The older estimator of the same kernel, by sines and cosines, which may be negative. Rahimi & Recht 2007."""
    x = x * x.shape[-1] ** -0.25
    angle, size = x @ projection.T, (x.square().sum(-1, keepdim=True) / 2).exp()
    return size * torch.cat([angle.sin(), angle.cos()], -1) * len(projection) ** -0.5


def positive_variance(x, y, features):
    """Variance of the positive estimate of e^(x·y) from so many independent Gaussian directions. Choromanski 2020."""
    total = (x + y).square().sum(-1)
    return total.exp() * (2 * (x * y).sum(-1)).exp() * (1 - (-total).exp()) / features


def trigonometric_variance(x, y, features):
    """The same of the trigonometric estimate."""
    total, apart = (x + y).square().sum(-1), (x - y).square().sum(-1)
    return total.exp() * (-2 * (x * y).sum(-1)).exp() * (1 - (-apart).exp()).square() / (2 * features)
