"""Blocks that can be undone, run without keeping their activations (Gomez 2017; Kitaev 2020)."""

import torch


def reversible(stream, layers):
    """The stream through layers, pairs (block, inputs), each block with an `inverse`; autograd keeps the result alone.

    Backward, every block is undone and run again: about two more forward passes for a memory that does not grow with
    depth. Gradients reach the stream, the blocks' parameters and tensors among the inputs.
    """
    cached = any(inputs.get("cache") is not None for _, inputs in layers)
    if cached or not torch.is_grad_enabled():
        for block, inputs in layers:
            stream = block(stream, **inputs)
        return stream
    apart = {}  # tensors that came from elsewhere, cut from there: their gradients are handed on once

    def cut(x):
        return apart.setdefault(id(x), (x, x.detach().requires_grad_()))[1]

    layers = [
        (block, {k: cut(x) if isinstance(x, torch.Tensor) and x.requires_grad else x for k, x in inputs.items()})
        for block, inputs in layers
    ]
    weights = dict.fromkeys(p for block, _ in layers for p in block.parameters() if p.requires_grad)
    outer = [x for x, _ in apart.values()] + list(weights)
    inner = [x for _, x in apart.values()] + list(weights)
    return _Undone.apply(stream, layers, inner, *outer)


class _Undone(torch.autograd.Function):
    @staticmethod
    def forward(ctx, stream, layers, inner, *outer):
        for block, inputs in layers:
            stream = block(stream, **inputs)
        ctx.layers, ctx.inner = layers, inner
        ctx.save_for_backward(stream)
        return stream

    @staticmethod
    def backward(ctx, gradient):
        (stream,), total = ctx.saved_tensors, [None] * len(ctx.inner)
        for block, inputs in reversed(ctx.layers):
            with torch.no_grad():
                stream = block.inverse(stream, **inputs)
            with torch.enable_grad():
                before = stream.detach().requires_grad_()
                after = block(before, **inputs)
                gradient, *found = torch.autograd.grad(after, [before, *ctx.inner], gradient, allow_unused=True)
            total = [a if b is None else b if a is None else a + b for a, b in zip(total, found, strict=True)]
        return gradient, None, None, *total
