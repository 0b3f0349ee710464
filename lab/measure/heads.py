"""What single heads do: scored by their maps, ablated, blind to a key.

Maps are attention weights (b, h, q, k) of causal attention, a list with one entry a layer. A head
is named by its layer, which is the call of attention within one forward, and its number among the
query heads. Chapter §1.1.4, §1.2.
"""

from contextlib import contextmanager
from functools import partial

import pandas as pd
import torch

from lab.measure.hooks import Calls
from lab.measure.maps import content_share, mass, relative_distance, relative_entropy, uniform_mass


def head_table(maps, measures):
    """One row per layer and head, in this order: layer, head, and a column for each measure.

    measures: {name: function from maps (b, h, q, k) to (h,)}.
    """
    tables = []
    for layer, weights in enumerate(maps):
        columns = {name: measure(weights).tolist() for name, measure in measures.items()}
        tables.append(pd.DataFrame({"layer": layer, "head": range(weights.shape[1])} | columns))
    return pd.concat(tables, ignore_index=True)


def head_scores(maps, queries, targets):
    """Where heads look, in long form: layer, head, measure, value, uniform.

    `uniform` is what uniform causal weights score.
    queries (b, q): where distance and entropy are taken, over uniform ones; targets: {measure:
    pattern (b or 1, q, k)}, the mass on it. Previous token and content use all queries.
    """
    at = torch.arange(maps[0].shape[2], device=queries.device)
    near = ((at[:, None] - at).abs() <= 3) & queries[..., None]  # (b, q, k)
    patterns = {"within 3": near, "first token": (at == 0) & queries[..., None]}
    patterns |= {"previous token": (at[:, None] - at == 1)[None]} | targets
    uniform = {"distance": 1.0, "entropy": 1.0, "content": 0.0}
    uniform |= {name: uniform_mass(pattern) for name, pattern in patterns.items()}
    measures = {
        "distance": partial(relative_distance, queries=queries),
        "entropy": partial(relative_entropy, queries=queries),
        "content": content_share,
    }
    measures |= {name: partial(mass, targets=pattern) for name, pattern in patterns.items()}
    table = head_table(maps, measures).melt(["layer", "head"], list(measures), "measure")
    table = table.sort_values("layer", kind="stable", ignore_index=True)
    return table.assign(uniform=table.measure.map(uniform))


@contextmanager
def ablate_heads(heads, calls):
    """Within, the given (call, head) pairs write nothing, in any model.

    `calls` is how many calls one forward makes. Works in training too. LookupError at the end for
    heads that never occurred. Compare with the model under `ablate_heads([], calls)`: within,
    nn.TransformerEncoder leaves its fast path, whose outputs at padding are others.
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
    """What every loss gains with each head ablated alone: layer, head, measure, value.

    losses() gives {measure: number}.
    """
    rows = []
    with ablate_heads([], layers):  # the whole model too computes attention as the ablated ones do
        whole = losses()
    for layer, head in [(layer, head) for layer in range(layers) for head in range(heads)]:
        with ablate_heads([(layer, head)], layers):
            rows += [(layer, head, name, loss - whole[name]) for name, loss in losses().items()]
    return pd.DataFrame(rows, columns=["layer", "head", "measure", "value"])


@torch.no_grad()
def pruning_costs(loss, layers, heads):
    """What loss(), a number, gains without heads, a row for each: layer, head and

    removal_cost: with this one alone ablated; importance_rank: 0 for the least costly; pruned_cost:
    with this one and all less costly ones ablated together.
    """
    table = ablation_costs(lambda: {"removal_cost": loss()}, layers, heads).drop(columns="measure")
    table = table.rename(columns={"value": "removal_cost"})
    table["importance_rank"] = table.removal_cost.rank(method="first").astype(int) - 1
    cheapest_first = table.sort_values("importance_rank")[["layer", "head"]]
    order, costs = list(cheapest_first.itertuples(index=False, name=None)), []
    with ablate_heads([], layers):
        whole = loss()
    for rank in table.importance_rank:
        with ablate_heads(order[: rank + 1], layers):
            costs.append(loss() - whole)
    return table.assign(pruned_cost=costs)


@contextmanager
def attention_knockout(layer, calls):
    """Within, the last query of row i of the batch is blind to key i, in one call of a forward.

    It is call `layer` of `calls`. One sequence, copied as often as it has keys, so shows what each
    key adds to the last prediction. Causal only.
    """

    def hide(call):
        if call.index % calls != layer:
            return None
        b, q, k = len(call.query), call.query.shape[2], call.key.shape[2]
        rows, mask = torch.arange(b, device=call.query.device), call.dense_mask()
        seen = torch.ones(b, 1, q, k, dtype=torch.bool, device=call.query.device).tril(k - q)
        if mask is not None:
            seen = seen & (mask if mask.dtype == torch.bool else mask > -torch.inf)
        seen[rows, :, -1, rows] = False
        bias = 0 if mask is None or mask.dtype == torch.bool else mask
        hidden = torch.zeros_like(seen, dtype=call.query.dtype).masked_fill(~seen, -torch.inf)
        return call(attn_mask=hidden + bias, is_causal=False)

    with Calls(hide):
        yield


@torch.no_grad()
def key_effects(predict, tokens, maps):
    """What the last prediction loses with each key: sequence, layer, key, weight, effect.

    weight: mean over heads. effect: divergence KL(whole || key hidden), nats. predict(tokens (b,
    t)) gives logits (b, t, classes); give it in float64, since most effects lie below the rounding
    of float32 and would be ranked by it. Causal models whose layers call attention once each;
    `maps` are theirs on the tokens (b, t).
    """
    parts = []
    for i, sequence in enumerate(tokens):
        with ablate_heads([], len(maps)):
            whole = predict(sequence[None])[0, -1].log_softmax(-1)
        for layer, m in enumerate(maps):
            with attention_knockout(layer, len(maps)):
                without = predict(sequence.expand(len(sequence), -1))[:, -1].log_softmax(-1)
            effect, weight = (whole.exp() * (whole - without)).sum(-1), m[i, :, -1].mean(0)
            columns = {
                "key": range(len(weight)),
                "weight": weight.tolist(),
                "effect": effect.tolist(),
            }
            parts.append(pd.DataFrame({"sequence": i, "layer": layer} | columns))
    return pd.concat(parts, ignore_index=True)
