"""How far a model's output moves when its weights or its depth change (chapter §1.5.3, §1.5.5)."""

from contextlib import contextmanager

import torch
import torch.nn.functional as F


@contextmanager
def moved(model, size, seed=0):
    """Inside, every weight w is moved by size · rms(w) · N(0, 1); afterwards all are as they were."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        kept = [p.clone() for p in model.parameters()]
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p)
            p += size * p.square().mean().sqrt() * noise
    try:
        yield
    finally:
        with torch.no_grad():
            for p, value in zip(model.parameters(), kept, strict=True):
                p.copy_(value)


@torch.no_grad()
def perturbation(model, output, *, size=1e-4, seed=0):
    """Mean square change of output(model) over size², when every weight w moves by size · rms(w) · N(0, 1). Liu 2020.

    Weights are put back. Use float64 for small sizes. RuntimeError where the output is not finite.
    """
    before = output(model)
    with moved(model, size, seed):
        change = (output(model) - before).square().mean().item() / size**2
    if not torch.isfinite(before).all() or change != change:
        raise RuntimeError("the output is not finite")
    return change


def likeness(streams):
    """Mean cosine of the same token in neighbouring streams (layers, ..., m): a tensor of layers - 1 numbers."""
    return F.cosine_similarity(streams[1:], streams[:-1], dim=-1).flatten(1).mean(1)


@torch.no_grad()
def rises_without(blocks, loss):
    """Rise of loss() when the stream goes past one block, for every block alone."""
    base, rises = loss(), []
    for block in blocks:
        block.forward = lambda x, **_: x
        try:
            rises.append(loss() - base)
        finally:
            del block.forward
    return rises


@torch.no_grad()
def outputs_of(blocks, run):
    """What each block hands on while run() runs, stacked: (blocks, ...)."""
    outputs = []
    handles = [block.register_forward_hook(lambda _m, _i, out: outputs.append(out)) for block in blocks]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(outputs)
