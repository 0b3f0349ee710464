"""From queries, keys and values to the mix (chapter §1.1.2). q (b, h, q, d); k, v (b, g, k, d) with g dividing h."""

import torch
import torch.nn.functional as F
from torch import nn

from lab.models.seams import Seam


class Score(nn.Module, Seam):
    def __init__(self, config):
        super().__init__()


class Softmax(Score, kind="softmax"):
    """Scaled dot product through torch's fused kernel; weights never materialised. Vaswani 2017 §3.2.1."""

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        """mask: booleans broadcastable to (b, h, q, k), True where attended; bias: (h, q, k), added to the scores."""
        if bias is not None:
            bias = bias.to(q.dtype)
            mask = bias if mask is None else torch.where(mask, bias, float("-inf"))
        grouped = k.shape[1] != q.shape[1]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=grouped)
