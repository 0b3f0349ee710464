"""Activations of hidden units in feed-forward layers."""

import torch

from lab.measure.hooks import capture


@torch.no_grad()
def hidden(model, tokens, part="ffn.act"):
    """Outputs of the submodule `part` of every block, on the CPU: (layers, tokens, units).

    tokens: (b, t), flattened in the result. By default the outputs are the hidden activations; with
    part="ffn_norm" they are the inputs of the feed-forward layer. Every block must run exactly
    once.
    """
    with capture(block.get_submodule(part) for block in model.blocks) as kept:
        model(tokens.to(next(model.parameters()).device))
    return torch.stack([x.flatten(0, -2).cpu() for x in kept])
