"""One step of generation and one prompt, as calls without arguments, to be timed.

n context, d model width, h query heads, g key-value heads (d / h wide), B sequences at once, L layers.
"""

import torch

from lab.models.transformer import ModelConfig, Transformer


def without_position(n, d, h, g, L=2):
    """A causal model of bytes for timings: no position encoding, whose small cost is the same for every g."""
    config = ModelConfig(
        vocabulary=256, context=n, d_model=d, n_layers=L, n_heads=h, kv_heads=g, position="none"
    )  # fmt: skip
    return Transformer(config).eval().requires_grad_(False)


def decode_call(n, d, h, g, *, B=1, L=2, tokens=4, device="cpu"):
    """A call that generates the last `tokens` positions of a context of n, one at a time, for each of B sequences.

    The caches are allocated once, filled up to there, and used again by every call.
    """
    if not 0 < tokens <= n:
        raise ValueError(f"tokens must be 1..{n}, the context, got {tokens}")
    model = without_position(n, d, h, g, L).to(device)
    caches, new = model.caches(B), torch.zeros(B, 1, dtype=torch.long, device=device)
    for cache in caches:  # memory that was never written is not real memory yet
        cache.keys.fill_(0.01)
        cache.values.fill_(0.01)

    @torch.no_grad()
    def call():
        for cache in caches:
            cache.length = n - tokens
        for _ in range(tokens):
            logits = model(new, caches=caches)
        return logits

    return call


def prefill_call(n, d, h, g, *, B=1, L=2, device="cpu"):
    """A call that reads a prompt of n tokens into preallocated caches, for each of B sequences."""
    model = without_position(n, d, h, g, L).to(device)
    caches, prompt = model.caches(B), torch.zeros(B, n, dtype=torch.long, device=device)

    @torch.no_grad()
    def call():
        for cache in caches:
            cache.length = 0
        return model(prompt, caches=caches)

    return call
