"""Scores that look at fewer keys: a window, hashed buckets, fewer keys made of all, the k best, or
open offsets.

As in scores.py: q (b, h, q, d), k and v (b, g, k, d) to (b, h, q, d). Chapter §1.6.1, §1.6.3,
§1.6.4.
"""

import math

import torch
from torch import nn

from lab.models.gpt import AttentionFn, attend
from lab.models.kernels import hashes, repeat_kv, visible, windowed
from lab.models.masks import Window
from lab.models.sparse_masks import Band


class Local(AttentionFn, kind="local"):
    """Softmax over keys nearer than `size`: a causal model in n · size steps, any other by a mask.

    Beltagy 2020.
    """

    by_distance, by_products = True, True

    def __init__(self, config, *, size):
        super().__init__(config)
        self.size = size

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        n, heads = k.shape[2], q.shape[1]
        if causal and mask is None and bias is None and q.shape[2] == n:
            return windowed(q, repeat_kv(k, heads), repeat_kv(v, heads), self.size)
        near = (Window if causal else Band)(size=self.size).dense(q.shape[2], n, device=q.device)
        return attend(q, k, v, near if mask is None else near & mask, bias)


class Lsh(AttentionFn, kind="lsh"):
    """Softmax over the keys that fall into the query's bucket in any of `rounds` random rotations;
    0 where none does.

    What Reformer's sorted chunks compute where no bucket is cut; here by a mask, `sorted_lsh` is
    the cheap way. Queries and keys stay apart. Kitaev 2020.
    """

    def __init__(self, config, *, buckets=4, rounds=2):
        super().__init__(config)
        if buckets % 2:
            raise ValueError(f"buckets come in opposite pairs: give an even number, not {buckets}")
        self.register_buffer("rotations", torch.randn(rounds, config.d_head, buckets // 2))

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        hashed_q, hashed_k = (
            hashes(q, self.rotations),
            hashes(repeat_kv(k, q.shape[1]), self.rotations),
        )
        same = (hashed_q[..., :, None] == hashed_k[..., None, :]).any(0)  # (b, h, q, k)
        same = same.tril() if causal else same
        return attend(q, k, v, same if mask is None else same & mask, bias)


class Linformer(AttentionFn, kind="linformer"):
    """Softmax over `rank` learned mixtures of the keys of a whole sequence, up to the configured
    context. Wang 2020.

    A mixture holds keys of all positions, so there is no causal form, no mask and no bias:
    ValueError for them.
    """

    def __init__(self, config, *, rank):
        super().__init__(config)
        self.keys = nn.Linear(config.context, rank, bias=False)
        self.values = nn.Linear(config.context, rank, bias=False)

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        if causal or mask is not None or bias is not None:
            raise ValueError(
                "linformer mixes all positions: it has no causal form and takes no mask or bias"
            )
        n = k.shape[2]
        if n > self.keys.in_features:
            raise ValueError(
                f"linformer is trained for {self.keys.in_features} positions, {n} were given"
            )
        k, v = (
            part.weight[:, :n] @ x for part, x in ((self.keys, k), (self.values, v))
        )  # (b, g, rank, d)
        return attend(q, k, v)


class TopKeys(AttentionFn, kind="top-k"):
    """Softmax over the `k` best of the keys that a query sees, and over all where there are no
    more. Zhao 2019.
    """

    by_products = True

    def __init__(self, config, *, k=8):
        super().__init__(config)
        if k < 1:
            raise ValueError(f"top-k keeps at least one key, got k {k}")
        self.k = k

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        with torch.no_grad():
            scores = q @ repeat_kv(k, q.shape[1]).mT / math.sqrt(q.shape[-1])
            scores = scores if bias is None else scores + bias
            mask = visible(scores, mask, causal)
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf)
            best = scores.topk(min(self.k, scores.shape[-1]), -1).indices
            kept = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True)
        return attend(q, k, v, kept if mask is None else kept & mask, bias)


class OffsetGate(AttentionFn, kind="offset-gate"):
    """Softmax whose weights are gated by distance, a trained gate for each head and offset up to
    `reach`; beyond, one.

    weight ~ gate e^score: where the gate is 0 the pair is not attended. Gates are hard concrete
    (Louizos 2018): drawn in training from torch's own random numbers, with exact zeros and ones,
    their expected value afterwards. All start open; `openness_loss` closes those that the task does
    not hold open.
    """

    by_distance, by_products, repeatable = True, True, False
    undecayed = ("logit",)
    TEMPERATURE, LOW, HIGH = (
        2 / 3,
        -0.1,
        1.1,
    )  # of the paper: a sigmoid stretched beyond 0..1, then cut

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
        return attend(
            q,
            k,
            v,
            gate > 0 if mask is None else mask & (gate > 0),
            log if bias is None else bias + log,
        )


def openness_loss(model):
    """Mean expected share of open gates of all offset gates in a model, to be added to a loss with
    a weight.

    ValueError where the model has none.
    """
    found = [module.openness() for module in model.modules() if isinstance(module, OffsetGate)]
    if not found:
        raise ValueError("the model has no offset gates")
    return torch.stack(found).mean()
