"""Observe attention where it happens: at calls of F.scaled_dot_product_attention, of any model.

Letters: b batch, h query head, g key-value head, r query heads per key-value head, q query, k key, t query of a block.
A measure maps a block (weights (b, h, t, k), q_positions (t,), k_positions (k,)) to values (b, h, t). NaN says that a
query has nothing to measure: it is left out of the mean. The weights live in a buffer that the next block overwrites.
"""

import math
import warnings
from contextlib import contextmanager

import pandas as pd
import torch

from lab.measure.hooks import Calls, running_module


@contextmanager
def attention_probe(measures, *, padding_mask=None, model=None, keep_maps=False, block_bytes=16 * 2**20):
    """Measure every attention call inside: `with attention_probe([entropy]) as probe: model(x)`, `probe.table()`.

    measures: {name: measure} or a list of measures. Weights are those before dropout, in float32 at least, rebuilt for
    as many queries at a time as fill block_bytes. keep_maps=True also keeps them in `probe.maps`, one (b, h, q, k)
    tensor for each call. What the model computes is unchanged.

    padding_mask: booleans (b, k), True at real tokens, False at padding, where a batch holds sequences of several
    lengths. Each is measured as if it had run alone: padded queries are left out, positions count the real tokens, and
    the mean is over all real queries. Of a cache that is not full it may hold the filled part alone. Targets of
    `mass_on` remain indices into the padded batch. Without it, a mask that hides a key from all queries of a sequence
    is taken for padding, and a UserWarning says so.

    model: within which calling modules are named; the outermost one that is called, where none is given.

    Query positions are the last of the key positions 0..k-1, as with a cache; they start at 0 where queries outnumber
    keys. Last keys that the mask hides from all queries are the room of a cache that is not full: they are left out of
    `k`, but for `maps`. Rows that are masked entirely are 0 in the weights and left out of the mean.

    nn.TransformerEncoder has a fast path, in eval mode without gradients, which calls no attention: inside, it takes
    the slow one. Its outputs are the same at tokens; at padding the fast one has 0.

    Raises ValueError where `padding_mask` does not fit a call. RuntimeError at the end where attention was not
    observed: there was no call, or nn.MultiheadAttention was asked for its weights, which it computes in its own way.
    """
    probe = _Probe(measures, padding_mask, keep_maps, block_bytes)
    with running_module(model) as name, Calls(lambda call: probe.observe(call, name())) as calls:
        yield probe
    if probe.padded:
        warnings.warn(
            "a mask hides padding, whose queries are in the means: give the probe padding_mask=", stacklevel=3
        )
    if calls.hidden or not calls.count:
        raise RuntimeError(
            f"attention was never observed: {calls.count} calls of F.scaled_dot_product_attention, {calls.hidden} of "
            'nn.MultiheadAttention past it. Load models of transformers with attn_implementation="sdpa", call '
            "nn.MultiheadAttention with need_weights=False; attention written out by hand cannot be seen"
        )


@contextmanager
def kept_logits(*, products=False):
    """Within, a list fills with the logits (b, h, q, k) of every attention call: float64, on the CPU.

    Their softmax is the map that `attention_probe` keeps: biases are in them, and -inf where a pair is masked. With
    `products` they are the scaled products of queries and keys alone, whose rank is at most the width of a head.
    """
    logits = []

    def keep(call):
        query, key = (x.detach().cpu().double() for x in (call.query, call.key))  # not every device has float64
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if call.scale is None else call.scale)
        mask = None if products else call.dense_mask()
        if mask is not None:
            mask = mask.detach().cpu()
            scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.double()
        if call.is_causal and not products:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
        logits.append(scores)

    with Calls(keep):
        yield logits


