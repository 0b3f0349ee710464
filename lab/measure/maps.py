"""Where heads look, against looking anywhere: targets, uniform baselines, similarity, rank, hidden keys.

Targets are boolean patterns (b or 1, q, k), True at the keys that count for a query; attention.mass_on takes them too.
Maps are attention weights (b, h, q, k) of causal attention, as the attention probe keeps them.
"""

import base64
import math
from contextlib import contextmanager

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


def copies(n, period, offset):
    """Targets on a block of `period` tokens repeated over n: `offset` after the query's earlier copies, (1, n, n).

    Queries of the first block have none. offset +1, the token that followed, is what an induction head looks at; 0 a
    duplicate-token head; -1 is the definition printed in Olsson 2022, which an ideal induction head misses.
    """
    q, k = torch.arange(n)[:, None], torch.arange(n)
    behind = q - k + offset
    return ((behind > 0) & (behind % period == 0) & (q >= period) & (k <= q) & (k >= offset))[None]


def pointing(index):
    """Targets (b, q, q) from one key index per query (b, q), -1 for none."""
    return (index[..., None] == torch.arange(index.shape[1], device=index.device)) & (index >= 0)[..., None]


def uniform_mass(targets):
    """What weights uniform over the keys up to the query put on the targets, mean over queries that have any."""
    visible = targets.tril()
    share = visible.sum(-1) / torch.arange(1, targets.shape[1] + 1, device=targets.device)  # (b, q)
    return share[targets.any(-1)].mean().item()


def mass(maps, targets):
    """Weight on the targets, mean over batch and queries that have any, NaN where none has: (h,)."""
    got, counted = (maps * targets[:, None]).sum(-1), targets.any(-1)[:, None]  # (b, h, q), (b or 1, 1, q)
    return (got * counted).sum((0, 2)) / counted.expand_as(got).sum((0, 2))


def relative_distance(maps, queries):
    """Mean |q - k| under the weights at `queries` (b, q) over that of uniform causal weights there: (h,)."""
    at = torch.arange(maps.shape[2], device=maps.device)
    got = (maps * (at[:, None] - at).abs()).sum(-1)  # (b, h, q)
    uniform = (at / 2).expand(queries.shape)[queries].sum()
    return (got * queries[:, None]).sum((0, 2)) / uniform


def relative_entropy(maps, queries):
    """Entropy of the weights at `queries` (b, q) over that of uniform causal weights there, 0..1: (h,)."""
    got = -torch.xlogy(maps, maps).sum(-1)
    uniform = torch.arange(1, maps.shape[2] + 1, device=maps.device).log().expand(queries.shape)[queries].sum()
    return (got * queries[:, None]).sum((0, 2)) / uniform


def distance_profile(maps, queries, bins):
    """Weight by distance |q - k| in bins [bins[i], bins[i + 1]), mean over `queries` (b, q): (h, bins - 1)."""
    at = torch.arange(maps.shape[2], device=maps.device)
    gap = (at[:, None] - at).abs()
    parts = [(maps * ((gap >= low) & (gap < high))).sum(-1) for low, high in zip(bins, bins[1:], strict=False)]
    return torch.stack([(p * queries[:, None]).sum((0, 2)) for p in parts], -1) / queries.sum()


def head_scores(maps, queries, targets):
    """One row per layer, head and measure: value, and what uniform causal weights would score.

    maps: a list of (b, h, q, k), one a layer; queries (b, q): where distance and entropy are taken; targets: {measure:
    pattern}, the mass on it. Distance and entropy are over uniform ones; previous token and content use all queries.
    """
    n, tables = maps[0].shape[2], []
    at = torch.arange(n, device=queries.device)
    near = ((at[:, None] - at).abs() <= 3) & queries[..., None]  # (b, q, k)
    patterns = {"within 3": near, "first token": (at == 0) & queries[..., None]}
    patterns |= {"previous token": (at[:, None] - at == 1)[None]} | targets
    for layer, weights in enumerate(maps):
        scores = {
            "distance": (relative_distance(weights, queries), 1.0),
            "entropy": (relative_entropy(weights, queries), 1.0),
            "content": (content_share(weights), 0.0),
        } | {name: (mass(weights, pattern), uniform_mass(pattern)) for name, pattern in patterns.items()}
        tables += [
            (layer, head, measure, value, uniform)
            for measure, (values, uniform) in scores.items()
            for head, value in enumerate(values.tolist())
        ]
    return pd.DataFrame(tables, columns=["layer", "head", "measure", "value", "uniform"])


