"""From queries, keys and values to the mix (chapter §1.1.2).

b batch, h query head, g key-value head (g divides h), q query, k key, d head width. Every kind takes q (b, h, q, d), k
and v (b, g, k, d); mask: booleans broadcastable to (b, h, q, k), True where attended; bias: (h, q, k), added to the
scores; causal: for as many queries as keys. It returns (b, h, q, d), 0 where a query sees no key. All kinds but
sparsemax mix in F.scaled_dot_product_attention, where probes observe them.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import has_torch_function

from lab.models.kernels import attend, repeat_kv, visible
from lab.models.precision import wide
from lab.models.registry import Seam

SCALES = {  # factor on the scores, from the head width
    "rsqrt": lambda d: 1 / math.sqrt(d),
    "none": lambda d: 1.0,
    "half": lambda d: 1 / (2 * math.sqrt(d)),
    "inverse": lambda d: 1 / d,
}


def factor(scale, d):
    """The number that multiplies the scores of heads d wide. ValueError lists the known scales."""
    if scale not in SCALES:
        raise ValueError(f"scale {scale!r} is unknown; choose one of {', '.join(SCALES)}")
    return SCALES[scale](d)


class Score(nn.Module, Seam):
    by_distance = False  # True where it goes by how far a key stands from its query, beside mask and bias
    by_products = False  # True where only products of queries and keys count: both may be turned

    def __init__(self, config):
        super().__init__()


class Softmax(Score, kind="softmax"):
    """Scaled dot product through torch's fused kernel; weights never materialised. Vaswani 2017 §3.2.1."""

    by_products = True

    def __init__(self, config, *, scale="rsqrt"):
        super().__init__(config)
        self.factor = None if scale == "rsqrt" else factor(scale, config.d_head)  # None: the kernel's own, 1 / sqrt(d)

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        one_query = q.shape[2] == 1 and k.shape[1] != q.shape[1] and not causal
        if one_query and not has_torch_function((q,)):  # a probe is shown every query head by itself
            return self.decode(q, k, v, mask, bias)
        return attend(q, k, v, mask, bias, causal, self.factor)

    def decode(self, q, k, v, mask=None, bias=None):
        """The same for one query (b, h, 1, d) and fewer key-value heads: the r = h / g query heads of a group stand in
        the kernel as r queries, so that it reads every key once for all of them instead of r times."""
        g = k.shape[1]
        if mask is not None:
            mask = mask.expand(*q.shape[:3], k.shape[2]).unflatten(1, (g, -1)).squeeze(3)  # (b, g, r, k)
        if bias is not None:
            bias = bias.unflatten(0, (g, -1)).squeeze(2)  # (g, r, k)
        folded = q.unflatten(1, (g, -1)).squeeze(3)  # (b, g, r, d)
        return attend(folded, k, v, mask, bias, scale=self.factor).flatten(1, 2).unsqueeze(2)


class Cosine(Score, kind="cosine"):
    """cos(q, k) / temperature: lengths do not count. `learned`: a trained temperature for each head. Henry 2020."""

    by_products = True

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


class BilinearScore(Score, kind="bilinear"):
    """qᵀ W k / sqrt(d) with one W for all heads. Luong 2015 "general"."""

    def __init__(self, config):
        super().__init__(config)
        self.form = nn.Linear(config.d_head, config.d_head, bias=False)

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        return attend(q, self.form(k), v, mask, bias, causal)


class Additive(Score, kind="additive"):
    """vᵀ tanh(W_q q + W_k k), `width` (default d) tanh a pair; one W_q, W_k, v for all heads. Bahdanau 2015."""

    def __init__(self, config, *, width=None):
        super().__init__(config)
        width = width or config.d_head
        self.query = nn.Linear(config.d_head, width, bias=config.bias)
        self.key = nn.Linear(config.d_head, width, bias=False)
        self.sum = nn.Linear(width, 1, bias=False)

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        queries, keys = self.query(q), repeat_kv(self.key(k), q.shape[1])  # (b, h, q, width), (b, h, k, width)
        scores = self.sum(torch.tanh(queries[:, :, :, None] + keys[:, :, None])).squeeze(-1)  # (b, h, q, k)
        scores = scores if bias is None else scores + bias
        mask = visible(scores, mask, causal)
        empty = [x.new_zeros(*x.shape[:3], 1) for x in (q, k)]  # their product is 0: the bias is the whole score
        return attend(*empty, v, mask, scores)


class Sparsemax(Score, kind="sparsemax"):
    """Scaled dot product, weights by projection onto the simplex: small ones are exactly 0. Martins 2016."""

    by_products = True

    def __init__(self, config, *, scale="rsqrt"):
        super().__init__(config)
        self.factor = factor(scale, config.d_head)

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        k, v = repeat_kv(k, q.shape[1]), repeat_kv(v, q.shape[1])
        scores = (q * self.factor) @ k.transpose(-2, -1)  # (b, h, q, k)
        scores = scores if bias is None else scores + bias
        return sparsemax(scores, visible(scores, mask, causal)).to(v.dtype) @ v


def sparsemax(scores, mask=None):
    """The point of the simplex nearest to each row of scores (..., k), in the type of the scores.

    Keys with mask False are left out; a row without any other is 0. It is computed in float32 at
    least: in bfloat16 the support would be missed, and rows would not sum to 1.
    """
    dtype, scores = scores.dtype, wide(scores)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    scores = scores - scores.detach().amax(-1, keepdim=True)
    with torch.no_grad():  # the support: the longest run of largest scores whose threshold lies below its least
        falling = scores.clamp(min=-1).sort(-1, descending=True).values  # 1 below the largest there is no weight
        threshold = (falling.cumsum(-1) - 1) / torch.arange(1, scores.shape[-1] + 1, device=scores.device)
        size = (falling > threshold).sum(-1, keepdim=True).clamp(min=1)  # 0 only among NaN
        support = scores > threshold.gather(-1, size - 1)
        if mask is not None:
            support = support & mask
    total = scores.where(support, 0).sum(-1, keepdim=True)
    return (scores - (total - 1) / size).where(support, 0).clamp(min=0).to(dtype)