class _Probe:
    def __init__(self, measures, padding_mask, keep_maps, block_bytes):
        self.measures = measures if isinstance(measures, dict) else {m.__name__: m for m in measures}
        if len(self.measures) < len(measures):
            raise ValueError(f"two measures share a name: {[m.__name__ for m in measures]}; use a mapping")
        mask = padding_mask
        if mask is not None and (mask.dtype != torch.bool or mask.ndim != 2):
            raise ValueError(f"padding_mask is booleans (b, k), True at tokens, not {mask.dtype} {tuple(mask.shape)}")
        self.padding_mask, self.keep_maps, self.block_bytes = mask, keep_maps, block_bytes
        self.calls, self.maps, self.rows, self.padded = 0, [], [], False

    def table(self):
        """One row per call, head and measure, with the module that called; value is the mean over batch and queries,
        empty where all are NaN."""
        return pd.DataFrame(self.rows, columns=["call", "module", "head", "measure", "value"])

    @torch.no_grad()
    def observe(self, call, module):
        self.calls += 1
        query, key, mask = call.query, call.key, call.dense_mask()
        k_len = key.shape[-2]
        filled = _filled(query, key, mask, call.is_causal)
        key, mask = key[..., :filled, :], mask if mask is None else mask[..., :filled]
        for name, measure in self.measures.items():
            if getattr(measure, "queries", math.inf) < query.shape[-2]:
                raise ValueError(f"{name} has targets for {measure.queries} queries of {query.shape[-2]}")
        self.padded = self.padded or (self.padding_mask is None and _shows_padding(mask, query, key))
        totals = []
        with torch.autocast(query.device.type, enabled=False):
            for start, weights, empty, q_positions, k_positions in _blocks(
                query, key, mask, call.is_causal, call.scale, self.block_bytes
            ):
                b, h, t, width = weights.shape
                if self.keep_maps and start == 0:
                    self.maps.append(weights.new_zeros(b, h, query.shape[-2], k_len))
                if self.keep_maps:
                    self.maps[-1][:, :, start : start + t, :width] = weights
                padding_mask = self.mask_of(call, b, filled)
                for name, measure in self.measures.items():
                    values = _values(measure, weights, q_positions, k_positions, padding_mask)
                    if values.shape != (b, h, t):
                        raise ValueError(f"{name} returned {tuple(values.shape)}, not {(b, h, t)}")
                    counted = ~(values.isnan() | empty)
                    totals.append(torch.stack([values.where(counted, 0).sum((0, 2)), counted.sum((0, 2))]))  # (2, h)
        if totals:
            totals = torch.stack(totals).cpu().double().unflatten(0, (-1, len(self.measures))).sum(0)  # (measure, 2, h)
            for name, (total, count) in zip(self.measures, totals, strict=True):
                self.rows.extend((call.index, module, head, name, x) for head, x in enumerate((total / count).tolist()))

    def mask_of(self, call, b, filled):
        """`padding_mask` where the call runs, (b, filled), or None. ValueError unless it has a place for each key."""
        if self.padding_mask is None:
            return None
        q_len, k_len = call.query.shape[-2], call.key.shape[-2]
        if self.padding_mask.shape not in ((b, k_len), (b, filled)) or q_len > k_len:
            raise ValueError(
                f"padding_mask is {tuple(self.padding_mask.shape)}; "
                f"call {call.index} has {b} sequences, {q_len} queries, {k_len} keys"
            )
        return self.padding_mask[:, :filled].to(call.query.device)


def _filled(query, key, mask, is_causal):
    """How many keys there are but for the last ones that no query sees; at least as many as queries."""
    q_len, k_len = query.shape[-2], key.shape[-2]
    if q_len >= k_len:
        return k_len
    if is_causal:  # query 0 stands at key 0
        return q_len
    if mask is None or mask.shape[-1] == 1:
        return k_len
    seen = _visible(mask).reshape(-1, k_len).any(0).nonzero()
    return max(q_len, int(seen[-1]) + 1) if len(seen) else k_len


def _visible(mask):
    """Where a mask, booleans or what is added, lets a query see a key."""
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def _shows_padding(mask, query, key):
    """Whether a mask with a row for each sequence hides a key from all queries of one: in self-attention, or unlike
    another sequence's (a window or an unfilled cache hides the same keys of all)."""
    if mask is None or mask.ndim < 4 or mask.shape[-1] == 1:
        return False
    hidden = ~_visible(mask).any(2).any(1)  # (b, k)
    return bool(hidden.any()) and (query.shape[-2] == key.shape[-2] or bool((hidden != hidden[:1]).any()))


def _values(measure, weights, q_positions, k_positions, padding_mask):
    """The measure of a block (b, h, t); of each sequence without its padding, NaN at padded queries."""
    if padding_mask is None:
        return measure(weights, q_positions, k_positions)
    if hasattr(measure, "queries"):  # its targets are indices into the batch
        return measure(weights, q_positions, k_positions).masked_fill(~padding_mask[:, None, q_positions], torch.nan)
    values = weights.new_full(weights.shape[:3], torch.nan)
    for i, (keys, position) in enumerate(zip(padding_mask, padding_mask.cumsum(1) - 1, strict=True)):
        q, k = keys[q_positions], keys[k_positions]
        alone = weights[i : i + 1][:, :, q][..., k]
        values[i, :, q] = measure(alone, position[q_positions[q]], position[k_positions[k]])[0]
    return values


