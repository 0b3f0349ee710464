"""The default Transformer in one file: a decoder with pre-norm, rotary positions and GELU (§1.1).

Read it from top to bottom. A seam is an exchangeable part of the model (see registry.py). Each
class here is the base class of a seam, its default kind, or both; the other files of this package
hold further kinds. Letters of shapes:

    b batch        t token            q query        k key
    h query head   g key-value head   d head width   m model width
"""

import math
from contextlib import contextmanager, nullcontext

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, model_validator
from torch import nn
from torch.overrides import has_torch_function

from lab import names
from lab.models.masks import Causal, Everything, Mask, Padding, padding_before_tokens, real_tokens
from lab.models.registry import POSITION_DEPENDENCE, Seam
from lab.models.weights import NamedOnce

Choice = str | dict  # a kind, or {"kind": ..., **options}


class ModelConfig(BaseModel):
    """Everything that defines a model except its seed.

    `n_heads`, `mixer`, `score` and `ffn` may be lists with one entry per layer. Raises ValueError
    (pydantic's ValidationError) for unknown fields, kinds or options and for sizes that do not fit.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    vocab_size: int
    block_size: int  # number of positions of a learned encoding and of a cache
    d_model: int = 64
    n_layers: int = 2
    unique_layers: int | None = None  # distinct blocks, repeated in turn (ALBERT: 1)
    n_heads: int | list[int] = 4
    kv_heads: int | None = None  # key-value heads; default n_heads
    d_head: int | None = None  # default d_model / n_heads
    d_out: int | None = None  # classes of the LM head; default vocab_size
    bias: bool = False
    mixer: Choice | list[Choice] = "attention"
    position: Choice = "rotary"
    mask: Choice = "causal"
    score: Choice | list[Choice] = "softmax"
    heads: Choice = "full"
    ffn: Choice | list[Choice] = "gelu"
    norm: Choice = "layernorm"
    qk_norm: Choice = "none"  # over the width of a head, before positions are applied
    residual: Choice = "pre"  # the kind of Block: the places of norms and skip connections
    lm_head: Choice = "own"
    initialization: Choice = "fan-in"

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values):
        return names.known_fields(cls, values)

    @model_validator(mode="after")
    def _fits(self):
        for field, seam in SEAMS.items():
            for choice in as_list(getattr(self, field)):
                seam.resolve(choice)
        for field in SIZES:
            sizes = getattr(self, field)
            if any(size is not None and size < 1 for size in as_list(sizes)):
                raise ValueError(f"{field} must be at least 1, got {sizes}")
        for field in LISTED:
            value = getattr(self, field)
            if isinstance(value, list) and len(value) != self.n_layers:
                raise ValueError(f"{field} lists {len(value)} layers, n_layers is {self.n_layers}")
            if isinstance(value, list) and self.unique_layers is not None:
                raise ValueError(f"shared layers have one {field}, so it cannot be a list")
        if self.unique_layers is not None and self.n_layers % self.unique_layers:
            raise ValueError(
                f"unique_layers {self.unique_layers} does not divide n_layers {self.n_layers}"
            )
        for heads in as_list(self.n_heads):
            if self.d_head is None and self.d_model % heads:
                raise ValueError(
                    f"n_heads {heads} does not divide d_model {self.d_model}: set d_head or "
                    "change one"
                )
            if self.kv_heads is not None and heads % self.kv_heads:
                raise ValueError(f"kv_heads {self.kv_heads} does not divide n_heads {heads}")
        return self

    @property
    def causal(self):
        """Whether the mask hides all later tokens."""
        return Mask.build(self.mask).causal

    def layer(self, i):
        """The configuration of layer i, without lists and with all optional sizes filled in."""
        own = {field: as_list(getattr(self, field)) for field in LISTED}
        own = {field: values[i % len(values)] for field, values in own.items()}
        n_heads = own["n_heads"]
        sizes = {
            "kv_heads": self.kv_heads or n_heads,
            "d_head": self.d_head or self.d_model // n_heads,
            "d_out": self.d_out or self.vocab_size,
        }
        return self.model_copy(update=own | sizes)


LISTED = ("n_heads", "mixer", "score", "ffn")  # fields that may be lists, one entry per layer
SIZES = (
    "vocab_size",
    "block_size",
    "d_model",
    "n_layers",
    "unique_layers",
    "n_heads",
    "kv_heads",
    "d_head",
    "d_out",
)


def as_list(value):
    """`value` if it is a list, else [value]."""
    return value if isinstance(value, list) else [value]


# Positions


class Position(nn.Module, Seam):
    """A position encoding: three hooks, each the identity by default.

    One module serves all layers. `start` is the position of the first token given: the number of
    tokens already in the cache.
    """

    def __init__(self, config):
        super().__init__()

    def at_input(self, x, start=0):
        """Token embeddings x (b, t, m) with positions applied."""
        return x

    def at_query_key(self, q, k, start=0):
        """Queries (b, h, t, d) and keys (b, g, t, d) with positions applied."""
        return q, k

    def bias(self, q_len, k_len):
        """The bias added to the scores, (h, q, k), or None.

        The queries are the last q_len of the k_len positions.
        """
        return None

    def of_layer(self, i, layer):
        """The encoding of layer i with configuration `layer`: by default this module itself.

        If layers differ in their number of heads, this module has the sizes of a layer with the
        most heads. A module returned for another layer may have tables of its own but shares
        trained or drawn values.
        """
        return self

    def acts(self):
        """Names of the hooks that this encoding overrides."""
        hooks = ("at_input", "at_query_key", "bias")
        return {hook for hook in hooks if getattr(type(self), hook) is not getattr(Position, hook)}


Position.kinds["none"] = Position


class Rotary(Position, kind="rotary"):
    """Rotates pairs of components of queries and keys by position x frequency. Su 2021.

    A score then depends on the distance alone. Component i of the first half of a head pairs with
    component i of the second half, as in Llama. Two ways to read texts s times longer than in
    training: `interpolation` s divides every position by s (Chen 2023); `ntk` s multiplies the base
    by s^(d / (d - 2)), which slows the slowest pair by s and leaves the fastest unchanged (Peng
    2023 §3.1). Raises ValueError for an odd d_head and for options not above 0.
    """

    def __init__(self, config, *, base=10000.0, interpolation=1.0, ntk=1.0):
        super().__init__(config)
        if config.d_head % 2:
            raise ValueError(f"rotary rotates pairs: d_head must be even, got {config.d_head}")
        if min(base, interpolation, ntk) <= 0:
            raise ValueError(
                f"base, interpolation and ntk must be above 0, got {base}, {interpolation}, {ntk}"
            )
        if ntk != 1 and config.d_head == 2:
            raise ValueError("ntk needs more than one pair: with d_head 2 it would have no effect")
        self.options = {"base": base, "interpolation": interpolation, "ntk": ntk}
        self.base = base if ntk == 1 else base * ntk ** (config.d_head / (config.d_head - 2))
        self.interpolation = interpolation
        self.d_head = config.d_head
        self.tabulate(2 * config.block_size, torch.empty(0, dtype=torch.float32))

    def at_query_key(self, q, k, start=0):
        end = start + q.shape[2]
        if end > len(self.cos):
            self.tabulate(2 * end, self.cos)
        cos = self.cos[start:end].to(q.dtype)
        sin = self.sin[start:end].to(q.dtype)
        half = self.d_head // 2
        q = q * cos + q.roll(half, -1) * sin
        k = k * cos + k.roll(half, -1) * sin
        return q, k

    @torch.inference_mode(False)  # tables made in inference mode could not be used in training
    def tabulate(self, length, like):
        """Register buffers cos and sin (length, d), with the device and dtype of `like`."""
        pair = torch.arange(0, self.d_head, 2, dtype=torch.float64)
        frequency = self.base ** (-pair / self.d_head)
        ones = torch.ones(self.d_head // 2)
        frequency = torch.cat([frequency, frequency])
        sign = torch.cat([-ones, ones])
        position = torch.arange(length, dtype=torch.float64) / self.interpolation
        angle = position[:, None] * frequency
        cos = angle.cos()
        sin = angle.sin() * sign
        if like.dtype != torch.float64:  # not every device has float64
            cos = cos.float()
            sin = sin.float()
        self.register_buffer("cos", cos.to(like), persistent=False)
        self.register_buffer("sin", sin.to(like), persistent=False)

    def _apply(self, fn, recurse=True):
        """Move or cast the module, then recompute the tables at the precision of the new dtype."""
        super()._apply(fn, recurse)
        self.tabulate(len(self.cos), self.cos)
        return self

    def of_layer(self, i, layer):
        return self if layer.d_head == self.d_head else Rotary(layer, **self.options)


# Norms


class Norm(nn.Module, Seam):
    """x (b, t, m) -> (b, t, m): the identity."""

    sees_padding = False  # True: `known_padding` sets its padding mask
    padding_mask = None  # (b, k), True at tokens; None without padding
    repeatable = True  # False if a call draws random numbers or changes state

    def __init__(self, config):
        super().__init__()

    def forward(self, x):
        return x


Norm.kinds["none"] = Norm


class LayerNorm(Norm, kind="layernorm"):
    """(x - mean) / sqrt(var + eps), then a gain, and a shift if the model has biases. Ba 2016."""

    def __init__(self, config, *, eps=1e-5, affine=True):
        super().__init__(config)
        options = {"eps": eps, "elementwise_affine": affine, "bias": config.bias}
        self.norm = nn.LayerNorm(config.d_model, **options)

    def forward(self, x):
        return self.norm(x)


@contextmanager
def known_padding(model, padding_mask):
    """Context in which modules that average over tokens have this `padding_mask` (b, k)."""
    parts = [part for part in model.modules() if getattr(part, "sees_padding", False)]
    try:
        for part in parts:
            part.padding_mask = padding_mask
        yield
    finally:
        for part in parts:
            part.padding_mask = None


# Attention


def attend(q, k, v, mask=None, bias=None, causal=False, scale=None):
    """Attention softmax(q kᵀ scale + bias) v, (b, h, q, d).

    q (b, h, q, d); k, v (b, g, k, d). `mask` holds booleans that broadcast to (b, h, q, k), True
    where attended. `bias` is (h, q, k). `scale` is 1 / sqrt(d) by default.
    """
    if bias is not None:
        bias = bias.to(q.dtype)
        mask = bias if mask is None else torch.where(mask, bias, float("-inf"))
    grouped = k.shape[1] != q.shape[1]
    options = {"attn_mask": mask, "is_causal": causal, "enable_gqa": grouped}
    return F.scaled_dot_product_attention(q, k, v, scale=scale, **options)


class AttentionFn(nn.Module, Seam, name="Score"):
    """Attention function: forward(q, k, v, mask, bias, causal) mixes the values.

    The arguments are as in `attend`; `causal` requires as many queries as keys. A query that sees
    no key gets 0. All kinds but sparsemax call F.scaled_dot_product_attention, which probes
    intercept.
    """

    by_distance = False  # True if the function itself uses the distance between query and key
    dot_product_only = (
        False  # True if it depends on q and k only through q·k, so both may be rotated
    )

    def __init__(self, config):
        super().__init__()


SCALES = {  # factor on the scores, from the head width
    "rsqrt": lambda d: 1 / math.sqrt(d),
    "none": lambda d: 1.0,
    "half": lambda d: 1 / (2 * math.sqrt(d)),
    "inverse": lambda d: 1 / d,
}


def factor(scale, d):
    """The factor on the scores of heads of width d. Raises ValueError for an unknown scale."""
    if scale not in SCALES:
        raise ValueError(f"scale {scale!r} is unknown; choose one of {', '.join(SCALES)}")
    return SCALES[scale](d)


class Softmax(AttentionFn, kind="softmax"):
    """Scaled dot-product attention by torch's fused kernel. Vaswani 2017."""

    dot_product_only = True

    def __init__(self, config, *, scale="rsqrt"):
        super().__init__(config)
        known = factor(scale, config.d_head)
        self.factor = None if scale == "rsqrt" else known  # None: the kernel's own, 1 / sqrt(d)

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        one_query = q.shape[2] == 1 and k.shape[1] != q.shape[1] and not causal
        if one_query and not has_torch_function((q,)):  # a probe must see every query head
            return self.decode(q, k, v, mask, bias)
        return attend(q, k, v, mask, bias, causal, self.factor)

    def decode(self, q, k, v, mask=None, bias=None):
        """`forward` for one query (b, h, 1, d) and fewer key-value heads: reads each key once.

        The r = h / g query heads of a group enter the kernel as r queries.
        """
        g = k.shape[1]
        if mask is not None:
            mask = mask.expand(*q.shape[:3], k.shape[2]).unflatten(1, (g, -1)).squeeze(3)
        if bias is not None:
            bias = bias.unflatten(0, (g, -1)).squeeze(2)  # (g, r, k)
        folded = q.unflatten(1, (g, -1)).squeeze(3)  # (b, g, r, d)
        return attend(folded, k, v, mask, bias, scale=self.factor).flatten(1, 2).unsqueeze(2)


