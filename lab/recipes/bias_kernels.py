"""Causal attention under rotary positions and under ALiBi, each in three kernels: calls to be
timed, and their memory.

stored mask   what is added to the scores stands in memory, made once: of ALiBi h x n x n numbers, of rotary n x n
flex          FlexAttention, compiled: it knows what is masked, and makes the bias of ALiBi as it goes
fused causal  torch's fused kernel, which knows what is causal and takes no bias. Softmax does not feel what is added to
              a whole row of scores, so -s (i - j) may become s j: one more number in each query and
              key

h head, n tokens, w head width.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from lab.models.gpt import ModelConfig, Transformer


@cache
def compiled():
    """FlexAttention, which torch compiles at its first call for a size; that takes a C++ compiler
    and some seconds.
    """
    return torch.compile(flex_attention)


def inputs(n, d, heads):
    """Queries, keys and values of one text of random numbers, each (1, h, n, w)."""
    return torch.randn(3, 1, heads, n, d // heads, generator=torch.Generator().manual_seed(0))


def kernel_call(position, kernel, n, d, heads):
    """A call, forward, with position "none", "rotary" or "alibi"; turning queries and keys is part
    of the call.
    """
    q, k, v = inputs(n, d, heads)
    sizes = {"vocabulary": 2, "context": n, "d_model": d, "n_layers": 1, "n_heads": heads}
    rope, tax = (
        Transformer(ModelConfig(**sizes, position=kind)).position for kind in ("rotary", "alibi")
    )

    def turned():
        return rope.at_query_key(q, k) if position == "rotary" else (q, k)

    if kernel == "stored mask":
        mask = tax.bias(n, n) if position == "alibi" else torch.zeros(n, n)
        mask.masked_fill_(torch.ones(n, n, dtype=torch.bool).triu_(1), -torch.inf)
        mask = mask.reshape(
            1, -1, n, n
        )  # of another rank than the scores, torch would take a slower path
        return lambda: F.scaled_dot_product_attention(*turned(), v, attn_mask=mask)
    if kernel == "flex":
        seen = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device="cpu")
        bias = (
            (lambda score, b, h, i, j: score - tax.slope[h] * (i - j))
            if position == "alibi"
            else None
        )
        return lambda: compiled()(*turned(), v, score_mod=bias, block_mask=seen)
    if position == "alibi":
        return lambda: by_column(q, k, v, tax.slope)
    return lambda: F.scaled_dot_product_attention(*turned(), v, is_causal=True)


def by_column(q, k, v, slope):
    """Causal attention under ALiBi without a bias: slope and place as one more number of each query
    and key.
    """
    width, place = q.shape[-1], torch.arange(k.shape[2], dtype=k.dtype)[:, None]
    scale = (width + 1) ** 0.5  # the kernel divides by it, where width ** 0.5 is wanted
    wide = torch.cat(
        [q * (scale / width**0.5), (slope * scale)[:, None, None].expand(*q.shape[:3], 1)], -1
    )
    keys = torch.cat([k, place.expand(*k.shape[:3], 1)], -1)
    return F.scaled_dot_product_attention(wide, keys, F.pad(v, (0, 1)), is_causal=True)[..., :width]


@torch.no_grad()
def run_kernel(position, kernel, n, d, heads):
    """Makes all that a call needs and calls it once, for `peak_memory`: a stored mask counts in the
    peak.
    """
    kernel_call(position, kernel, n, d, heads)()
