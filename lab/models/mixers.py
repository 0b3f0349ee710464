"""Ways of mixing at equal sizes, to be timed and weighed: one attention core, forward, backward, or one decoded token.

n length, d head width, h heads. All are causal but linformer. Sizes of each kind stand in SIZES.
"""

import torch
import torch.nn.functional as F

from lab.models.efficient import bigbird_blocks, block_sparse, sorted_lsh, windowed
from lab.models.linear import chunked, log_positive_features, orthogonal_rows, step

SIZES = {"window": 128, "block": 32, "rank": 64, "chunk": 64, "rounds": 2, "features": 64}


def softmax(n, d):
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)


def window(n, d):
    return lambda q, k, v: windowed(q, k, v, SIZES["window"])


def bigbird(n, d):
    """The first block, the one before, itself and a random one: as many keys a query as the window has."""
    blocks = bigbird_blocks(n // SIZES["block"], seed=0)
    return lambda q, k, v: block_sparse(q, k, v, blocks.to(q.device), SIZES["block"])


def lsh(n, d):
    rotations = torch.randn(
        SIZES["rounds"], d, max(1, n // SIZES["chunk"] // 2), generator=torch.Generator().manual_seed(0)
    )
    return lambda q, k, v: sorted_lsh(q, k, v, rotations.to(q.device), SIZES["chunk"])


def linformer(n, d):
    maps = torch.randn(2, SIZES["rank"], n, generator=torch.Generator().manual_seed(0)) * n**-0.5
    return lambda q, k, v: F.scaled_dot_product_attention(q, maps[0].to(q.device) @ k, maps[1].to(q.device) @ v)


def linear(n, d):
    return lambda q, k, v: chunked(F.elu(q) + 1, F.elu(k) + 1, v, SIZES["chunk"])


def performer(n, d):
    rows = orthogonal_rows(SIZES["features"], d, torch.Generator().manual_seed(0))

    def mixed(q, k, v):
        fq, fk = (log_positive_features(x, rows.to(x.device)) for x in (q, k))
        fq, fk = (fq - fq.detach().amax(-1, keepdim=True)).exp(), (fk - fk.detach().amax((-2, -1), keepdim=True)).exp()
        return chunked(fq, fk, v, SIZES["chunk"])

    return mixed


KINDS = {f.__name__: f for f in (softmax, window, bigbird, lsh, linformer, linear, performer)}


def mixer_call(kind, n, d=64, h=1, backward=False, device="cpu"):
    """A call without arguments that mixes a sequence of n; with `backward` also the gradients of q, k and v.

    ValueError for an unknown kind.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown mixer {kind!r}; choose from {', '.join(KINDS)}")
    mixed, generator = KINDS[kind](n, d), torch.Generator(device).manual_seed(0)
    q, k, v = (torch.randn(1, h, n, d, generator=generator, device=device, requires_grad=backward) for _ in range(3))

    def call():
        out = mixed(q, k, v)
        return torch.autograd.grad(out, (q, k, v), v.detach()) if backward else out

    return call


def run_mixer(kind, n, d=64, h=1, backward=False, device="cpu"):
    """Makes q, k, v and mixes once, for `peak_memory`: the inputs count in the peak."""
    mixer_call(kind, n, d, h, backward, device)()


def state_elements(kind, n, d=64, h=1):
    """Elements that decoding keeps for one sequence and layer after n tokens: keys and values, or their sum."""
    kept = {"softmax": 2 * n * d, "window": 2 * min(n, SIZES["window"]) * d, "linear": d * (d + 1)}
    return h * kept[kind]


@torch.no_grad()
def decode_call(kind, n, d=64, h=1, batch=1, device="cpu"):
    """(call, state): a call that mixes one new token after n earlier ones, and the tensors it keeps between calls."""
    q, key, value = torch.randn(3, batch, h, 1, d, device=device)
    if kind == "linear":
        fq, fk = F.elu(q[:, :, 0]) + 1, F.elu(key[:, :, 0]) + 1
        state = step(None, fq, fk, value[:, :, 0])[0]
        return (lambda: step(state, fq, fk, value[:, :, 0])[1]), [state]
    length = n if kind == "softmax" else min(n, SIZES["window"])
    keys, values = torch.randn(2, batch, h, length, d, device=device).unbind(0)
    at = (n - 1) % length

    def call():
        keys[:, :, at], values[:, :, at] = key[:, :, 0], value[:, :, 0]
        return F.scaled_dot_product_attention(q, keys, values)

    return call, [keys, values]