def _blocks(query, key, mask, is_causal, scale, block_bytes):
    """Yield (start, weights (b, h, t, k), empty (b, h, t) or False, q_positions (t,), k_positions (k,)) for each block.

    The weights equal those of F.scaled_dot_product_attention: its is_causal aligns query 0 with key 0 also where the
    lengths differ. Keys that no query of a causal block sees are left out, so k grows from block to block.
    """
    if query.ndim > 4:
        raise ValueError(f"attention_probe takes queries (b, h, q, d), (h, q, d) or (q, d), not {tuple(query.shape)}")
    query, key = (x[(None,) * (4 - x.ndim)] for x in (query, key))  # (b, h, q, d), (b, g, k, d)
    b, h = (max(sizes) for sizes in zip(query.shape[:2], key.shape[:2], strict=True))
    g, k_len, d = key.shape[1:]
    q_len, dtype = query.shape[2], torch.promote_types(query.dtype, torch.float32)
    scale = 1 / math.sqrt(d) if scale is None else scale
    query = query.expand(b, h, q_len, d)
    keys = key.to(dtype).expand(b, g, k_len, d).reshape(b * g, k_len, d).mT  # (b g, d, k)
    if mask is not None:
        mask = mask.expand(torch.broadcast_shapes(mask.shape, (q_len, k_len)))  # (..., q, k), no copy
    k_positions = torch.arange(k_len, device=query.device)
    q_positions = torch.arange(q_len, device=query.device) + max(k_len - q_len, 0)
    size = max(1, min(q_len, block_bytes // max(1, b * h * k_len * dtype.itemsize)))
    buffers = torch.empty(2, b * h * size * k_len, dtype=dtype, device=query.device)
    for start in range(0, q_len, size):
        stop = min(start + size, q_len)
        width = stop if is_causal and q_len == k_len else k_len
        scores, weights = (x[: b * h * (stop - start) * width].view(b * g, -1, width) for x in buffers)  # (b g, r t, k)
        block = query[:, :, start:stop].to(dtype).mul(scale).reshape(b * g, -1, d)
        torch.bmm(block, keys[..., :width], out=scores)
        scores, weights = (x.view(b, h, stop - start, width) for x in (scores, weights))
        if is_causal:  # every query of the block sees the keys before start
            future = torch.ones_like(scores[0, 0, :, start:], dtype=torch.bool).triu(1)
            scores[..., start:].masked_fill_(future, -torch.inf)
        if mask is not None:
            part = mask[..., start:stop, :width]
            scores.masked_fill_(~part, -torch.inf) if part.dtype == torch.bool else scores.add_(part)
        torch.softmax(scores, -1, out=weights)
        empty = mask is not None and scores.amax(-1).isneginf()
        if mask is not None:
            weights.masked_fill_(empty[..., None], 0)
        yield start, weights, empty, q_positions[start:stop], k_positions[:width]


def entropy(weights, q_positions, k_positions):
    """Shannon entropy of each row in nats, 0 log 0 = 0: (b, h, t)."""
    return weights.clamp_min(torch.finfo(weights.dtype).tiny).log_().mul_(weights).sum(-1).neg_()


def distance(weights, q_positions, k_positions):
    """Mean |q - k| under the weights, in positions: (b, h, t)."""
    gap = (q_positions[:, None] - k_positions).abs()  # (t, k)
    return torch.linalg.vecdot(weights, gap.to(weights.dtype))


def offset_mass(offset):
    """Measure: weight on the key `offset` positions before the query, NaN where that precedes the first key."""

    def measure(weights, q_positions, k_positions):
        return _picked(weights, (q_positions - offset)[None])

    measure.__name__ = f"offset_mass_{offset}"
    return measure


def mass_on(targets):
    """Measure: weight on the target keys of each query, NaN where a query has none.

    targets: integer key indices (b or 1, q), -1 for none, or a boolean pattern (b or 1, q, k). The last row belongs to
    the last query; with a cache, rows may cover all positions, and a call uses those of its own queries.
    """

    def measure(weights, q_positions, k_positions):
        rows = q_positions - max(len(k_positions) - targets.shape[1], 0)
        chosen = targets.to(weights.device)[:, rows]  # (b, t) or (b, t, k)
        if targets.dtype != torch.bool:
            return _picked(weights, chosen)
        mass = torch.linalg.vecdot(weights, chosen[:, None, :, : len(k_positions)].to(weights.dtype))
        return mass.masked_fill(~chosen.any(-1)[:, None], torch.nan)

    measure.__name__, measure.queries = "mass_on", targets.shape[1]
    return measure


def _picked(weights, target):
    """The weights (b, h, t) at key indices (b or 1, t), NaN where these are negative, 0 beyond the last key."""
    index = target.clamp(0, weights.shape[-1] - 1)[:, None, :, None].expand(*weights.shape[:3], 1)
    mass = weights.gather(-1, index).squeeze(-1)
    return mass.where((target < weights.shape[-1])[:, None], 0).masked_fill((target < 0)[:, None], torch.nan)
