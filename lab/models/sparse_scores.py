"""Scores that leave keys out by what was learnt: the k best of each query, or offsets whose gate closed (§1.6.4).

As in scores.py: q (b, h, q, d), k and v (b, g, k, d) to (b, h, q, d).
"""

import math

import torch
from torch import nn

from lab.models.scores import Score, mix, repeated, visible


class TopKeys(Score, kind="top-k"):
    """Softmax over the `k` best of the keys that a query sees, and over all where there are no more. Zhao 2019."""

    def __init__(self, config, *, k=8):
        super().__init__(config)
        if k < 1:
            raise ValueError(f"top-k keeps at least one key, got k {k}")
        self.k = k

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        with torch.no_grad():
            scores = q @ repeated(k, q.shape[1]).mT / math.sqrt(q.shape[-1])
            scores = scores if bias is None else scores + bias
            mask = visible(scores, mask, causal)
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf)
            best = scores.topk(min(self.k, scores.shape[-1]), -1).indices
            kept = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True)
        return mix(q, k, v, kept if mask is None else kept & mask, bias)


class OffsetGate(Score, kind="offset-gate"):
    """Softmax whose weights are gated by distance, a trained gate for each head and offset up to `reach`; beyond, one.

    weight ~ gate e^score: where the gate is 0 the pair is not attended. Gates are hard concrete (Louizos 2018): drawn
    in training from torch's own random numbers, with exact zeros and ones, their expected value afterwards. All start
    open; `openness_loss` closes those that the task does not hold open.
    """

    by_distance, undecayed = True, ("logit",)
    TEMPERATURE, LOW, HIGH = 2 / 3, -0.1, 1.1  # of the paper: a sigmoid stretched beyond 0..1, then cut

    def __init__(self, config, *, reach, start=3.0):
        super().__init__(config)
        self.logit = nn.Parameter(torch.full((config.n_heads, reach), float(start)))

    def gates(self):
        """(h, reach), each in 0..1."""
        logit = self.logit
        if self.training:
            noise = torch.empty_like(logit).uniform_(1e-6, 1 - 1e-6)
            logit = (logit + noise.logit()) / self.TEMPERATURE
        return (torch.sigmoid(logit) * (self.HIGH - self.LOW) + self.LOW).clamp(0, 1)

    def openness(self):
        """Expected share of gates that are not 0, differentiable."""
        return torch.sigmoid(self.logit - self.TEMPERATURE * math.log(-self.LOW / self.HIGH)).mean()

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        at = torch.arange(k.shape[2], device=q.device)
        offset = (at[k.shape[2] - q.shape[2] :, None] - at).abs().clamp(max=self.logit.shape[1] - 1)
        gate = self.gates()[:, offset]  # (h, q, k)
        mask, log = visible(gate, mask, causal), gate.clamp(min=1e-6).log()
        return mix(q, k, v, gate > 0 if mask is None else mask & (gate > 0), log if bias is None else bias + log)


def openness_loss(model):
    """Mean expected share of open gates of all offset gates in a model, to be added to a loss with a weight.

    ValueError where the model has none.
    """
    found = [module.openness() for module in model.modules() if isinstance(module, OffsetGate)]
    if not found:
        raise ValueError("the model has no offset gates")
    return torch.stack(found).mean()
