"""How far a model's output moves when its weights or its depth change (chapter §1.5.3, §1.5.5)."""

import torch
import torch.nn.functional as F


@torch.no_grad()
def perturbation(model, output, *, size=1e-4, seed=0):
    """Mean square change of output(model) over size², when every weight w moves by size · rms(w) · N(0, 1). Liu 2020.

    Weights are put back. Use float64 for small sizes. RuntimeError where the output is not finite.
    """
    generator = torch.Generator().manual_seed(seed)
    before, kept = output(model), [p.clone() for p in model.parameters()]
    for p in model.parameters():
        noise = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p)
        p += size * p.square().mean().sqrt() * noise
    change = (output(model) - before).square().mean().item() / size**2
    for p, value in zip(model.parameters(), kept, strict=True):
        p.copy_(value)
    if not torch.isfinite(before).all() or change != change:
        raise RuntimeError("the output is not finite")
    return change


def likeness(streams):
    """Mean cosine of the same token in neighbouring streams (layers, ..., m): a tensor of layers - 1 numbers."""
    return F.cosine_similarity(streams[1:], streams[:-1], dim=-1).flatten(1).mean(1)