def content_share(maps):
    """Share of the variance of a head's weights that query and key positions do not explain: (h,). 0: a fixed field.

    The batch holds different inputs; the variance of cell (q, k) over them is set against that of all visible cells.
    """
    visible = torch.ones(maps.shape[2:], dtype=torch.bool, device=maps.device).tril()
    cells = maps[:, :, visible]  # (b, h, cells)
    return cells.var(0, correction=0).mean(-1) / cells.transpose(0, 1).flatten(1).var(-1, correction=0)


def overlap_f1(maps, targets):
    """F1 of the keys with more than uniform weight against the targets, mean over queries that have any: (h,)."""
    attended = maps * torch.arange(1, maps.shape[2] + 1, device=maps.device)[:, None] > 1
    both = (attended & targets[:, None]).sum(-1)  # (b, h, q)
    f1 = 2 * both / (attended.sum(-1) + targets.sum(-1)[:, None]).clamp(min=1)
    counted = targets.any(-1)[:, None]
    return (f1 * counted).sum((0, 2)) / counted.sum()


def between(maps, others):
    """Jensen-Shannon divergence of every head of `maps` to every head of `others`, mean over queries, bits: (h, g).

    `others = maps.roll(1, 0)` pairs each input with another one: what heads share on those is position, not content.
    """
    entropy = lambda p: -torch.xlogy(p, p).sum(-1)  # noqa: E731
    own, other, rows = entropy(maps), entropy(others), []
    for i in range(maps.shape[1]):
        mixed = entropy((maps[:, i : i + 1] + others) / 2)
        rows.append((mixed - (own[:, i : i + 1] + other) / 2).mean((0, 2)) / math.log(2))
    return torch.stack(rows)


def effective_rank(matrices):
    """exp of the entropy of the singular values' shares (Roy & Vetterli 2007): (...) from (..., rows, columns)."""
    share = F.normalize(torch.linalg.svdvals(matrices.double()), p=1, dim=-1)
    return (-torch.xlogy(share, share).sum(-1)).exp()


def packed(weights):
    """One head's map (q, k) as a word, in steps of 1/255, for tables of words and numbers."""
    return base64.b64encode((weights * 255).round().byte().cpu().numpy().tobytes()).decode()


def unpacked(word):
    """The square map (q, k) of a packed word."""
    flat = np.frombuffer(base64.b64decode(word), dtype=np.uint8) / 255
    return flat.reshape(math.isqrt(len(flat)), -1)


@contextmanager
def kept_logits():
    """Within, a list fills with the unmasked logits (b, h, q, k) of every call of F.scaled_dot_product_attention."""
    logits = []

    def keep(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        logits.append((query.double() @ key.double().mT * (scale or query.shape[-1] ** -0.5)).detach())

    with _Calls(keep):
        yield logits


@contextmanager
def hidden_keys(call, calls):
    """Within, the last query of row i of the batch is blind to key i, in call `call` of the `calls` of a forward.

    One sequence, copied as often as it has keys, so shows what each key adds to the last prediction. Causal only.
    """
    count = 0

    def edit(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **others):
        nonlocal count
        count += 1
        if (count - 1) % calls != call:
            return None
        b, q, k = len(query), query.shape[2], key.shape[2]
        seen = torch.ones(b, 1, q, k, dtype=torch.bool, device=query.device).tril(k - q)
        if attn_mask is not None:
            seen = seen & (attn_mask if attn_mask.dtype == torch.bool else attn_mask > -torch.inf)
        rows = torch.arange(b, device=query.device)
        seen[rows, :, -1, rows] = False
        bias = 0 if attn_mask is None or attn_mask.dtype == torch.bool else attn_mask
        mask = torch.zeros_like(seen, dtype=query.dtype).masked_fill(~seen, -torch.inf) + bias
        return F.scaled_dot_product_attention(query, key, value, mask, **others)

    with _Calls(edit):
        yield


@torch.no_grad()
def key_effects(predict, tokens, calls):
    """What the last prediction loses with each key: divergence KL(whole || key hidden) in nats, (calls, t).

    predict(tokens (b, t)) gives logits (b, t, classes); tokens is one sequence (t,).
    """
    whole = predict(tokens[None])[0, -1].log_softmax(-1)
    effects = []
    for call in range(calls):
        with hidden_keys(call, calls):
            without = predict(tokens.expand(len(tokens), -1))[:, -1].log_softmax(-1)
        effects.append((whole.exp() * (whole - without)).sum(-1))
    return torch.stack(effects)


class _Calls(TorchFunctionMode):
    """Shows each attention call to `look`; what that returns, unless None, stands for the call's own result."""

    def __init__(self, look):
        super().__init__()
        self.look = look

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.scaled_dot_product_attention:
            changed = self.look(*args, **(kwargs or {}))
            if changed is not None:
                return changed
        return func(*args, **(kwargs or {}))
