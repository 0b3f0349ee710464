"""Attention written out: with its weight matrix, and in tiles that never hold it.

Reference implementations to measure against the fused kernel (chapter §1.1.3; Rabe & Staats 2021; Dao 2022).
b batch, h head, q query, k key, n sequence, w head width.
"""

from functools import partial
from math import inf, sqrt

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def explicit_attention(q, k, v, *, causal=False, scale=None):
    """softmax(q kᵀ · scale) v, (b, h, q, w), through the whole weight tensor (b, h, q, k); scale is 1/√w by default.

    ValueError if causal with unequal lengths, where "the past" is ambiguous.
    """
    _require_square(q, k, causal)
    scores = (q * (1 / sqrt(q.shape[-1]) if scale is None else scale)) @ k.transpose(-2, -1)  # (b, h, q, k)
    if causal:
        scores = scores.masked_fill(_future(scores, 0, 0), -inf)
    return torch.softmax(scores, dim=-1) @ v  # (b, h, q, w)


def tiled_attention(q, k, v, *, block, causal=False):
    """The same output in tiles of block x block scores: a running maximum and sum per query replace the softmax.

    Memory beside inputs and output: block² scores a head forward. Under autograd each block of queries is computed
    again in the backward pass, so at most block · n weights a head are alive. ValueError as in `explicit_attention`,
    or if block < 1.
    """
    _require_square(q, k, causal)
    if block < 1:
        raise ValueError(f"block must be 1 or more, got {block}")
    differentiated = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (q, k, v))
    rows = []
    for start in range(0, q.shape[-2], block):
        inputs = (q[..., start : start + block, :], k, v, start, block, causal)
        if differentiated:
            rows.append(checkpoint(_query_block, *inputs, use_reentrant=False, preserve_rng_state=False))
        else:
            rows.append(_query_block(*inputs))
    return torch.cat(rows, dim=-2)  # (b, h, q, w)


KINDS = {
    "explicit": explicit_attention,
    "tiled": partial(tiled_attention, block=256),
    "fused": F.scaled_dot_product_attention,
}


def attention_call(kind, n, d_head, heads, backward=False, batch=1, device="cpu"):
    """A function without arguments that runs one attention core of this size, to be timed.

    `kind` is explicit, tiled or fused; with `backward` it also computes the gradients of q, k and v.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown kind of attention {kind!r}; choose from {sorted(KINDS)}")
    generator = torch.Generator(device).manual_seed(0)
    shape = (batch, heads, n, d_head)
    q, k, v = (torch.randn(shape, generator=generator, device=device, requires_grad=backward) for _ in range(3))

    def call():
        mixed = KINDS[kind](q, k, v)
        return torch.autograd.grad(mixed, (q, k, v), q.detach()) if backward else mixed

    return call


def run_attention(kind, n, d_head, heads, backward=False, batch=1, device="cpu"):
    """Makes q, k, v and runs one attention core once; for `peak_memory`, so the inputs count in the peak."""
    attention_call(kind, n, d_head, heads, backward, batch, device)()


def _query_block(q, k, v, start, block, causal):
    """Attention of the queries start, start + 1, … over all keys, one block of keys at a time."""
    q = q / sqrt(q.shape[-1])
    top = q.new_full((*q.shape[:-1], 1), -inf)  # (b, h, block, 1)
    total, mixed = 0.0, 0.0
    for at in range(0, start + q.shape[-2] if causal else k.shape[-2], block):
        scores = q @ k[..., at : at + block, :].transpose(-2, -1)  # (b, h, block, block)
        if causal:
            scores = scores.masked_fill(_future(scores, start, at), -inf)
        # The maximum cancels in the quotient, so no gradient flows through it. The first tile holds key 0, which
        # every query may see: from there on the maximum is finite.
        new_top = torch.maximum(top, scores.detach().amax(dim=-1, keepdim=True))
        shrink, weights = torch.exp(top - new_top), torch.exp(scores - new_top)
        total = total * shrink + weights.sum(dim=-1, keepdim=True)
        mixed = mixed * shrink + weights @ v[..., at : at + block, :]
        top = new_top
    return mixed / total


def _future(scores, first_query, first_key):
    """True where the key stands after the query, (q, k)."""
    query = torch.arange(first_query, first_query + scores.shape[-2], device=scores.device)
    key = torch.arange(first_key, first_key + scores.shape[-1], device=scores.device)
    return key > query[:, None]


def _require_square(q, k, causal):
    if causal and q.shape[-2] != k.shape[-2]:
        raise ValueError(f"causal attention needs as many queries as keys, got {q.shape[-2]} and {k.shape[-2]}")