class QKVProjection(nn.Module, Seam, name="Heads"):
    """The projections to queries, keys and values and the output projection. Vaswani 2017 §3.2.2.

    n query heads and kv key-value heads (equal: MHA, fewer: GQA, one: MQA), each of width d. Every
    head reads the whole stream; W_O reads the concatenated heads. `bias`, for all four maps,
    defaults to config.bias.
    """

    history = 0  # number of earlier inputs that a query, key or value also depends on

    def __init__(self, config, *, bias=None):
        super().__init__()
        bias = config.bias if bias is None else bias
        self.d_model = config.d_model
        self.n = config.n_heads
        self.kv = config.kv_heads
        self.d = config.d_head
        self.d_value = self.d  # width of the values that are mixed and cached
        self.qkv = nn.Linear(config.d_model, (self.n + 2 * self.kv) * self.d, bias=bias)
        self.out = nn.Linear(self.n * self.d, config.d_model, bias=bias)

    def split(self, x):
        """Project x (b, t, m) to q (b, h, t, d) and k, v (b, g, t, d)."""
        heads = self.qkv(x).unflatten(-1, (-1, self.d)).transpose(1, 2)  # (b, h + 2g, t, d)
        return heads.split([self.n, self.kv, self.kv], dim=1)

    def join(self, mixed):
        """Project mixed heads (b, h, t, d) back to (b, t, m)."""
        return self.out(mixed.transpose(1, 2).flatten(2))

    def split_cached(self, x, cache):
        """`split` of x (b, t, m), whose positions follow those in `cache`."""
        return self.split(x)

    def across(self, x, memory):
        """Project x (b, t, m) to queries and memory (b, s, m) to keys and values.

        Returns q (b, h, t, d) and k, v (b, g, s, d).
        """
        queries = self.n * self.d
        q = self.project(x, slice(queries))
        k, v = self.project(memory, slice(queries, None)).split(self.kv, dim=1)
        return q, k, v

    def project(self, x, rows):
        """x projected by these rows of the weight, as heads (b, heads, t, d)."""
        bias = None if self.qkv.bias is None else self.qkv.bias[rows]
        return F.linear(x, self.qkv.weight[rows], bias).unflatten(-1, (-1, self.d)).transpose(1, 2)

    def matrices(self):
        """Weights of queries, keys and values, as views."""
        return self.qkv.weight.split([n * self.d for n in (self.n, self.kv, self.kv)])

    def query_key_weights(self):
        """Weights of queries and keys, as views."""
        return self.matrices()[:2]

    def value_weights(self):
        """Weights of the maps from the stream to the values, without W_O, as views."""
        return [self.matrices()[-1]]

    def value_matrix(self):
        """The matrix from the stream to the values, (g d, m)."""
        return self.qkv.weight.flatten(1)[-self.kv * self.d :]


