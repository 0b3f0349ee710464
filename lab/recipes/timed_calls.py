"""One block taken apart, bare cores, a training step, a prompt and a step of generation: calls
without arguments, to be timed.

b batch, h head, g key-value head, n sequence or context, d model width, w head width, B sequences
at once, L layers.
"""

import mmap
from functools import partial
from math import sqrt

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from lab.measure.timing import interleaved
from lab.models.gpt import ModelConfig, Transformer
from lab.models.kernels import bigbird_blocks, block_sparse, sorted_lsh, windowed
from lab.models.linear import chunked, orthogonal_rows, positive_features, step


def block_operations(n, d, heads, device="cpu"):
    """{operation: call} of one block on one sequence with its weights written out, forward only
    (chapter §1.1.3).

    projections (q, k, v and out), scores, softmax, mix, feedforward; each reads operands of its
    real size and layout. Scores, weights and their mix are written to memory that is kept from call
    to call: two h x n x n tensors, whose pages nobody asks the system for while a clock runs. Norms
    and residual sums are left out.
    """
    config = ModelConfig(
        vocabulary=1, context=n, d_model=d, n_layers=1, n_heads=heads, position="none", mask="none"
    )
    block = Transformer(config).blocks[0].to(device).requires_grad_(False)
    x = torch.randn(1, n, d, generator=torch.Generator(device).manual_seed(0), device=device)
    q, k, v = (each[0] for each in block.mixer.heads.split(x))  # (h, n, w)
    scores, weights, mixed = (
        torch.empty(heads, n, n, device=device),
        torch.empty(heads, n, n, device=device),
        q.clone(),
    )
    calls = {
        "projections": lambda: (block.mixer.heads.split(x), block.mixer.heads.join(mixed[None])),
        "scores": lambda: torch.bmm(q / sqrt(q.shape[-1]), k.transpose(1, 2), out=scores),
        "softmax": lambda: torch.softmax(scores, dim=-1, out=weights),
        "mix": lambda: torch.bmm(weights, v, out=mixed),
        "feedforward": lambda: block.ffn(x),
    }
    for name in ("scores", "softmax", "mix"):  # each reads what the one before it has written
        calls[name]()
    return calls


def block_call(n, d, heads, backward=False, device="cpu"):
    """A call of one whole block on one sequence, with its attention fused; `backward` adds all
    gradients.
    """
    config = ModelConfig(
        vocabulary=1, context=n, d_model=d, n_layers=1, n_heads=heads, position="none", mask="none"
    )
    block = Transformer(config).blocks[0].to(device).requires_grad_(backward)
    x = torch.randn(
        1,
        n,
        d,
        generator=torch.Generator(device).manual_seed(0),
        device=device,
        requires_grad=backward,
    )

    def call():
        y = block(x)
        return torch.autograd.grad(y, (x, *block.parameters()), x.detach()) if backward else y

    return call


def stored_call(n, d_head, heads, device="cpu", buffer=None):
    """A call of naive attention, forward, whose scores, and then its weights, stand in the first
    h·n² elements of `buffer`; without one, in memory that every call asks the system for.
    """
    generator = torch.Generator(device).manual_seed(0)
    q, k, v = (torch.randn(heads, n, d_head, generator=generator, device=device) for _ in range(3))
    mixed, elements = torch.empty_like(q), heads * n * n

    def call():
        scores = (fresh_memory(elements, device) if buffer is None else buffer[:elements]).view(
            heads, n, n
        )
        torch.bmm(q / sqrt(d_head), k.transpose(1, 2), out=scores)
        return torch.bmm(torch.softmax(scores, dim=-1, out=scores), v, out=mixed)

    return call


