"""Ablation of single attention heads, and similarity of their maps (chapter §1.1.4, §1.2).

Maps are attention weights (b, h, q, k). A head is identified by its layer, which is the
index of the attention call within a forward pass, and its index among the query heads.
"""

import math
from contextlib import contextmanager

import pandas as pd
import torch

from lab.measure.attention import entropy
from lab.measure.hooks import Calls


@contextmanager
def ablate_heads(heads, calls):
    """Context manager that sets the outputs of the given heads to 0, in any model.

    heads: (call, head) pairs. calls: number of attention calls per forward pass. It also works in
    training. Measure the baseline inside `ablate_heads([], calls)`: the context keeps
    nn.TransformerEncoder from taking its fast path, which gives other outputs at padding. Raises
    LookupError on exit if the model never ran one of the heads.
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
        raise LookupError(
            f"these heads never ran: {sorted(missing)} in {seen.count} attention calls"
        )


@torch.no_grad()
def ablation_costs(losses, layers, heads):
    """Increase of every loss when one head is ablated, for each head in turn.

    losses() returns {name: loss}. Returns a DataFrame with columns layer, head, measure (the name)
    and value (the increase, in the unit of the loss).
    """
    rows = []
    with ablate_heads([], layers):  # keeps the slow path, as in the ablated runs
        whole = losses()
    for layer, head in [(layer, head) for layer in range(layers) for head in range(heads)]:
        with ablate_heads([(layer, head)], layers):
            rows += [(layer, head, name, loss - whole[name]) for name, loss in losses().items()]
    return pd.DataFrame(rows, columns=["layer", "head", "measure", "value"])


def divergence(maps, others=None):
    """Jensen-Shannon divergence between each head of `maps` and each head of `others`.

    The result (heads of `maps`, heads of `others`) is the mean over batch and queries, in bits.
    `others` defaults to `maps`. others = maps.roll(1, 0) compares maps of different inputs, so
    heads can agree only by position, not by content.
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
    """Sharpen or flatten maps (b, h, q, k) until their mean entropy equals that of `reference`.

    This multiplies all scores z by one number c. The scores themselves are not needed, because
    softmax(c z) is softmax(z)^c, normalized. The result is a null model: what `maps` would be if
    they had the mean entropy of `reference`.
    """
    target = entropy(reference).mean()
    low, high = -6.0, 10.0  # bounds of log2 c
    logs = maps.clamp_min(torch.finfo(maps.dtype).tiny).log()
    for _ in range(30):
        middle = (low + high) / 2
        sharp = torch.softmax(2**middle * logs, -1) * (maps > 0)
        low, high = (middle, high) if entropy(sharp).mean() > target else (low, middle)
    return sharp
