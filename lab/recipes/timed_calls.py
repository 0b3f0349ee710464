"""Calls without arguments for timing: parts of a block, attention kernels, training, decoding.

Letters: b batch, h head, g key-value head, n sequence or context, d model width, w head width, B
sequences at once, L layers.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from lab.models.gpt import ModelConfig, Transformer
from lab.models.kernels import bigbird_blocks, block_sparse, sorted_lsh, windowed
from lab.models.linear import chunked, orthogonal_rows, positive_features


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


def without_position(n, d, h, g, L=2):
    """A causal byte model for timings, without positions: their cost does not depend on g."""
    config = ModelConfig(
        vocab_size=256, block_size=n, d_model=d, n_layers=L, n_heads=h, kv_heads=g, position="none"
    )
    return Transformer(config).eval().requires_grad_(False)


def decode_call(n, d, h, g, *, B=1, L=2, tokens=4, device="cpu"):
    """A call that generates the last `tokens` positions of a context of n for each of B sequences.

    It generates one position at a time. The caches are allocated and filled once and reused by
    every call. Raises ValueError unless 0 < tokens <= n.
    """
    if not 0 < tokens <= n:
        raise ValueError(f"tokens must be 1..{n}, the context, got {tokens}")
    model = without_position(n, d, h, g, L).to(device)
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


# Attention kernels without a model, at equal sizes: forward, backward, or one decoded token. All
# but linformer are causal.
SIZES = {"window": 128, "block": 32, "rank": 64, "chunk": 64, "rounds": 2, "features": 64}


def softmax(n, w):
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)


def window(n, w):
    return lambda q, k, v: windowed(q, k, v, SIZES["window"])


def bigbird(n, w):
    """The first block, the previous one, itself and a random one: as many keys as the window."""
    blocks = bigbird_blocks(n // SIZES["block"], seed=0)
    return lambda q, k, v: block_sparse(q, k, v, blocks.to(q.device), SIZES["block"])


def lsh(n, w):
    sizes = (SIZES["rounds"], w, max(1, n // SIZES["chunk"] // 2))
    rotations = torch.randn(sizes, generator=torch.Generator().manual_seed(0))
    return lambda q, k, v: sorted_lsh(q, k, v, rotations.to(q.device), SIZES["chunk"])


def linformer(n, w):
    maps = torch.randn(2, SIZES["rank"], n, generator=torch.Generator().manual_seed(0)) * n**-0.5
    return lambda q, k, v: F.scaled_dot_product_attention(
        q, maps[0].to(q.device) @ k, maps[1].to(q.device) @ v
    )


def linear(n, w):
    return lambda q, k, v: chunked(F.elu(q) + 1, F.elu(k) + 1, v, SIZES["chunk"])


def performer(n, w):
    rows = orthogonal_rows(SIZES["features"], w, torch.Generator().manual_seed(0))

    def mixed(q, k, v):
        fq, fk, _ = positive_features(q, k, rows.to(q.device))
        return chunked(fq, fk, v, SIZES["chunk"])

    return mixed


CORES = {f.__name__: f for f in (softmax, window, bigbird, lsh, linformer, linear, performer)}


def core_call(kind, n, w=64, h=1, backward=False, device="cpu"):
    """A call that runs one of CORES on a sequence of n; `backward` adds gradients of q, k and v.

    Raises ValueError for an unknown kind.
    """
    if kind not in CORES:
        raise ValueError(f"unknown core {kind!r}; choose from {', '.join(CORES)}")
    mixed = CORES[kind](n, w)
    generator = torch.Generator(device).manual_seed(0)
    q, k, v = (
        torch.randn(1, h, n, w, generator=generator, device=device, requires_grad=backward)
        for _ in range(3)
    )

    def call():
        out = mixed(q, k, v)
        return torch.autograd.grad(out, (q, k, v), v.detach()) if backward else out

    return call