def fresh_memory(elements, device="cpu"):
    """float32 elements that the system has to find pages for and to fill with zeros; on a GPU
    torch's own pool.
    """
    if device != "cpu":
        return torch.empty(elements, device=device)
    private = (
        {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    )  # not on Windows
    return torch.frombuffer(mmap.mmap(-1, 4 * elements, **private), dtype=torch.float32)


def training_step(
    n_layers, n, d, batch, checkpointed=False, device="cpu", residual="pre", heads=None
):
    """A call that returns the gradients of the loss of a causal model of bytes, n_layers deep;
    checkpointed, each block runs again in the backward pass and keeps only its input (Chen 2016).
    """
    sizes = {"context": n, "d_model": d, "n_layers": n_layers, "n_heads": heads or max(1, d // 64)}
    model = Transformer(ModelConfig(vocabulary=256, residual=residual, **sizes)).to(device)
    if checkpointed:
        for block in model.blocks:
            block.forward = partial(
                checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False
            )
    tokens = torch.randint(256, (batch, n + 1), generator=torch.Generator().manual_seed(0)).to(
        device
    )

    def call():
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        return torch.autograd.grad(loss, tuple(model.parameters()))

    return call


def training_speed(counts, d_model, n_layers, context, batch, repeats):
    """A table of tokens a second, forward and backward, of models with each number of heads, in
    interleaved rounds.
    """
    calls = {h: training_step(n_layers, context, d_model, batch, heads=h) for h in counts}
    table = interleaved(calls, repeats).rename(columns={"name": "n_heads"})
    return table.assign(speed=batch * context / table.seconds).drop(columns="seconds")


def run_training_step(*sizes, **options):
    """Makes a model and runs one training step; for `peak_memory`, so weights and gradients count
    in the peak.
    """
    training_step(*sizes, **options)()


def saved_bytes(call):
    """Bytes that autograd keeps for the backward pass while `call` runs, every piece of memory
    counted once.
    """
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = (tensor.untyped_storage().nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        call()
    return sum(size for size, _ in kept.values())


def without_position(n, d, h, g, L=2):
    """A causal model of bytes for timings: no position encoding, whose small cost is the same for
    every g.
    """
    config = ModelConfig(
        vocabulary=256, context=n, d_model=d, n_layers=L, n_heads=h, kv_heads=g, position="none"
    )
    return Transformer(config).eval().requires_grad_(False)


def decode_call(n, d, h, g, *, B=1, L=2, tokens=4, device="cpu"):
    """A call that generates the last `tokens` positions of a context of n, one at a time, for each
    of B sequences.

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


# Bare cores: ways of mixing at equal sizes, forward, backward, or one decoded token. All are causal
# but linformer.
SIZES = {"window": 128, "block": 32, "rank": 64, "chunk": 64, "rounds": 2, "features": 64}


def softmax(n, w):
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)


def window(n, w):
    return lambda q, k, v: windowed(q, k, v, SIZES["window"])


def bigbird(n, w):
    """The first block, the one before, itself and a random one: as many keys a query as the window
    has.
    """
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
    """A call that mixes a sequence of n by one of CORES; with `backward` also the gradients of q, k
    and v.

    ValueError for an unknown kind.
    """
    if kind not in CORES:
        raise ValueError(f"unknown core {kind!r}; choose from {', '.join(CORES)}")
    mixed, generator = CORES[kind](n, w), torch.Generator(device).manual_seed(0)
    q, k, v = (
        torch.randn(1, h, n, w, generator=generator, device=device, requires_grad=backward)
        for _ in range(3)
    )

    def call():
        out = mixed(q, k, v)
        return torch.autograd.grad(out, (q, k, v), v.detach()) if backward else out

    return call


def run_core(kind, n, w=64, h=1, backward=False, device="cpu"):
    """Makes q, k, v and mixes once, for `peak_memory`: the inputs count in the peak."""
    core_call(kind, n, w, h, backward, device)()


def state_elements(kind, n, w=64, h=1):
    """Elements that decoding keeps for one sequence and layer after n tokens: keys and values, or
    their sum.
    """
    kept = {"softmax": 2 * n * w, "window": 2 * min(n, SIZES["window"]) * w, "linear": w * (w + 1)}
    return h * kept[kind]


@torch.no_grad()
def core_decode_call(kind, n, w=64, h=1, batch=1, device="cpu"):
    """(call, state): a call that mixes one new token after n earlier ones, and the tensors it keeps
    between calls.
    """
    q, key, value = torch.randn(3, batch, h, 1, w, device=device)
    if kind == "linear":

        def mixed(state):
            return step(state, F.elu(q[:, :, 0]) + 1, F.elu(key[:, :, 0]) + 1, value[:, :, 0])

        state = mixed(None)[0]
        return (lambda: mixed(state)[1]), [state]
    length = n if kind == "softmax" else min(n, SIZES["window"])
    keys, values = torch.randn(2, batch, h, length, w, device=device).unbind(0)
    at = (n - 1) % length

    def call():
        keys[:, :, at], values[:, :, at] = key[:, :, 0], value[:, :, 0]
        return F.scaled_dot_product_attention(q, keys, values)

    return call, [keys, values]
