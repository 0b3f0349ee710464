"""Causal attention with rotary positions and ALiBi in three kernels, for timing and memory.

stored mask   the additive mask is stored: for ALiBi h x n x n numbers, for rotary n x n
flex          compiled FlexAttention: skips masked pairs and computes the bias of ALiBi on the fly
fused causal  torch's fused causal kernel, which takes no bias; softmax ignores a constant per row,
              so -s (i - j) becomes s j: one more component of each query and key

Letters: h head, n tokens, w head width.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from lab.models.gpt import ModelConfig, Transformer


@cache
def compiled_flex_attention():
    """Compiled FlexAttention; the first call per size needs a C++ compiler and some seconds."""
    return torch.compile(flex_attention)


def inputs(n, d, heads):
    """Random queries, keys and values of one text, each (1, h, n, w)."""
    return torch.randn(3, 1, heads, n, d // heads, generator=torch.Generator().manual_seed(0))


def kernel_call(position, kernel, n, d, heads):
    """A forward call for timing; `position` is "none", "rotary" or "alibi".

    The rotation of queries and keys is part of the call.
    """
    q, k, v = inputs(n, d, heads)
    sizes = {"vocab_size": 2, "block_size": n, "d_model": d, "n_layers": 1, "n_heads": heads}
    rope = Transformer(ModelConfig(**sizes, position="rotary")).position
    alibi = Transformer(ModelConfig(**sizes, position="alibi")).position

    def rotated():
        return rope.at_query_key(q, k) if position == "rotary" else (q, k)

    if kernel == "stored mask":
        mask = alibi.bias(n, n) if position == "alibi" else torch.zeros(n, n)
        mask.masked_fill_(torch.ones(n, n, dtype=torch.bool).triu_(1), -torch.inf)
        mask = mask.reshape(1, -1, n, n)  # torch's path for other ranks is slower
        return lambda: F.scaled_dot_product_attention(*rotated(), v, attn_mask=mask)
    if kernel == "flex":
        seen = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device="cpu")
        bias = (
            (lambda score, b, h, i, j: score - alibi.slope[h] * (i - j))
            if position == "alibi"
            else None
        )
        return lambda: compiled_flex_attention()(*rotated(), v, score_mod=bias, block_mask=seen)
    if position == "alibi":
        return lambda: by_column(q, k, v, alibi.slope)
    return lambda: F.scaled_dot_product_attention(*rotated(), v, is_causal=True)


def by_column(q, k, v, slope):
    """Causal ALiBi attention without a bias, (1, h, n, w).

    The slope is one more component of each query, the position one more component of each key.
    """
    width = q.shape[-1]
    place = torch.arange(k.shape[2], dtype=k.dtype)[:, None]
    scale = (width + 1) ** 0.5  # the kernel divides by this instead of width ** 0.5
    wide = torch.cat(
        [q * (scale / width**0.5), (slope * scale)[:, None, None].expand(*q.shape[:3], 1)], -1
    )
    keys = torch.cat([k, place.expand(*k.shape[:3], 1)], -1)
    return F.scaled_dot_product_attention(wide, keys, F.pad(v, (0, 1)), is_causal=True)[..., :width]


@torch.no_grad()
def run_kernel(position, kernel, n, d, heads):
    """Prepare and run one call, so that `peak_memory` includes a stored mask."""
    kernel_call(position, kernel, n, d, heads)()
