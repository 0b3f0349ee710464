"""Argument-free functions for measuring time and memory: loss with gradients, and decoding.

Letters: n sequence length, d model width, h query heads, g key-value heads, B batch size, L layers.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from lab.models.gpt import ModelConfig, Transformer


def training_step(
    n_layers, n, d, batch, checkpointed=False, device="cpu", residual="pre", heads=None
):
    """Build a causal byte model. Returns a function that computes its loss and gradients.

    It does not update the weights. With checkpointed=True each block saves only its input and runs
    again in the backward pass (Chen et al. 2016). heads: default d / 64, at least 1.
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
    """Build a model and compute its loss and gradients once, without an update.

    So peak_memory counts weights and gradients.
    """
    training_step(*sizes, **options)()


def saved_bytes(call):
    """Bytes that autograd saves for the backward pass during call(); each storage counts once."""
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = (tensor.untyped_storage().nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        call()
    return sum(size for size, _ in kept.values())


def decode_call(n, d, h, g, *, B=1, L=2, tokens=4, device="cpu"):
    """Build a model and caches. Returns a function that decodes the last `tokens` of n positions.

    The function decodes one position at a time, for B sequences in parallel, and always reuses the
    same caches. Raises ValueError unless 0 < tokens <= n.
    """
    if not 0 < tokens <= n:
        raise ValueError(f"tokens must be 1..{n}, the context, got {tokens}")
    sizes = {"block_size": n, "d_model": d, "n_layers": L, "n_heads": h, "kv_heads": g}
    # no position encoding: RoPE would add the cost of rotating h + g vectors per token
    model = Transformer(ModelConfig(vocab_size=256, position="none", **sizes))
    model = model.to(device).eval().requires_grad_(False)
    caches = model.caches(B)
    new = torch.zeros(B, 1, dtype=torch.long, device=device)
    for cache in caches:  # write once, so that the memory is allocated before timing
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
