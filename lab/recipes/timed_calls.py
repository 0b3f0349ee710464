"""Calls without arguments for timing and counting: a training step, and decoding.

Letters: n sequence or context, d model width, h query heads, g key-value heads, B sequences at
once, L layers.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from lab.models.gpt import ModelConfig, Transformer


def training_step(
    n_layers, n, d, batch, checkpointed=False, device="cpu", residual="pre", heads=None
):
    """A call that returns the gradients of the loss of a causal byte model of n_layers.

    With `checkpointed`, each block keeps only its input and runs again in the backward pass (Chen
    2016).
    """
    sizes = {
        "block_size": n,
        "d_model": d,
        "n_layers": n_layers,
        "n_heads": heads or max(1, d // 64),
    }
    model = Transformer(ModelConfig(vocab_size=256, residual=residual, **sizes)).to(device)
    if checkpointed:
        for block in model.blocks:
            block.forward = partial(
                checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False
            )
    tokens = torch.randint(256, (batch, n + 1), generator=torch.Generator().manual_seed(0))
    tokens = tokens.to(device)

    def call():
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        return torch.autograd.grad(loss, tuple(model.parameters()))

    return call


def run_training_step(*sizes, **options):
    """Create a model and run one training step, for `peak_memory` with weights and gradients."""
    training_step(*sizes, **options)()


def saved_bytes(call):
    """Bytes that autograd saves for the backward pass during `call`; counts each storage once."""
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = (tensor.untyped_storage().nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        call()
    return sum(size for size, _ in kept.values())


def decode_call(n, d, h, g, *, B=1, L=2, tokens=4, device="cpu"):
    """A call that generates the last `tokens` positions of a context of n for each of B sequences.

    It generates one position at a time. The caches are allocated and filled once and reused by
    every call. Raises ValueError unless 0 < tokens <= n.
    """
    if not 0 < tokens <= n:
        raise ValueError(f"tokens must be 1..{n}, the context, got {tokens}")
    sizes = {"block_size": n, "d_model": d, "n_layers": L, "n_heads": h, "kv_heads": g}
    # without positions, whose cost does not depend on g
    model = Transformer(ModelConfig(vocab_size=256, position="none", **sizes))
    model = model.to(device).eval().requires_grad_(False)
    caches = model.caches(B)
    new = torch.zeros(B, 1, dtype=torch.long, device=device)
    for cache in caches:  # pages are allocated only when they are written
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
