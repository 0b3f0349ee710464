"""Single heads: what a model loses without one, and how alike their maps are. Chapter §1.1.4, §1.2.

Maps are weights (b, h, q, k) of causal attention. A head is identified by its layer, the index of
the attention call within a forward pass, and its index among the query heads.
"""

import math
from contextlib import contextmanager

import pandas as pd
import torch

from lab.measure.attention import entropy
from lab.measure.hooks import Calls


@contextmanager
def ablate_heads(heads, calls):
    """Context in which the outputs of the given (call, head) pairs are 0, in any model.

    `calls` is the number of attention calls per forward pass. Works in training too. Use
    `ablate_heads([], calls)` for the baseline: inside this context nn.TransformerEncoder does not
    take its fast path, which has other outputs at padding.

    Raises LookupError at the end for heads that never occurred.
    """
    met = set()

    def ablate(call):
        number, h = call.index % calls, call.query.shape[1]
        off = [head for layer, head in heads if layer == number and head < h]
        if not off:
            return None
        met.update((number, head) for head in off)
        result = call()
        keep = result.new_ones(h)
        keep[off] = 0
        return result * keep[:, None, None]

    with Calls(ablate) as seen:
        yield
    if missing := set(heads) - met:
        raise LookupError(f"never met heads {sorted(missing)} in {seen.count} attention calls")


@torch.no_grad()
def ablation_costs(losses, layers, heads):
    """Increase of every loss with each head ablated alone: layer, head, measure, value.

    losses() returns {measure: number}.
    """
    rows = []
    with ablate_heads([], layers):  # the same attention path as in the ablated runs
        whole = losses()
    for layer, head in [(layer, head) for layer in range(layers) for head in range(heads)]:
        with ablate_heads([(layer, head)], layers):
            rows += [(layer, head, name, loss - whole[name]) for name, loss in losses().items()]
    return pd.DataFrame(rows, columns=["layer", "head", "measure", "value"])


def divergence(maps, others=None):
    """Jensen-Shannon divergence of every head of `maps` from every head of `others`: (h, g).

    The unit is bits; the mean is over batch and queries. `others` defaults to `maps`. With
    `maps.roll(1, 0)` each input is paired with another one, so that heads are similar by position
    only, not by content.
    """
    others = maps if others is None else others
    own = entropy(maps)
    other = entropy(others)
    rows = []
    for i in range(maps.shape[1]):
        mixed = entropy((maps[:, i : i + 1] + others) / 2)
        rows.append((mixed - (own[:, i : i + 1] + other) / 2).mean((0, 2)) / math.log(2))
    return torch.stack(rows)


def match_entropy(maps, reference):
    """Maps (b, h, q, k) rescaled to the mean entropy of `reference`.

    All scores are multiplied by one number c: softmax(c z) is softmax(z)^c, normalised. This is the
    null model for heads that differ only by their entropy.
    """
    target = entropy(reference).mean()
    low, high = -6.0, 10.0  # bounds of log2 c
    logs = maps.clamp_min(torch.finfo(maps.dtype).tiny).log()
    for _ in range(30):
        middle = (low + high) / 2
        sharp = torch.softmax(2**middle * logs, -1) * (maps > 0)
        low, high = (middle, high) if entropy(sharp).mean() > target else (low, middle)
    return sharp
