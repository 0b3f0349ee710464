"""Hidden units of feed-forward layers: activations and ablation. Letters: n tokens, u units."""

import torch

from lab.measure.hooks import capture


@torch.no_grad()
def hidden(model, tokens, part="ffn.act"):
    """Outputs of a submodule of every block, on the CPU: (layers, n, u).

    "ffn_norm" is the input of the feed-forward layer. Every block must run once.
    """
    with capture(block.get_submodule(part) for block in model.blocks) as kept:
        model(tokens.to(next(model.parameters()).device))
    return torch.stack([x.flatten(0, -2).cpu() for x in kept])
