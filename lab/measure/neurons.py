"""Hidden units of feed-forward layers: what they return, how often they fire, which are idle, a layer without some.

Letters: n tokens, u units. Activations are (n, u), or (..., u) where a tap hands them over.
"""

from contextlib import ExitStack
from functools import partial

import torch

from lab.measure.hooks import edit


@torch.no_grad()
def outputs(model, sites, *inputs):
    """{site: what the module of that name returned on model(*inputs), one row a token (n, u)}.

    Of a module that runs more than once, what it returned first.
    """
    kept = {}

    def keep(site, x):
        kept.setdefault(site, x)
        return x

    with ExitStack() as stack:
        for site in sites:
            stack.enter_context(edit(model, {site: partial(keep, site)}))
        model(*inputs)
    return {site: x.flatten(0, -2) for site, x in kept.items()}


def hidden(model, tokens, part="ffn.act"):
    """What a part of each feed-forward layer returns, on the CPU: (layers, n, u); "ffn_norm" is its input."""
    sites = [f"blocks.{i}.{part}" for i in range(len(model.blocks))]
    tokens = tokens.to(next(model.parameters()).device)
    return torch.stack([x.cpu() for x in outputs(model, sites, tokens).values()])


def ablate_units(model, layer, units):
    """While this context is open, the `units` (a list or tensor of indices) of a feed-forward layer return 0."""
    units = torch.as_tensor(units, dtype=torch.long, device=next(model.parameters()).device)
    return edit(model, {f"blocks.{layer}.ffn.act": lambda x: x.index_fill(-1, units, 0)})


def idle_share(activations, held=0.01):
    """Share of the smallest activations (..., u) of each token that together hold `held` of its squared length."""
    squares = activations.cpu().double().square().sort(-1).values
    return (squares.cumsum(-1) <= held * squares.sum(-1, keepdim=True)).double().mean().item()


def nonzero_share(activations):
    """Share of entries that are not exactly zero."""
    return (activations != 0).cpu().double().mean()


def firing_rates(activations):
    """Share of tokens at which each unit is above zero: (u,). A unit with rate 0 is dead on these tokens."""
    return (activations > 0).cpu().double().flatten(0, -2).mean(0)
