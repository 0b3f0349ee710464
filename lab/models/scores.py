"""Attention functions (chapter §1.1.2).

Every kind takes q (b, h, q, d), k and v (b, g, k, d) and returns (b, h, q, d), with 0 for a query
that sees no key. `mask` is boolean, broadcastable to (b, h, q, k), True where attended; `bias`
(h, q, k) is added to the scores; `causal` requires as many queries as keys. All kinds except
sparsemax call F.scaled_dot_product_attention, which probes intercept. Shape letters: b batch,
h query head, g key-value head (g divides h), q query, k key, d head width.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from lab.models.gpt import AttentionFn, attend
from lab.models.kernels import factor, repeat_kv, visible
from lab.models.precision import wide


class Cosine(AttentionFn, kind="cosine"):
    """Softmax of cos(q, k) / temperature, which ignores vector lengths. Henry 2020.

    With `learned`, each head trains its temperature. Raises ValueError unless temperature > 0.
    """

    def __init__(self, config, *, temperature=0.1, learned=False):
        super().__init__(config)
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0, got {temperature}")
        log = torch.full((config.n_heads,), math.log(temperature))
        if learned:
            self.log_temperature = nn.Parameter(log)
        else:
            self.register_buffer("log_temperature", log)

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        q = F.normalize(q, dim=-1) / self.log_temperature.exp()[:, None, None]
        return attend(q, F.normalize(k, dim=-1), v, mask, bias, causal, 1.0)


class BilinearScore(AttentionFn, kind="bilinear"):
    """Softmax of qᵀ W k / sqrt(d), with one W for all heads. Luong 2015 ("general")."""

    def __init__(self, config):
        super().__init__(config)
        self.form = nn.Linear(config.d_head, config.d_head, bias=False)

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        return attend(q, self.form(k), v, mask, bias, causal)


class Additive(AttentionFn, kind="additive"):
    """Softmax of vᵀ tanh(W_q q + W_k k); all heads share W_q, W_k and v. Bahdanau 2015.

    The hidden layer has `width` units (default d).
    """

    def __init__(self, config, *, width=None):
        super().__init__(config)
        width = width or config.d_head
        self.query = nn.Linear(config.d_head, width, bias=config.bias)
        self.key = nn.Linear(config.d_head, width, bias=False)
        self.sum = nn.Linear(width, 1, bias=False)

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        queries = self.query(q)  # (b, h, q, width)
        keys = repeat_kv(self.key(k), q.shape[1])  # (b, h, k, width)
        hidden = torch.tanh(queries[:, :, :, None] + keys[:, :, None])
        scores = self.sum(hidden).squeeze(-1)  # (b, h, q, k)
        scores = scores if bias is None else scores + bias
        mask = visible(scores, mask, causal)
        # q = k = 0, so that the scores consist of the bias only
        empty = [x.new_zeros(*x.shape[:3], 1) for x in (q, k)]
        return attend(*empty, v, mask, scores)


class Sparsemax(AttentionFn, kind="sparsemax"):
    """Scaled dot-product attention with sparsemax instead of softmax. Martins 2016.

    The weights are the projection of the scores onto the simplex, so small ones are exactly 0.
    """

    def __init__(self, config, *, scale="rsqrt"):
        super().__init__(config)
        self.factor = factor(scale, config.d_head)

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        k = repeat_kv(k, q.shape[1])
        v = repeat_kv(v, q.shape[1])
        scores = (q * self.factor) @ k.transpose(-2, -1)  # (b, h, q, k)
        scores = scores if bias is None else scores + bias
        return sparsemax(scores, visible(scores, mask, causal)).to(v.dtype) @ v


def sparsemax(scores, mask=None):
    """Project each row of scores (..., k) onto the simplex. Returns the dtype of the scores.

    Keys with mask False get weight 0, and rows without visible keys are 0. The computation uses
    float32 or wider: in bfloat16 the support would be wrong and rows would not sum to 1.
    """
    dtype = scores.dtype
    scores = wide(scores)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    scores = scores - scores.detach().amax(-1, keepdim=True)
    with torch.no_grad():
        # The support is the largest set of top scores in which every score exceeds the threshold of
        # the set. Scores that are 1 or more below the maximum get weight 0.
        falling = scores.clamp(min=-1).sort(-1, descending=True).values
        count = torch.arange(1, scores.shape[-1] + 1, device=scores.device)
        threshold = (falling.cumsum(-1) - 1) / count
        size = (falling > threshold).sum(-1, keepdim=True).clamp(min=1)  # 0 only if a score is NaN
        support = scores > threshold.gather(-1, size - 1)
        if mask is not None:
            support = support & mask
    total = scores.where(support, 0).sum(-1, keepdim=True)
    return (scores - (total - 1) / size).where(support, 0).clamp(min=0).to(dtype)
