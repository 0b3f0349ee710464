"""How the scale of logits saturates the softmax, what is left of its gradient, exactly and by a law
(chapter §1.1.2).

A row has logits s_j = sigma z_j over n keys with z_j independent standard normal. That is what a
query q makes of Gaussian keys, with sigma = |q|, about sqrt(d_k), or 1 where scores are divided by
it. p = softmax(s).
"""

import math

import pandas as pd
import torch
from scipy import integrate, stats


@torch.no_grad()
def saturation(sigma, n, generator, *, block=4096):
    """One row for each sigma (rows,), of independent rows of n logits with that standard deviation.

    trace: tr(diag p - p pᵀ) = 1 - sum p², the trace of the softmax's Jacobian, 0 where it is
    saturated; stein: sum p_j z_j / sigma, which has the same mean exactly, by Gaussian integration
    by parts; entropy: of p, nats; largest: the largest weight. float64, `block` rows at a time.
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
    """Mean of the largest of n independent standard normal numbers."""
    density = lambda x: x * n * stats.norm.pdf(x) * stats.norm.cdf(x) ** (n - 1)  # noqa: E731
    return integrate.quad(density, -10, 10, points=[0, math.sqrt(2 * math.log(n))], limit=200)[0]


def saturated_trace(sigma, n):
    """The law of a saturated softmax: the mean trace tends to expected_maximum(n) / sigma, not
    exponentially to 0.

    As sigma grows p puts all on the largest z, so the mean of sum p z is that of the largest of n.
    """
    return expected_maximum(n) / sigma
