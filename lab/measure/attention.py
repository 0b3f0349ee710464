"""Measure attention weights in any model that calls F.scaled_dot_product_attention.

Shape letters: b batch, h query heads, g key-value heads, r query heads per key-value head,
q queries, k keys, t queries in a block. A map is the attention weights (b, h, q, k) of one call.

A measure is a function that returns one value per query: measure(map) has shape (b, h, q). Because
some maps are too large to store, it also accepts a block of queries: measure(weights, positions)
has shape (b, h, t), where weights is (b, h, t, k) and positions (t,) are the positions of the
queries among keys 0..k - 1. A measure returns NaN for queries without a value.
"""

import math
import re
import warnings
from contextlib import contextmanager

import pandas as pd
import torch

from lab.measure.hooks import Calls, running_module


class UnreadLayers(UserWarning):
    """Warning: some layers made no attention call, although layers of the same class did."""


@torch.no_grad()
def attention_maps(model, *inputs, **options):
    """List of the maps (b, h, q, k) of all attention calls in model(*inputs, **options), in order.

    `model` may be any callable, such as model.generate. `attention_probe` documents what a map
    contains and which calls cannot be observed; it also measures maps without storing them. Raises
    UnreadLayers if some layers made no attention call: map i would then not belong to layer i.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnreadLayers)
        with attention_probe([], keep_maps=True) as probe:
            model(*inputs, **options)
    return probe.maps


@contextmanager
def attention_probe(measures, *, model=None, keep_maps=False, block_bytes=16 * 2**20):
    """Context manager that measures the weights of every attention call without storing them.

        with attention_probe([entropy]) as probe:
            model(x)
        probe.table()

    measures: a list of measures, or {name: measure}. Measures receive the weights before dropout,
    in float32 or float64. The probe recomputes the weights from queries and keys, in blocks of
    queries of about block_bytes, and reuses the memory of a block, so a measure must not keep its
    input. keep_maps=True also stores the maps in `probe.maps`. The outputs of the model do not
    change.

    model: the module to which module names in the table are relative; default: the outermost
    module that is called.

    The probe assumes sequences of equal length without padding. The queries are the last of the
    positions 0..k-1, as in decoding with a cache; with more queries than keys they start at 0.
    Fully masked rows have weight 0 and are excluded from the mean.

    In eval mode without gradients nn.TransformerEncoder normally takes a fast path that makes no
    attention call; inside this context it takes the slow path.

    On exit, warns if there are measures and a mask hides a key from all queries, which suggests
    padding or unused cache entries; warns with UnreadLayers if some layers made no attention call
    although layers of the same class did. Raises RuntimeError if the model never called
    F.scaled_dot_product_attention, or if a call of nn.MultiheadAttention used need_weights=True,
    which bypasses that function.
    """
    probe = _Probe(measures, keep_maps, block_bytes)
    with running_module(model) as here, Calls(lambda call: probe.observe(call, *here())) as calls:
        yield probe
    if calls.hidden or not calls.count:
        raise RuntimeError(
            f"attention was never observed: {calls.count} calls of F.scaled_dot_product_attention, "
            f"{calls.hidden} of nn.MultiheadAttention that bypass it. Load models of transformers with "
            'attn_implementation="sdpa", call nn.MultiheadAttention with need_weights=False; '
            "attention without that function cannot be observed"
        )
    if probe.hides_keys and probe.measures:
        warnings.warn(
            "a mask hides a key from all queries: if it is padding or an unused cache entry, the "
            "means are not those of the text alone",
            stacklevel=3,
        )
    if unread := unread_layers(probe.root, probe.modules):
        warnings.warn(
            f"no attention was observed in {', '.join(unread)}", UnreadLayers, stacklevel=3
        )


def unread_layers(root, names):
    """Layers in which no attention call was observed, although one was in a sibling layer.

    Siblings are layers of the same class in the same parent. `names` are those of the modules in
    `root` with an observed call. The name of a layer is the name of a module up to its
    first number: blocks.0.mixer belongs to layer blocks.0.
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
    """Results of `attention_probe`: `table()`, `maps`, and `calls`, the number of calls."""

    def __init__(self, measures, keep_maps, block_bytes):
        named = measures if isinstance(measures, dict) else {m.__name__: m for m in measures}
        if len(named) < len(measures):
            names = [m.__name__ for m in measures]
            raise ValueError(f"two measures share a name: {names}; pass a dict")
        self.measures = named
        self.keep_maps = keep_maps
        self.block_bytes = block_bytes
        self.calls = 0
        self.maps = []
        self.rows = []
        self.root = None
        self.hides_keys = False
        self.modules = []  # name of the calling module, one per call

    def table(self):
        """DataFrame with one row per call, head and measure; `module` is the calling module.

        `value` is the mean over batch and queries without NaN, or NaN if all values are NaN.
        """
        return pd.DataFrame(self.rows, columns=["call", "module", "head", "measure", "value"])

    @torch.no_grad()
    def observe(self, call, root, module):
        """Measure one attention call, one block of queries at a time."""
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
        # copy to the CPU once for all blocks, and before double(): some devices lack float64
        sums = torch.stack(sums).cpu().double().unflatten(0, (-1, len(self.measures))).sum(0)
        for name, (total, count) in zip(self.measures, sums, strict=True):
            means = (total / count).tolist()
            self.rows += [(call.index, module, head, name, x) for head, x in enumerate(means)]


