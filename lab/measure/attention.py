"""Observe attention of any model at its calls of F.scaled_dot_product_attention.

Letters: b batch, h query head, g key-value head, r query heads per key-value head, q query, k key,
t query of a block. A map holds the weights (b, h, q, k) of one call.

A measure maps weights to one value per query: measure(map) is (b, h, q). It also accepts a block of
queries: measure(weights, positions) of weights (b, h, t, k) is (b, h, t), where positions (t,) give
the place of each query among the keys 0..k - 1. NaN means that a query has no value. So the same
function serves stored maps and maps too large to store.
"""

import math
import re
import warnings
from contextlib import contextmanager

import pandas as pd
import torch

from lab.measure.hooks import Calls, running_module


class UnreadLayers(UserWarning):
    """Some layers of a model called no attention function beside layers that did."""


@torch.no_grad()
def attention_maps(model, *inputs, **options):
    """The maps (b, h, q, k) of all attention calls of model(*inputs, **options), in order.

    The model is any callable, such as model.generate. See `attention_probe` for what maps contain
    and what cannot be observed, and for measuring without storing maps. Raises UnreadLayers where
    some of a model's layers have no map, since map i would not be that of layer i.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnreadLayers)
        with attention_probe([], keep_maps=True) as probe:
            model(*inputs, **options)
    return probe.maps


@contextmanager
def attention_probe(measures, *, model=None, keep_maps=False, block_bytes=16 * 2**20):
    """Measure every attention call inside, without storing its map.

        with attention_probe([entropy]) as probe:
            model(x)
        probe.table()

    measures: {name: measure} or a list of measures. They get the weights before dropout, in float32
    or wider, recomputed in blocks of queries of about block_bytes. A measure must not keep them,
    because the next block overwrites them. keep_maps=True also stores the maps, in `probe.maps`.
    The outputs of the model are unchanged.

    model: the module that names in the table are relative to; by default the outermost module that
    is called.

    All sequences have one length, without padding. Queries are the last of the positions 0..k-1, as
    with a cache; they start at 0 if there are more queries than keys. Fully masked rows have weight
    0 and are not part of the mean.

    The fast path of nn.TransformerEncoder, in eval mode without gradients, calls no attention
    function; inside this context the slow path runs.

    Warns at the end if a mask hid a key from all queries, as it does to padding and to the free part
    of a cache; and with UnreadLayers, naming them, if layers called no attention function beside
    layers of their kind that did. Raises RuntimeError if no attention was observed: there was no
    call, or nn.MultiheadAttention was called with need_weights, which does not call
    F.scaled_dot_product_attention.
    """
    probe = _Probe(measures, keep_maps, block_bytes)
    with running_module(model) as here, Calls(lambda call: probe.observe(call, *here())) as calls:
        yield probe
    if calls.hidden or not calls.count:
        raise RuntimeError(
            f"attention was never observed: {calls.count} calls of F.scaled_dot_product_attention, "
            f"{calls.hidden} of nn.MultiheadAttention past it. Load models of transformers with "
            'attn_implementation="sdpa", call nn.MultiheadAttention with need_weights=False; '
            "attention written out by hand cannot be seen"
        )
    if probe.hides_keys and probe.measures:
        warnings.warn(
            "a mask hides a key from all queries: if it is padding or a free place of a cache, the "
            "means are not those of the text alone",
            stacklevel=3,
        )
    if unread := unread_layers(probe.root, probe.modules):
        warnings.warn(
            f"no attention was observed in {', '.join(unread)}", UnreadLayers, stacklevel=3
        )


def unread_layers(root, names):
    """Names of layers that are none of `names`, beside layers of their class that are.

    A layer is what a name begins with, up to its first number: blocks.0 of blocks.0.mixer.
    """
    found = [re.match(r"(?:.*?\.)?\d+(?=\.|$)", name) for name in names]
    layers = list(dict.fromkeys(match[0] for match in found if match))
    unread = {}
    for layer in layers:
        folder = layer.rpartition(".")[0]
        kind = type(root.get_submodule(layer))
        for name, child in root.get_submodule(folder).named_children():
            other = f"{folder}.{name}" if folder else name
            if type(child) is kind and other not in layers:
                unread[other] = None
    return list(unread)


class _Probe:
    """The object of `attention_probe`: `table()`, `maps`, and `calls`, the number of calls."""

    def __init__(self, measures, keep_maps, block_bytes):
        named = measures if isinstance(measures, dict) else {m.__name__: m for m in measures}
        if len(named) < len(measures):
            names = [m.__name__ for m in measures]
            raise ValueError(f"two measures share a name: {names}; use a mapping")
        self.measures = named
        self.keep_maps = keep_maps
        self.block_bytes = block_bytes
        self.calls = 0
        self.maps = []
        self.rows = []
        self.root = None
        self.hides_keys = False
        self.modules = []  # the name of the module of each call

    def table(self):
        """One row per call, head and measure, with the module that called.

        The value is the mean over batch and queries, missing if all are NaN.
        """
        return pd.DataFrame(self.rows, columns=["call", "module", "head", "measure", "value"])

    @torch.no_grad()
    def observe(self, call, root, module):
        """Measure one call, block by block."""
        self.calls += 1
        self.root = root
        self.modules.append(module)
        query, key, mask = call.query, call.key, call.dense_mask()
        q_len, k_len = query.shape[-2], key.shape[-2]
        self.hides_keys |= hides_keys(mask)
        sums = []
        start = 0
        with torch.autocast(query.device.type, enabled=False):
            for weights, positions, empty in _blocks(
                query, key, mask, call.is_causal, call.scale, self.block_bytes
            ):
                b, h, t, width = weights.shape
                if self.keep_maps:
                    if start == 0:
                        self.maps.append(weights.new_zeros(b, h, q_len, k_len))
                    self.maps[-1][:, :, start : start + t, :width] = weights
                start += t
                for name, measure in self.measures.items():
                    values = measure(weights, positions)
                    if values.shape != (b, h, t):
                        raise ValueError(f"{name} returned {tuple(values.shape)}, not {(b, h, t)}")
                    sums.append(torch.stack(_sums(values.masked_fill(empty, torch.nan))))  # (2, h)
        if not sums:
            return
        # one copy from the device for all blocks; some devices lack float64
        sums = torch.stack(sums).cpu().double().unflatten(0, (-1, len(self.measures))).sum(0)
        for name, (total, count) in zip(self.measures, sums, strict=True):
            means = (total / count).tolist()
            self.rows += [(call.index, module, head, name, x) for head, x in enumerate(means)]


def hides_keys(mask):
    """Whether a mask, boolean or additive, hides a key from all queries of a text."""
    if mask is None or mask.shape[-1] == 1:
        return False
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    seen = seen.any(-2)  # (k,), (h, k) or (b, h, k)
    if seen.ndim > 1:
        seen = seen.any(-2)
    return not seen.all()


def _blocks(query, key, mask, is_causal, scale, block_bytes):
    """Yield the weights of a call for some queries at a time.

    Each block is (weights (b, h, t, k), positions of the queries (t,), fully masked rows (b, h,
    t)). The weights equal those of F.scaled_dot_product_attention, whose is_causal aligns query 0
    with key 0 even if the lengths differ. A causal block has only the keys that its queries see, so
    k grows from block to block.
    """
    if query.ndim > 4:
        shape = tuple(query.shape)
        raise ValueError(f"queries are (b, h, q, d), (h, q, d) or (q, d), not {shape}")
    query, key = (x[(None,) * (4 - x.ndim)] for x in (query, key))  # (b, h, q, d), (b, g, k, d)
    b, h = (max(sizes) for sizes in zip(query.shape[:2], key.shape[:2], strict=True))
    g, k_len, d = key.shape[1:]
    q_len = query.shape[2]
    dtype = torch.promote_types(query.dtype, torch.float32)
    scale = 1 / math.sqrt(d) if scale is None else scale
    query = query.expand(b, h, q_len, d)
    keys = key.to(dtype).expand(b, g, k_len, d).reshape(b * g, k_len, d).mT  # (b g, d, k)
    if mask is not None:
        mask = mask.expand(torch.broadcast_shapes(mask.shape, (q_len, k_len)))  # no copy
    positions = torch.arange(q_len, device=query.device) + max(k_len - q_len, 0)
    size = max(1, min(q_len, block_bytes // max(1, b * h * k_len * dtype.itemsize)))
    buffers = torch.empty(2, b * h * size * k_len, dtype=dtype, device=query.device)
    for start in range(0, q_len, size):
        stop = min(start + size, q_len)
        t = stop - start
        width = stop if is_causal and q_len == k_len else k_len
        scores, weights = (x[: b * h * t * width].view(b, h, t, width) for x in buffers)
        block = query[:, :, start:stop].to(dtype).mul(scale).reshape(b * g, -1, d)  # (b g, r t, d)
        torch.bmm(block, keys[..., :width], out=scores.view(b * g, -1, width))
        if is_causal:  # every query of the block sees the keys before start
            future = torch.ones_like(scores[0, 0, :, start:], dtype=torch.bool).triu(1)
            scores[..., start:].masked_fill_(future, -torch.inf)
        if mask is not None:
            part = mask[..., start:stop, :width]
            if part.dtype == torch.bool:
                scores.masked_fill_(~part, -torch.inf)
            else:
                scores.add_(part)
        torch.softmax(scores, -1, out=weights)
        empty = torch.zeros(b, h, t, dtype=torch.bool, device=query.device)
        if mask is not None:
            empty = scores.amax(-1).isneginf()
            weights.masked_fill_(empty[..., None], 0)
        yield weights, positions[start:stop], empty


def entropy(weights, positions=None):
    """Shannon entropy of each row in nats, 0 log 0 = 0: (b, h, t)."""
    return torch.special.entr(weights).sum(-1)


def distance(weights, positions=None):
    """Mean |q - k| under the weights, in positions: (b, h, t)."""
    gap = (_positions(weights, positions)[:, None] - _keys(weights)).abs()  # (t, k)
    return (weights * gap).sum(-1)


def mass_on(targets):
    """Measure: weight on the target keys of each query, NaN for queries without a target.

    targets: key indices (b or 1, q), -1 for none, or a boolean pattern (b or 1, q, k), a row for
    each position.
    """

    def measure(weights, positions=None):
        rows = targets.to(weights.device)[:, _positions(weights, positions)]
        return _on_targets(weights, rows)

    measure.__name__ = "mass_on"
    return measure


def query_mean(values):
    """Mean of values (b, h, q) over batch and queries, ignoring NaN: (h,)."""
    total, count = _sums(values)
    return total / count


def _sums(values):
    """Sum of values (b, h, t) over batch and queries, and number of non-NaN values: (h,) each."""
    counted = ~values.isnan()
    return values.where(counted, 0).sum((0, 2)), counted.sum((0, 2))


def _on_targets(weights, targets):
    """Weight on target keys, indices (b or 1, t) or a pattern (b or 1, t, k): (b, h, t)."""
    if targets.dtype == torch.bool:
        some = targets.any(-1)
        pattern = targets[..., : weights.shape[-1]]
    else:
        some = targets >= 0
        pattern = targets[..., None] == _keys(weights)
    return (weights * pattern[:, None]).sum(-1).masked_fill(~some[:, None], torch.nan)


def _keys(weights):
    return torch.arange(weights.shape[-1], device=weights.device)


def _positions(weights, positions):
    """Positions of the queries of a block; by default the last ones, as for a whole map."""
    if positions is not None:
        return positions
    t, k = weights.shape[-2:]
    return torch.arange(t, device=weights.device) + max(k - t, 0)
