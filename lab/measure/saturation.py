"""Saturation of the softmax by the scale of its logits (chapter §1.1.2).

A row has logits s_j = sigma z_j over n keys, with z_j independent standard normal: the scores of a
query q against Gaussian keys, with sigma = |q|, about sqrt(d_k), or 1 after division by it. p =
softmax(s).
"""

import math

import pandas as pd
import torch
from scipy import integrate, stats


@torch.no_grad()
def saturation(sigma, n, generator, *, block=4096):
    """One row per entry of sigma (rows,), from independent rows of n logits with that scale.

    trace: tr(diag p - p pᵀ) = 1 - sum p², the trace of the softmax Jacobian, 0 if saturated; stein:
    sum p_j z_j / sigma, which has the same mean, by Gaussian integration by parts; entropy: of p,
    nats; largest: the largest weight. float64, `block` rows at a time.
    """
    parts = []
    for scale in torch.as_tensor(sigma, dtype=torch.float64).split(block):
        z = torch.randn(len(scale), n, generator=generator, dtype=torch.float64)
        p = (scale[:, None] * z).softmax(-1)
        columns = {"trace": 1 - p.square().sum(-1), "stein": (p * z).sum(-1) / scale}
        columns |= {"entropy": -torch.xlogy(p, p).sum(-1), "largest": p.amax(-1)}
        parts.append(pd.DataFrame({name: column.numpy() for name, column in columns.items()}))
    return pd.concat(parts, ignore_index=True)


def expected_maximum(n):
    """Mean of the maximum of n independent standard normal numbers."""

    def density(x):
        return x * n * stats.norm.pdf(x) * stats.norm.cdf(x) ** (n - 1)

    return integrate.quad(density, -10, 10, points=[0, math.sqrt(2 * math.log(n))], limit=200)[0]


def saturated_trace(sigma, n):
    """Asymptotic mean trace of a saturated softmax: expected_maximum(n) / sigma.

    As sigma grows, p puts all weight on the largest z, so the mean of sum p z tends to that of the
    maximum. The trace thus falls like 1 / sigma, not exponentially.
    """
    return expected_maximum(n) / sigma