QKVProjection.kinds["full"] = QKVProjection


class Cache:
    """The decoding state of one layer: named tensors and the number of positions seen."""

    def __init__(self, **tensors):
        self.tensors = tensors
        self.length = 0

    @property
    def nbytes(self):
        """Bytes of memory held by the tensors."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self.tensors.values())

    def append_inputs(self, x, history):
        """Append x (b, t, m) to the inputs kept, return all, and keep the last `history` of them.

        The kept inputs are detached: no gradient flows through them.
        """
        seen = torch.cat([self.tensors["recent"], x], 1) if "recent" in self.tensors else x
        self.tensors["recent"] = seen[:, max(0, seen.shape[1] - history) :].detach().clone()
        return seen


class KVCache(Cache):
    """Preallocated keys (b, g, context, d_head) and values (b, g, context, d_value) of a layer."""

    def __init__(self, batch, kv_heads, context, d_head, d_value=None, **tensor):
        super().__init__(
            keys=torch.empty(batch, kv_heads, context, d_head, **tensor),
            values=torch.empty(batch, kv_heads, context, d_value or d_head, **tensor),
        )

    @property
    def keys(self):
        return self.tensors["keys"]

    @property
    def values(self):
        return self.tensors["values"]

    def append(self, k, v):
        """Append k and v; return all keys and values. Raises ValueError if the cache is full."""
        end = self.length + k.shape[2]
        if end > self.keys.shape[2]:
            raise ValueError(f"the cache holds {self.keys.shape[2]} positions, {end} are needed")
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


class Visibility:
    """Masks and biases of one forward pass, computed once and shared by layers.

    Queries are the last q_len of k_len positions. `padding_mask` (b, k) is True at tokens.
    `batch_mask` is a Mask for this batch only: a pair is attended if both it and `mask` allow it.
    """

    def __init__(self, mask, q_len, k_len, *, batch, device, padding_mask=None, batch_mask=None):
        self.q_len = q_len
        self.k_len = k_len
        self.device = device
        self.padding_mask = padding_mask
        self.batch_mask = batch_mask
        self.batch = 1 if padding_mask is None and batch_mask is None else batch
        if batch_mask is not None:
            mask = mask & batch_mask
        if padding_mask is not None:
            mask = mask & Padding(padding_mask)
        self.mask = mask
        self.biases = {}
        self.masks = {}

    def bias(self, position):
        """The bias of a position encoding, (h, q, k) or None."""
        if position not in self.biases:
            self.biases[position] = position.bias(self.q_len, self.k_len)
        return self.biases[position]

    def arguments(self, *, biased, heads=1):
        """Arguments of an AttentionFn: {}, {"causal": True}, or {"mask": (b, 1 or h, q, k)}.

        b is 1 if there is neither padding nor a batch mask.
        """
        kind = type(self.mask)
        if kind is Everything or (kind is Causal and self.q_len == 1):
            return {}
        if kind is Causal and self.q_len == self.k_len and not biased:
            return {"causal": True}
        heads = heads if self.mask.per_head else 1
        if heads not in self.masks:
            sizes = {"batch": self.batch, "heads": heads, "device": self.device}
            self.masks[heads] = self.mask.dense(self.q_len, self.k_len, **sizes)
        return {"mask": self.masks[heads]}

    def query_padding_mask(self):
        """The padding mask of the queries, (b, q), or None."""
        if self.padding_mask is None:
            return None
        return self.padding_mask[:, self.k_len - self.q_len :]


# Mixers


class Mixer(nn.Module, Seam):
    """x (b, t, m) -> (b, t, m): moves information between positions.

    In decoding a mixer reads and extends a cache. Raises ValueError at construction for positions
    or masks that it cannot apply.
    """

    hooks = {"at_input"}  # hooks of Position that this mixer applies
    masks = {"causal"}  # kinds of Mask that it can apply; None: all
    position_dependence = (
        "order"  # a word of registry.POSITION_DEPENDENCE, apart from positions and heads
    )

    def __init__(self, config, position):
        super().__init__()
        self.config = config
        name = type(self).__name__
        missing = {"bias": "scores to add a bias to", "at_query_key": "queries and keys to rotate"}
        for hook in sorted(position.acts() - self.hooks):
            raise ValueError(
                f"{name} has no {missing[hook]}: position {config.position!r} cannot act in "
                "its layer"
            )
        kind = Mask.resolve(config.mask)[0]
        if self.masks is not None and kind not in map(Mask.kinds.get, self.masks):
            allowed = " or ".join(sorted(self.masks))
            raise ValueError(
                f"{name} cannot mask single pairs: the mask must be {allowed}, "
                f"not {kind.__name__.lower()}"
            )

    def inputs(self, visibility):
        """The keyword arguments that `forward` takes from a Visibility."""
        if visibility.batch_mask is not None:
            raise ValueError(
                f"{type(self).__name__} cannot mask single pairs: it takes no mask of a batch"
            )
        padding_mask = visibility.query_padding_mask()
        return {} if padding_mask is None else {"padding_mask": padding_mask}

    def forward(self, x, cache=None, padding_mask=None):
        """`padding_mask` (b, t) is False at padding, which must not affect other outputs."""
        raise NotImplementedError

    def position_dependences(self):
        """{description of a part: word of registry.POSITION_DEPENDENCE}."""
        return {f"mixer {self.config.mixer!r}": self.position_dependence}

    def init_cache(self, batch, context, **tensor):
        """An empty Cache for `batch` texts of up to `context` positions."""
        return Cache()

    def state_bytes(self, length):
        """Bytes of decoding state per text after `length` positions."""
        raise NotImplementedError

    def output_projections(self):
        """The maps that write into the residual stream."""
        return [self.out]


class QKVMixer(Mixer):
    """A mixer with queries, keys and values."""

    hooks = {"at_input", "at_query_key"}
    dot_product_only = (
        False  # True if it depends on q and k only through q·k, so both may be rotated
    )

    def __init__(self, config, position):
        super().__init__(config, position)
        self.heads = QKVProjection.build(config.heads, config)
        width = config.model_copy(update={"d_model": config.d_head})
        self.query_norm = Norm.build(config.qk_norm, width)
        self.key_norm = Norm.build(config.qk_norm, width)
        self.position = position

    def split(self, x, cache):
        """Queries (b, h, t, d), keys and values (b, g, t, d) of x, which continues the cache."""
        q, k, v = self.heads.split(x) if cache is None else self.heads.split_cached(x, cache)
        start = 0 if cache is None else cache.length
        q, k = self.position.at_query_key(self.query_norm(q), self.key_norm(k), start=start)
        return q, k, v

    def position_dependences(self):
        found = super().position_dependences()
        hooks = self.position.acts()
        position = f"position {self.config.position!r}"
        if "at_query_key" in hooks and not self.dot_product_only:
            kinds = f"mixer {self.config.mixer!r} and score {self.config.score!r}"
            found[f"{position} with {kinds}"] = "place"
        elif hooks & {"at_query_key", "bias"}:
            found[position] = "distance"
        if self.heads.history:  # the heads expect zeros before the text, where padding would be
            found[f"heads {self.config.heads!r}"] = "place"
        return found

    def recent_bytes(self, length):
        """Bytes of the inputs kept for the next queries, keys and values."""
        size = self.heads.qkv.weight.element_size()
        return min(length, self.heads.history) * self.heads.d_model * size

    def output_projections(self):
        return [self.heads.out]


class Attention(QKVMixer, kind="attention"):
    """Multi-head attention: project, apply positions, mix by the attention function, project."""

    hooks = {"at_input", "at_query_key", "bias"}
    masks = None

    def __init__(self, config, position):
        super().__init__(config, position)
        self.score = AttentionFn.build(config.score, config)
        self.dot_product_only = self.score.dot_product_only

    def forward(self, x, cache=None, **visible):
        q, k, v = self.split(x, cache)
        if cache is not None:
            k, v = cache.append(k, v)
        return self.heads.join(self.score(q, k, v, **visible))

    def inputs(self, visibility):
        bias = visibility.bias(self.position)
        visible = visibility.arguments(biased=bias is not None, heads=self.heads.n)
        return {"bias": bias} | visible

    def position_dependences(self):
        dependence = "distance" if self.score.by_distance else "order"
        return super().position_dependences() | {f"score {self.config.score!r}": dependence}

    def init_cache(self, batch, context, **tensor):
        return KVCache(batch, self.heads.kv, context, self.heads.d, self.heads.d_value, **tensor)

    def state_bytes(self, length):
        widths = self.heads.d + self.heads.d_value
        size = self.heads.qkv.weight.element_size()
        return length * self.heads.kv * widths * size + self.recent_bytes(length)


# Position-wise maps


class FeedForward(nn.Module, Seam):
    """act(x W1) W2 with hidden width ratio x d_model (default ratio 4), or `width`.

    x ── W1 ── act ── W2 ──      `bias` defaults to config.bias

    `act` is a module, so that probes can hook it. Raises ValueError if both ratio and width are
    given.
    """

    activation = None
    default_ratio = 4.0
    of_call = ()  # attributes that a call sets as inputs of a loss; None in copies
    sees_padding = False  # True: `known_padding` sets its padding mask
    padding_mask = None  # (b, k), True at tokens; None without padding
    repeatable = True  # False if a call draws random numbers or changes state

    def __init__(self, config, *, ratio=None, width=None, bias=None):
        super().__init__()
        if ratio is not None and width is not None:
            raise ValueError(f"give ratio or width, not both: {ratio} x d_model and {width}")
        d_ff = width or round((ratio or self.default_ratio) * config.d_model)
        bias = config.bias if bias is None else bias
        self.up = nn.Linear(config.d_model, d_ff, bias=bias)
        self.act = self.activation()
        self.down = nn.Linear(d_ff, config.d_model, bias=bias)

    def forward(self, x):
        return self.down(self.act(self.up(x)))

    def output_projections(self):
        """The maps that write into the residual stream."""
        return [self.down]

    def tokens(self, per_token):
        """The rows of `per_token` (b, t, ...) that are not padding, (n, ...), as input of a loss.

        Returns `per_token` itself if there is no padding mask. Raises ValueError for a padding mask
        inside an expert, whose input has no batch axis.
        """
        if self.padding_mask is None:
            return per_token
        if per_token.ndim < 3:
            raise ValueError(f"{type(self).__name__} takes no padding where it is an expert")
        return per_token[self.padding_mask[:, -per_token.shape[1] :]]

    def __getstate__(self):
        return self.__dict__ | dict.fromkeys(self.of_call)


class Gelu(FeedForward, kind="gelu"):
    """Exact GELU, with optional dropout on the hidden layer and on the output.

    x ── W1 ── act ── dropout ── W2 ── dropout ──      Hendrycks 2016; Srivastava 2014
    """

    activation = nn.GELU

    def __init__(self, config, *, ratio=None, width=None, bias=None, hidden=0.0, output=0.0):
        super().__init__(config, ratio=ratio, width=width, bias=bias)
        self.drop_hidden = nn.Dropout(hidden) if hidden else nn.Identity()
        self.drop_output = nn.Dropout(output) if output else nn.Identity()
        self.repeatable = not (hidden or output)

    def forward(self, x):
        return self.drop_output(self.down(self.drop_hidden(self.act(self.up(x)))))


# Blocks


class Block(nn.Module, Seam, name="Residual"):
    """One layer with pre-norm: attention, then feed-forward, each with its residual. Xiong 2020.

    x ──┬── norm ── mixer ── + ──┬── norm ── ffn ── + ──
        └────────────────────┘   └──────────────────┘

    A kind overrides `forward` to place norms and skip connections. To support cross-attention as
    well it should loop over `sublayers`, as the kinds in blocks.py do. `cross` is the class of the
    cross-attention, or None.
    """

    final_norm = True  # whether a norm follows the last block

    def __init__(self, config, position, cross=None):
        super().__init__()
        self.mixer = Mixer.build(config.mixer, config, position)
        self.ffn = FeedForward.build(config.ffn, config)
        self.mixer_norm = Norm.build(config.norm, config)
        self.ffn_norm = Norm.build(config.norm, config)
        self.cross = None
        if cross is not None:
            self.cross = cross(config)
            self.cross_norm = Norm.build(config.norm, config)

    def forward(self, x, *, memory=None, memory_mask=None, **seen):
        x = x + self.mixer(self.mixer_norm(x), **seen)
        if self.cross is not None:
            x = x + self.cross(self.cross_norm(x), memory=memory, mask=memory_mask)
        return x + self.ffn(self.ffn_norm(x))

    # Kinds with another form of stream, such as the two halves of a reversible model, override
    # these methods.

    @staticmethod
    def enter(x):
        """The stream before the first block, from the token embeddings (b, t, m)."""
        return x

    @staticmethod
    def leave(stream):
        """The stream after a block as a tensor (b, t, m)."""
        return stream

    @staticmethod
    def run(stream, layers):
        """Run the stream through all layers, given as pairs (block, inputs)."""
        for block, seen in layers:
            stream = block(stream, **seen)
        return stream

    @staticmethod
    def check(blocks):
        """Raise ValueError if blocks of this kind do not work with one of their parts."""


Block.kinds["pre"] = Block


# From the stream to logits


class LMHead(nn.Linear, Seam):
    """(b, t, m) -> logits (b, t, d_out), with its own weight matrix."""

    def __init__(self, config, embedding):
        super().__init__(config.d_model, config.d_out, bias=False)
        self.follow(embedding)

    def follow(self, embedding):
        """Called with the token embedding; kinds that share its weight override this method."""


LMHead.kinds["own"] = LMHead


# Initial weights


class Initialization(Seam):
    """Initializes all matrices and embeddings. Biases start at 0, norms at torch's defaults."""

    def __call__(self, model):
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv1d):
                self.matrix(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                self.embedding(module.weight)


class FanIn(Initialization, kind="fan-in"):
    """Matrices N(0, gain² / fan_in), embeddings N(0, embedding²): activations of order 1."""

    def __init__(self, *, gain=0.8, embedding=1.0):
        self.gain = gain
        self.std = embedding

    def matrix(self, weight):
        nn.init.normal_(weight, std=self.gain * weight[0].numel() ** -0.5)

    def embedding(self, weight):
        nn.init.normal_(weight, std=self.std)


# The model


class Transformer(NamedOnce):
    """tokens (b, t) -> logits (b, t, d_out). The weights depend on config and seed alone."""

    def __init__(self, config: ModelConfig, *, seed=0, cross=None):
        super().__init__()
        self.config = config
        self.mask = Mask.build(config.mask)
        layers = [config.layer(i) for i in range(config.n_layers)]
        widest = max(layers, key=lambda layer: layer.n_heads)
        own = config.unique_layers or config.n_layers
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(config.vocab_size, config.d_model)
            self.position = Position.build(config.position, widest)
            blocks = [
                Block.build(config.residual, layer, self.position.of_layer(i, layer), cross)
                for i, layer in enumerate(layers[:own])
            ]
            blocks[0].check(blocks)
            self.blocks = nn.ModuleList(blocks * (config.n_layers // own))
            self.norm = Norm.build(config.norm if blocks[0].final_norm else "none", config)
            self.lm_head = LMHead.build(config.lm_head, layers[0], self.embedding)
            Initialization.build(config.initialization)(self)

    def forward(self, tokens, **inputs):
        return self.lm_head(self.hidden(tokens, **inputs))

    def hidden(self, tokens, *, padding_mask=None, mask=None, caches=None, **inputs):
        """The input of the LM head, (b, t, m).

        `padding_mask` (b, k) is True or 1 at tokens, False or 0 at padding; k includes cached
        tokens. A padded text gets the same outputs as without padding. `mask` is a Mask for this
        batch only: a pair is attended if both it and the mask of the model allow it. `caches` has
        one cache per layer, from `self.caches()`. Other inputs, such as the memory of a decoder, go
        to every block.

        Raises ValueError for caches with a mask that is not causal, and for padding that would
        change outputs, such as in front with learned positions or between tokens with rotary ones.
        """
        padding_mask = self.real_tokens(tokens, padding_mask, caches)
        x = self.embed(tokens, caches)
        layers = self.layers(
            tokens, padding_mask=padding_mask, mask=mask, caches=caches, inputs=inputs
        )
        kind = self.blocks[0]  # the kind of block defines how the stream runs
        with self.padding_context(padding_mask):
            stream = kind.run(kind.enter(x), layers)
            return self.norm(kind.leave(stream))

    def exits(self, tokens, *, padding_mask=None, mask=None, caches=None, **inputs):
        """Yield logits (b, t, d_out) after the first block, the second, and so on."""
        padding_mask = self.real_tokens(tokens, padding_mask, caches)
        x = self.embed(tokens, caches)
        layers = self.layers(
            tokens, padding_mask=padding_mask, mask=mask, caches=caches, inputs=inputs
        )
        kind = self.blocks[0]
        stream = kind.enter(x)
        for layer in layers:
            with self.padding_context(padding_mask):
                stream = kind.run(stream, [layer])
                x = self.norm(kind.leave(stream))
            yield self.lm_head(x)

    def embed(self, tokens, caches=None):
        """Token embeddings (b, t, m), including positions that act at the input."""
        start = caches[0].length if caches else 0
        return self.position.at_input(self.embedding(tokens), start)

    def layers(self, tokens, *, padding_mask=None, mask=None, caches=None, inputs=()):
        """[(block, its inputs besides the stream)], one pair per layer."""
        if caches and not self.mask.causal:
            raise ValueError(f"a cache needs a causal mask, not {self.config.mask!r}")
        batch, length = tokens.shape[:2]
        start = caches[0].length if caches else 0
        visibility = Visibility(
            self.mask,
            length,
            start + length,
            batch=batch,
            device=tokens.device,
            padding_mask=padding_mask,
            batch_mask=mask,
        )
        caches = caches or [None] * len(self.blocks)
        return [
            (block, block.mixer.inputs(visibility) | {"cache": cache} | dict(inputs))
            for block, cache in zip(self.blocks, caches, strict=True)
        ]

    def padding_context(self, padding_mask):
        """Context in which modules that average over tokens ignore padding."""
        return nullcontext() if padding_mask is None else known_padding(self, padding_mask)

    def real_tokens(self, tokens, padding_mask, caches):
        """`padding_mask` as booleans (b, k), or None. Raises ValueError as `hidden` does."""
        if padding_mask is None:
            return None
        known = caches[0].length if caches else 0
        padding_mask = real_tokens(padding_mask, (len(tokens), known + tokens.shape[1]))
        in_front, between = padding_before_tokens(padding_mask)
        if not in_front:
            return padding_mask
        for part, dependence in self.position_dependences().items():
            if dependence == "place":
                raise ValueError(f"{part} depends on absolute positions: padding must come last")
            if dependence == "distance" and between:
                raise ValueError(
                    f"{part} depends on distances: padding must not stand between tokens"
                )
        return padding_mask

    def position_dependences(self):
        """{description of a part: word of registry.POSITION_DEPENDENCE}, for the whole model."""
        found = {f"mask {self.config.mask!r}": self.mask.position_dependence}
        if "at_input" in self.position.acts():
            found[f"position {self.config.position!r}"] = "place"
        for block in self.blocks:
            for part, dependence in block.mixer.position_dependences().items():
                known = found.get(part, dependence)
                found[part] = max(known, dependence, key=POSITION_DEPENDENCE.index)
        return found

    def output_projection_weights(self):
        """Weights of all maps that write into the residual stream: W_O and W_2 of every block."""
        maps = []
        for block in self.blocks:
            maps += [*block.mixer.output_projections(), *block.ffn.output_projections()]
        for block in self.blocks:
            maps += [] if block.cross is None else [block.cross.heads.out]
        weighted = (m for m in dict.fromkeys(maps) if isinstance(m, nn.Linear | nn.Conv1d))
        return [m.weight for m in weighted]

    def random_inputs(self, batch):
        """Random inputs of the blocks besides the tokens, from N(0, 1), by name."""
        return {}

    def caches(self, batch, context=None):
        """Empty caches, one per layer, for `context` positions (default: block_size)."""
        weight = self.embedding.weight
        like = {"device": weight.device, "dtype": weight.dtype}
        context = context or self.config.block_size
        return [block.mixer.init_cache(batch, context, **like) for block in self.blocks]

    @torch.no_grad()
    def generate(self, tokens, n, *, temperature=1.0, generator=None, padding_mask=None):
        """Continue tokens (b, t) by n more, (b, t + n), in evaluation mode.

        Temperature 0 is greedy. Prompts of different lengths are padded in front: `padding_mask`
        (b, t) is True or 1 at their tokens. Raises ValueError for an empty prompt, negative n or
        temperature, padding that is not in front, and a mask that is not causal.
        """
        if tokens.shape[1] == 0:
            raise ValueError("a prompt must have at least one token")
        if n < 0:
            raise ValueError(f"n, the number of new tokens, must be 0 or more, got {n}")
        if not temperature >= 0:
            raise ValueError(f"temperature must be 0 or above, got {temperature}")
        if padding_mask is not None:
            padding_mask = real_tokens(padding_mask, tokens.shape)
            if not padding_mask[:, -1].all() or padding_before_tokens(padding_mask)[1]:
                raise ValueError("prompts must be padded in front only, not behind or within")
        caches = self.caches(len(tokens), tokens.shape[1] + n)
        new = tokens
        with eval_mode(self):
            for _ in range(n):
                logits = self(new, caches=caches, padding_mask=padding_mask)[:, -1]
                if temperature == 0:
                    new = logits.argmax(-1, keepdim=True)
                else:
                    shares = (logits / temperature).softmax(-1)
                    new = torch.multinomial(shares, 1, generator=generator)
                tokens = torch.cat([tokens, new], dim=1)
                if padding_mask is not None:
                    padding_mask = F.pad(padding_mask, (0, 1), value=True)
        return tokens


@contextmanager
def eval_mode(model):
    """Context with the model in evaluation mode; each module's mode is restored afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield model.eval()
    finally:
        for module, mode in modes:
            module.training = mode


SEAMS = {
    "mixer": Mixer,
    "position": Position,
    "mask": Mask,
    "score": AttentionFn,
    "heads": QKVProjection,
    "ffn": FeedForward,
    "norm": Norm,
    "qk_norm": Norm,
    "residual": Block,
    "lm_head": LMHead,
    "initialization": Initialization,
}  # field of a ModelConfig -> base class of its kinds
