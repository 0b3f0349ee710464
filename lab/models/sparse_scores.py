"""Attention functions over fewer keys: window, LSH, low rank, top-k, gated offsets.

Arguments and results are as in scores.py: q (b, h, q, d), k and v (b, g, k, d) to (b, h, q, d).
Chapter §1.6.1, §1.6.3, §1.6.4.
"""

import math

import torch
from torch import nn
from torch.overrides import has_torch_function

from lab.models.gpt import AttentionFn, attend
from lab.models.kernels import hashes, repeat_kv, visible, windowed
from lab.models.masks import Window
from lab.models.sparse_masks import Band


class Local(AttentionFn, kind="local"):
    """Softmax over keys less than `size` positions away. Beltagy 2020.

    Causal attention without another mask or bias takes O(n · size) time. Other cases compute full
    attention with a mask.
    """

    by_distance = True  # cross-attention, which has no distances, rejects this kind

    def __init__(self, config, *, size):
        super().__init__(config)
        self.size = size

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        n, heads = k.shape[2], q.shape[1]
        alone = causal and mask is None and bias is None and q.shape[2] == n
        if alone and not has_torch_function((q,)):  # probes must see the full attention map
            return windowed(q, repeat_kv(k, heads), repeat_kv(v, heads), self.size)
        near = (Window if causal else Band)(size=self.size).dense(q.shape[2], n, device=q.device)
        return attend(q, k, v, near if mask is None else near & mask, bias)


class Lsh(AttentionFn, kind="lsh"):
    """Softmax over the keys that share the query's LSH bucket in at least one rotation.

    `rounds` is the number of rotations. The output of a query without such keys is 0. Kitaev 2020.
    Unlike in Reformer, queries and keys have separate projections. This implementation uses a mask.
    `sorted_lsh` is faster, for causal attention without mask or bias. The results are equal if no
    pair is lost (see `sorted_lsh`). For q = k this holds if no bucket is longer than a chunk.
    Raises ValueError for an odd number of buckets.
    """

    def __init__(self, config, *, buckets=4, rounds=2):
        super().__init__(config)
        if buckets % 2:
            raise ValueError(f"buckets must be even, got {buckets}")
        self.register_buffer("rotations", torch.randn(rounds, config.d_head, buckets // 2))

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        hashed_q = hashes(q, self.rotations)
        hashed_k = hashes(repeat_kv(k, q.shape[1]), self.rotations)
        same = (hashed_q[..., :, None] == hashed_k[..., None, :]).any(0)  # (b, h, q, k)
        same = same.tril() if causal else same
        return attend(q, k, v, same if mask is None else same & mask, bias)


class Linformer(AttentionFn, kind="linformer"):
    """Softmax over `rank` learned linear combinations of all keys and values. Wang 2020.

    Raises ValueError for causal attention, a mask or a bias, and for more than block_size keys.
    """

    def __init__(self, config, *, rank):
        super().__init__(config)
        self.keys = nn.Linear(config.block_size, rank, bias=False)
        self.values = nn.Linear(config.block_size, rank, bias=False)

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        if causal or mask is not None or bias is not None:
            raise ValueError(
                "linformer mixes all positions: it has no causal form and takes no mask or bias"
            )
        n = k.shape[2]
        if n > self.keys.in_features:
            raise ValueError(f"linformer supports up to {self.keys.in_features} positions, got {n}")
        k = self.keys.weight[:, :n] @ k  # (b, g, rank, d)
        v = self.values.weight[:, :n] @ v
        return attend(q, k, v)


class TopKeys(AttentionFn, kind="top-k"):
    """Softmax over the `k` visible keys with the highest scores. Zhao 2019.

    Raises ValueError for k < 1.
    """

    def __init__(self, config, *, k=8):
        super().__init__(config)
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
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
    """Softmax with a trained gate per head and distance between query and key. Louizos 2018.

    Weights are proportional to gate · e^score; a gate of 0 removes the pair. Distances of
    reach - 1 or more share the last gate. Gates have hard concrete distributions, in which exactly
    0 and 1 have positive probability. In training they are drawn from torch's global generator; in
    evaluation they have no noise. All gates start open; `openness_loss` closes the gates that the
    task does not need.
    """

    by_distance = True
    repeatable = False
    undecayed = ("logit",)
    # as in the paper: a sigmoid stretched to (LOW, HIGH), then clamped to [0, 1]
    TEMPERATURE = 2 / 3
    LOW = -0.1
    HIGH = 1.1

    def __init__(self, config, *, reach, start=3.0):
        super().__init__(config)
        self.logit = nn.Parameter(torch.full((config.n_heads, reach), float(start)))

    def gates(self):
        """Gates (h, reach) in [0, 1]; random in training."""
        logit = self.logit
        if self.training:
            noise = torch.empty_like(logit).uniform_(1e-6, 1 - 1e-6)
            logit = (logit + noise.logit()) / self.TEMPERATURE
        return (torch.sigmoid(logit) * (self.HIGH - self.LOW) + self.LOW).clamp(0, 1)

    def openness(self):
        """Expected fraction of gates above 0, as a differentiable scalar."""
        return torch.sigmoid(self.logit - self.TEMPERATURE * math.log(-self.LOW / self.HIGH)).mean()

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        at = torch.arange(k.shape[2], device=q.device)
        offset = (at[k.shape[2] - q.shape[2] :, None] - at).abs().clamp(max=self.logit.shape[1] - 1)
        gate = self.gates()[:, offset]  # (h, q, k)
        mask = visible(gate, mask, causal)
        mask = gate > 0 if mask is None else mask & (gate > 0)
        log = gate.clamp(min=1e-6).log()
        return attend(q, k, v, mask, log if bias is None else bias + log)


def openness_loss(model):
    """Mean of `openness` over all OffsetGate modules of the model.

    Add it to the training loss with a weight. Raises ValueError if the model has no OffsetGate.
    """
    found = [module.openness() for module in model.modules() if isinstance(module, OffsetGate)]
    if not found:
        raise ValueError("the model has no offset gates")
    return torch.stack(found).mean()
