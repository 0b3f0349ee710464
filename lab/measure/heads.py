"""Single heads: tables of their maps, and ablation. Chapter §1.1.4, §1.2.

Maps are weights (b, h, q, k) of causal attention, a list with one entry per layer. A head is
identified by its layer, the index of the attention call within a forward pass, and its index among
the query heads.
"""

from contextlib import contextmanager

import pandas as pd
import torch

from lab.measure.hooks import Calls


def head_table(maps, measures):
    """One row per layer and head, in order: layer, head, and one column per measure.

    measures: {name: function from maps (b, h, q, k) to (h,)}.
    """
    tables = []
    for layer, weights in enumerate(maps):
        columns = {name: measure(weights).tolist() for name, measure in measures.items()}
        tables.append(pd.DataFrame({"layer": layer, "head": range(weights.shape[1])} | columns))
    return pd.concat(tables, ignore_index=True)


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
