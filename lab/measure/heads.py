"""What single heads do: silence them, compare their patterns, score them for a speciality (chapter §1.2).

Maps are attention weights (b, h, q, k), as the attention probe keeps them. Heads are named (call, head): the call of
F.scaled_dot_product_attention within one forward, which is the layer in a decoder, and the query head.
"""

import math
from contextlib import contextmanager

import pandas as pd
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from lab.measure.attention import attention_probe


@contextmanager
def silenced(heads, calls):
    """Within, the given (call, head) pairs write nothing, in any model; `calls` is how many calls one forward makes.

    Works in training too. LookupError at the end for heads that never occurred.
    """
    mode = _Silence(heads, calls)
    with mode:
        yield
    if missing := set(heads) - mode.met:
        raise LookupError(f"never met heads {sorted(missing)} in {mode.calls} attention calls")


class _Silence(TorchFunctionMode):
    def __init__(self, heads, calls):
        super().__init__()
        self.heads, self.per_forward, self.calls, self.met = set(heads), calls, 0, set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is not F.scaled_dot_product_attention:
            return result
        call, self.calls = self.calls % self.per_forward, self.calls + 1
        off = [head for c, head in self.heads if c == call and head < result.shape[1]]
        if not off:
            return result
        self.met |= {(call, head) for head in off}
        keep = result.new_ones(result.shape[1])
        keep[off] = 0
        return result * keep[:, None, None]


def pattern_divergence(maps):
    """Jensen-Shannon divergence between every two heads' patterns, mean over batch and queries, bits: (h, h)."""
    h = maps.shape[1]
    own = _entropy(maps)  # (b, h, q)
    divergence = torch.zeros(h, h)
    for i in range(h):
        mixed = _entropy((maps[:, i : i + 1] + maps[:, i + 1 :]) / 2)
        divergence[i, i + 1 :] = (mixed - (own[:, i : i + 1] + own[:, i + 1 :]) / 2).mean((0, 2)) / math.log(2)
    return divergence + divergence.T


def mean_divergence(maps):
    """Mean of pattern_divergence over pairs of different heads, bits; NaN for a single head."""
    h = maps.shape[1]
    return pattern_divergence(maps).sum().item() / (h * (h - 1)) if h > 1 else math.nan


def offset_profile(maps):
    """Mean weight of each head on the key `offset` positions back, over queries that have one: (h, offsets)."""
    return torch.stack([maps.diagonal(-offset, -2, -1).mean((0, 2)) for offset in range(maps.shape[2])], -1)


def broadness(maps):
    """Entropy of each row over that of a uniform one over the keys at hand, mean for each head, 0..1: (h,)."""
    rows = torch.arange(1, maps.shape[2], device=maps.device)
    return (_entropy(maps)[:, :, 1:] / (rows + 1).log()).mean((0, 2))


def hits(maps, targets):
    """Share of queries with a target (b, q), -1 for none, whose heaviest key is the target: (h,)."""
    wanted = targets >= 0  # (b, q)
    right = maps.argmax(-1) == targets[:, None]  # (b, h, q)
    return (right & wanted[:, None]).sum((0, 2)) / wanted.sum()


def best_fixed_offset(targets):
    """Share of targets that lie at the commonest distance: what a head that counts positions would hit."""
    b, q = (targets >= 0).nonzero(as_tuple=True)
    return torch.bincount(q - targets[b, q]).max().item() / len(q)


def frequency_correlation(maps, log_frequency):
    """Correlation of the attention that a key receives with its token's log frequency (b, k), for each head: (h,).

    Attention received is over the keys' uniform share at each query; the mean at each position is removed first.
    """
    n = maps.shape[-1]
    uniform = 1 / torch.arange(1, n + 1, device=maps.device)
    received = (maps / uniform[:, None]).sum(2) / torch.arange(n, 0, -1, device=maps.device)  # (b, h, k)
    received = (
        (received - received.mean(0))[..., :-1].transpose(0, 1).flatten(1)
    )  # (h, b k); the last key has one query
    frequency = (log_frequency - log_frequency.mean(0))[:, :-1].flatten()
    return F.cosine_similarity(received, frequency[None], dim=-1)


@torch.no_grad()
def head_table(model, tokens, *, opener, log_frequency):
    """What each head of a decoder does on tokens (b, t): one row for each layer and head.

    divergence: mean Jensen-Shannon divergence to the other heads of its layer, bits; broadness: entropy over that of a
    uniform row; offset, offset_mass: the distance from 1 to t/2 that gets most weight, and that weight; bracket_hits:
    share of closing brackets whose heaviest key is their opener (b, t), -1 for none; bracket_baseline: the best fixed
    offset's; rarity, rarity_null: correlation of attention received with log frequency (256,) of the tokens, and with
    shuffled ones.
    """
    with attention_probe([], keep_maps=True) as probe:
        model(tokens)
    shuffled = log_frequency[torch.randperm(len(log_frequency), generator=torch.Generator().manual_seed(0))]
    tables = []
    for layer, maps in enumerate(probe.maps):
        h = maps.shape[1]
        mass, offset = offset_profile(maps)[:, 1 : maps.shape[2] // 2].max(-1)  # far ones have few queries
        columns = {
            "layer": torch.full((h,), layer),
            "head": torch.arange(h),
            "divergence": pattern_divergence(maps).sum(1) / (h - 1) if h > 1 else torch.full((1,), math.nan),
            "broadness": broadness(maps),
            "offset": offset + 1,
            "offset_mass": mass,
            "bracket_hits": hits(maps, opener),
            "bracket_baseline": torch.full((h,), best_fixed_offset(opener)),
            "rarity": frequency_correlation(maps, log_frequency[tokens]),
            "rarity_null": frequency_correlation(maps, shuffled[tokens]),
        }
        tables.append(pd.DataFrame({name: column.tolist() for name, column in columns.items()}))
    return pd.concat(tables, ignore_index=True)


def removal_costs(loss, table, calls):
    """`table` (layer, head, ...) with the cost of removing heads, in the unit of loss() (a function of nothing).

    removal_cost: with this head alone silenced; importance_rank: 0 for the least costly; pruned_cost: with this one and
    all less costly ones silenced together.
    """
    heads = list(zip(table["layer"], table["head"], strict=True))
    whole = loss()

    def cost(off):
        with silenced(off, calls):
            return loss() - whole

    table = table.assign(removal_cost=[cost([head]) for head in heads])
    table["importance_rank"] = table.removal_cost.rank(method="first").astype(int) - 1
    order = [heads[i] for i in table.removal_cost.to_numpy().argsort(kind="stable")]
    table["pruned_cost"] = [cost(order[: rank + 1]) for rank in table.importance_rank]
    return table


def _entropy(p):
    return -torch.xlogy(p, p).sum(-1)  # nats