def hides_keys(mask):
    """Whether a boolean or additive attention mask hides a key from all queries of a sequence."""
    if mask is None or mask.shape[-1] == 1:
        return False
    seen = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    seen = seen.any(-2)  # (k,), (h, k) or (b, h, k)
    if seen.ndim > 1:
        seen = seen.any(-2)
    return not seen.all()


def _blocks(query, key, mask, is_causal, scale, block_bytes):
    """Compute the attention weights of one call, a block of queries at a time.

    Yields (weights (b, h, t, k), query positions (t,), fully masked rows (b, h, t)). The weights
    equal those of F.scaled_dot_product_attention, where is_causal aligns query 0 with key 0 even if
    the lengths differ. Blocks of causal self-attention contain only the keys that some query of the
    block sees, so k grows from block to block. Raises ValueError for queries of more than four
    dimensions.
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
        if is_causal:  # all queries of the block see the keys before `start`
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
    """Measure: Shannon entropy of each row of weights, in nats: (b, h, t)."""
    return torch.special.entr(weights).sum(-1)


def distance(weights, positions=None):
    """Measure: mean distance |q - k| weighted by attention, in tokens: (b, h, t)."""
    gap = (_positions(weights, positions)[:, None] - _keys(weights)).abs()  # (t, k)
    return (weights * gap).sum(-1)


def mass_on(targets):
    """Return a measure: the attention weight on the target keys of each query, (b, h, t).

    targets: key indices (b or 1, q), with -1 for no target, or a boolean pattern (b or 1, q, k).
    Row i belongs to position i. Queries without a target get NaN.
    """

    def measure(weights, positions=None):
        rows = targets.to(weights.device)[:, _positions(weights, positions)]
        return _on_targets(weights, rows)

    measure.__name__ = "mass_on"
    return measure


def query_mean(values):
    """Mean of values (b, h, q) over batch and queries, without NaN: (h,)."""
    total, count = _sums(values)
    return total / count


def _sums(values):
    """Sum and number of values (b, h, t) without NaN, over batch and queries: (h,) each."""
    counted = ~values.isnan()
    return values.where(counted, 0).sum((0, 2)), counted.sum((0, 2))


def _on_targets(weights, targets):
    """Attention weight on `targets`, as in mass_on, for the queries of a block: (b, h, t)."""
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
    """Query positions (t,); if None, those of a whole map, where queries are the last positions."""
    if positions is not None:
        return positions
    t, k = weights.shape[-2:]
    return torch.arange(t, device=weights.device) + max(k - t, 0)
