"""The default Transformer in one file: a pre-norm decoder with rotary positions and GELU (§1.1).

Read it from top to bottom; `Transformer`, at the end, combines the parts. A seam is an exchangeable
part of the model (see registry.py). This file has the base class and the default kind of each seam
except the mask; the other files of this package define further kinds. Shape letters:

    b batch        t token            q query        k key
    h query head   g key-value head   d head width   m model width
"""

from contextlib import nullcontext
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import BaseModel, Field, model_validator
from torch import nn
from torch.overrides import has_torch_function

from lab import names
from lab.models import decoding, kernels
from lab.models.masks import Causal, Mask, Visibility
from lab.models.padding import Padding, known_padding
from lab.models.registry import Part, Seam
from lab.models.rotation import check_rotary, rotations
from lab.models.weights import NamedOnce, OfHeads

Choice = str | dict  # a kind, or {"kind": ..., **options}
Size = Annotated[int, Field(ge=1)]
PER_LAYER = ("n_heads", "mixer", "score", "ffn")  # fields that may be lists, one entry per layer


class ModelConfig(BaseModel, extra="forbid", frozen=True, strict=True):
    """All settings of a model except its seed. Raises ValueError if they are invalid."""

    vocab_size: Size
    block_size: Size  # context: number of learned positions, default size of caches
    d_model: Size = 64
    n_layers: Size = 2
    unique_layers: Size | None = None  # distinct blocks, which the stack repeats (ALBERT: 1)
    n_heads: Size | list[Size] = 4
    kv_heads: Size | None = None  # key-value heads; default n_heads
    d_head: Size | None = None  # default d_model / n_heads
    d_out: Size | None = None  # number of logits per token; default vocab_size
    bias: bool = False
    mixer: Choice | list[Choice] = "attention"
    position: Choice = "rotary"
    mask: Choice = "causal"
    score: Choice | list[Choice] = "softmax"
    projection: Choice = "full"
    ffn: Choice | list[Choice] = "gelu"
    norm: Choice = "layernorm"
    qk_norm: Choice = "none"  # norm of q and k over d_head, before positions are applied
    residual: Choice = "pre"  # kind of Block: where norms and skip connections are
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
        for field in PER_LAYER:
            value = getattr(self, field)
            if isinstance(value, list) and len(value) != self.n_layers:
                raise ValueError(f"{field} has {len(value)} entries, n_layers is {self.n_layers}")
            if isinstance(value, list) and self.unique_layers is not None:
                raise ValueError(f"{field} cannot be a list if unique_layers is set")
        unique = self.unique_layers or self.n_layers
        if self.n_layers % unique:
            raise ValueError(f"unique_layers {unique} does not divide n_layers {self.n_layers}")
        for heads in as_list(self.n_heads):
            if self.d_head is None and self.d_model % heads:
                raise ValueError(f"n_heads {heads} does not divide d_model {self.d_model}")
            if self.kv_heads is not None and heads % self.kv_heads:
                raise ValueError(f"kv_heads {self.kv_heads} does not divide n_heads {heads}")
        return self

    @property
    def causal(self):
        """Whether the mask hides all later tokens."""
        return Mask.build(self.mask).causal

    def layer(self, i):
        """The ModelConfig of layer i.

        Each per-layer list becomes its entry for this layer, and None becomes the default.
        """
        own = {field: as_list(getattr(self, field)) for field in PER_LAYER}
        own = {field: values[i % len(values)] for field, values in own.items()}
        own["kv_heads"] = self.kv_heads or own["n_heads"]
        own["d_head"] = self.d_head or self.d_model // own["n_heads"]
        own["d_out"] = self.d_out or self.vocab_size
        return self.model_copy(update=own)


def as_list(value):
    return value if isinstance(value, list) else [value]


class Position(Part, Seam, kind="none"):
    """Base class of position encodings, which override some of its three hooks.

    The hooks are at_input, at_query_key and bias; in kind "none" they do nothing. `start` is the
    number of cached tokens.
    """

    def at_input(self, x, start=0):
        """Add positions to the token embeddings x (b, t, m)."""
        return x

    def at_query_key(self, q, k, start=0):
        """Apply positions to queries (b, h, t, d) and keys (b, g, t, d)."""
        return q, k

    def bias(self, q_len, k_len):
        """A bias (h, q, k) on the scores, or None. The queries are the last q_len positions."""
        return None

    def of_layer(self, i, layer):
        """The encoding for layer i.

        `self` was built for the layer with the most heads; layer i may have fewer.
        """
        return self

    def acts(self):
        """Names of the hooks that this encoding overrides."""
        hooks = ("at_input", "at_query_key", "bias")
        return {hook for hook in hooks if getattr(type(self), hook) is not getattr(Position, hook)}


class Rotary(Position, kind="rotary"):
    """RoPE: rotates pairs of query and key components by position x frequency. Su 2021.

    Scores depend only on relative positions. Component i pairs with i + d/2, as in Llama. Options:
    see rotation.py. Raises ValueError for an odd d_head and for options that are not positive.
    """

    def __init__(self, config, *, base=10000.0, interpolation=1.0, ntk=1.0):
        super().__init__(config)
        self.options = (base, interpolation, ntk)
        check_rotary(config.d_head, *self.options)

    def of_layer(self, i, layer):
        check_rotary(layer.d_head, *self.options)
        return self

    def at_query_key(self, q, k, start=0):
        _, _, t, d = q.shape
        end = start + t
        power_of_2 = 1 << end.bit_length()  # limits the number of tables to compute and cache
        cos, sin = rotations(power_of_2, d, *self.options, q.device, q.dtype)
        cos = cos[start:end]
        sin = sin[start:end]
        return q * cos + q.roll(d // 2, -1) * sin, k * cos + k.roll(d // 2, -1) * sin


class Norm(Part, Seam, kind="none"):
    """Normalization, (b, t, m) -> (b, t, m). Kind "none" is the identity."""

    def forward(self, x):
        return x


class LayerNorm(Norm, kind="layernorm"):
    """(x - mean) / sqrt(var + eps) with gain, and with bias if config.bias is True. Ba 2016."""

    def __init__(self, config, *, eps=1e-5, affine=True):
        super().__init__(config)
        self.norm = nn.LayerNorm(config.d_model, eps, affine, bias=config.bias)

    def forward(self, x):
        return self.norm(x)


class AttentionFn(Part, Seam, name="Score"):
    """Base class of attention functions, with the arguments of `attend` except `scale`.

    They return 0 for queries that see no key.
    """


def attend(q, k, v, mask=None, bias=None, causal=False, scale=None):
    """softmax(scale · q kᵀ + bias) v, of shape (b, h, q, d).

    q (b, h, q, d); k and v (b, g, k, d); boolean mask, broadcastable to (b, h, q, k), True where
    attended; bias (h, q, k). Default scale: 1 / sqrt(d). `causal` needs as many queries as keys.
    """
    if bias is not None:
        bias = bias.to(q.dtype)
        mask = bias if mask is None else torch.where(mask, bias, float("-inf"))
    grouped = k.shape[1] != q.shape[1]
    options = {"attn_mask": mask, "is_causal": causal, "enable_gqa": grouped}
    return F.scaled_dot_product_attention(q, k, v, scale=scale, **options)


class Softmax(AttentionFn, kind="softmax"):
    """Scaled dot-product attention with torch's fused kernel. Vaswani 2017."""

    def __init__(self, config, *, scale="rsqrt"):
        super().__init__(config)
        self.factor = None if scale == "rsqrt" else kernels.factor(scale, config.d_head)

    def forward(self, q, k, v, mask=None, bias=None, causal=False):
        groups = k.shape[1]
        one_query = q.shape[2] == 1 and q.shape[1] != groups and not causal
        if one_query and not has_torch_function((q,)):  # probes must see every query head
            q, mask, bias = decoding.fold_groups(q, mask, bias, groups)
            return attend(q, k, v, mask, bias, False, self.factor).flatten(1, 2).unsqueeze(2)
        return attend(q, k, v, mask, bias, causal, self.factor)


class QKVProjection(Part, OfHeads, Seam, name="Heads", kind="full"):
    """The projections W_Q, W_K and W_V, and the output projection W_O. Vaswani 2017 §3.2.2.

    There are n query heads and kv key-value heads (MHA: kv = n, GQA: kv < n, MQA: kv = 1), each of
    width d. All heads read the whole residual stream. `bias` applies to all four projections.
    """

    history = 0  # number of earlier tokens that q, k and v of a token also depend on

    def __init__(self, config, *, bias=None):
        super().__init__(config)
        bias = config.bias if bias is None else bias
        self.d_model = config.d_model
        self.n = config.n_heads
        self.kv = config.kv_heads
        self.d = config.d_head
        self.d_value = self.d  # width of a value vector
        self.qkv = nn.Linear(config.d_model, (self.n + 2 * self.kv) * self.d, bias=bias)
        self.out = nn.Linear(self.n * self.d, config.d_model, bias=bias)

    def split(self, x, cache=None):
        """Project x (b, t, m), the new tokens, to q (b, h, t, d) and k, v (b, g, t, d)."""
        heads = self.qkv(x).unflatten(-1, (-1, self.d)).transpose(1, 2)  # (b, h + 2g, t, d)
        return heads.split([self.n, self.kv, self.kv], dim=1)

    def join(self, mixed):
        """Project the outputs of all heads (b, h, t, d) to (b, t, m)."""
        return self.out(mixed.transpose(1, 2).flatten(2))


class Mixer(Part, Seam):
    """Base class of token mixers (b, t, m) -> (b, t, m), such as attention.

    Decoding passes a cache.
    """


class QKVMixer(Mixer):
    """Base class of mixers with queries, keys and values; applies QK norm and positions."""

    def __init__(self, config, position):
        super().__init__(config, position)
        self.heads = QKVProjection.build(config.projection, config)
        of_head = config.model_copy(update={"d_model": config.d_head})
        self.query_norm = Norm.build(config.qk_norm, of_head)
        self.key_norm = Norm.build(config.qk_norm, of_head)
        self.position = position

    def split(self, x, cache):
        """Queries (b, h, t, d), keys and values (b, g, t, d) of x, the new tokens."""
        q, k, v = self.heads.split(x, cache)
        start = 0 if cache is None else cache.length
        q, k = self.position.at_query_key(self.query_norm(q), self.key_norm(k), start=start)
        return q, k, v


class Attention(QKVMixer, decoding.KeepsKeys, kind="attention"):
    """Multi-head attention: project to q, k, v; apply positions; attend; project back."""

    def __init__(self, config, position):
        super().__init__(config, position)
        self.score = AttentionFn.build(config.score, config)

    def forward(self, x, cache=None, **visible):
        q, k, v = self.split(x, cache)
        if cache is not None:
            k, v = cache.append(k, v)
        return self.heads.join(self.score(q, k, v, **visible))

    def inputs(self, seen):
        """The keyword arguments of `forward`, built from the Visibility `seen`."""
        if self.position not in seen.biases:
            seen.biases[self.position] = self.position.bias(seen.q_len, seen.k_len)
        visible = {"bias": seen.biases[self.position]}
        kind = type(seen.mask)
        if kind is Mask or (kind is Causal and seen.q_len == 1):
            return visible
        if kind is Causal and seen.q_len == seen.k_len and visible["bias"] is None:
            return visible | {"causal": True}  # the fused kernel applies the mask itself
        return visible | {"mask": seen.dense(self.heads.n)}


class FeedForward(Part, Seam):
    """act(x W1) W2, with hidden width `width` or ratio x d_model. Probes hook the module `act`."""

    activation = None
    default_ratio = 4.0

    def __init__(self, config, *, ratio=None, width=None, bias=None):
        super().__init__(config)
        if ratio is not None and width is not None:
            raise ValueError(f"give ratio or width, not both: {ratio} x d_model and {width}")
        d_ff = width or round((ratio or self.default_ratio) * config.d_model)
        bias = config.bias if bias is None else bias
        self.up = nn.Linear(config.d_model, d_ff, bias=bias)
        self.act = self.activation()
        self.down = nn.Linear(d_ff, config.d_model, bias=bias)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Gelu(FeedForward, kind="gelu"):
    """Exact GELU, with optional dropout on the hidden layer and on the output. Hendrycks 2016."""

    activation = nn.GELU

    def __init__(self, config, *, ratio=None, width=None, bias=None, hidden=0.0, output=0.0):
        super().__init__(config, ratio=ratio, width=width, bias=bias)
        self.drop_hidden = nn.Dropout(hidden) if hidden else nn.Identity()
        self.drop_output = nn.Dropout(output) if output else nn.Identity()
        self.repeatable = not (hidden or output)  # False if calls are random or change state

    def forward(self, x):
        return self.drop_output(self.down(self.drop_hidden(self.act(self.up(x)))))


class Block(Part, Seam, name="Residual", kind="pre"):
    """One pre-norm layer: mixer, then feed-forward, each with a skip connection. Xiong 2020.

    x ──┬── norm ── mixer ── + ──┬── norm ── ffn ── + ──
        └────────────────────┘   └──────────────────┘
    """

    final_norm = True  # whether a norm follows the last block

    def __init__(self, config, position):
        super().__init__(config)
        self.mixer = Mixer.build(config.mixer, config, position)
        self.ffn = FeedForward.build(config.ffn, config)
        self.mixer_norm = Norm.build(config.norm, config)
        self.ffn_norm = Norm.build(config.norm, config)

    def forward(self, x, **seen):
        x = x + self.mixer(self.mixer_norm(x), **seen)
        return x + self.ffn(self.ffn_norm(x))

    @staticmethod
    def stack(x, layers):
        """Run x (b, t, m) through all (block, inputs) pairs. Some kinds override this."""
        for block, seen in layers:
            x = block(x, **seen)
        return x


class LMHead(nn.Linear, Seam, kind="own"):
    """(b, t, m) -> logits (b, t, d_out), with its own weight (kind "tied": the embedding's)."""

    def __init__(self, config, embedding):
        super().__init__(config.d_model, config.d_out, bias=False)


class Initialization(Seam, kind="fan-in"):
    """Matrices ~ N(0, gain² / fan_in), embeddings ~ N(0, embedding²), biases 0, norms unchanged."""

    def __init__(self, *, gain=0.8, embedding=1.0):
        self.gain = gain
        self.std = embedding

    def matrix(self, weight):
        nn.init.normal_(weight, std=self.gain * weight[0].numel() ** -0.5)

    def embedding(self, weight):
        nn.init.normal_(weight, std=self.std)

    def __call__(self, model):
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Conv1d):
                self.matrix(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                self.embedding(module.weight)


class Transformer(NamedOnce):
    """Map tokens (b, t) to logits (b, t, d_out). Config and seed determine the initial weights."""

    @staticmethod
    def make_block(config, position):
        return Block.build(config.residual, config, position)

    def __init__(self, config: ModelConfig, *, seed=0):
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
                self.make_block(layer, self.position.of_layer(i, layer))
                for i, layer in enumerate(layers[:own])
            ]
            self.blocks = nn.ModuleList(blocks * (config.n_layers // own))
            self.norm = Norm.build(config.norm if blocks[0].final_norm else "none", config)
            self.lm_head = LMHead.build(config.lm_head, layers[0], self.embedding)
            Initialization.build(config.initialization)(self)

    def forward(self, tokens, **inputs):
        return self.lm_head(self.hidden(tokens, **inputs))

    def hidden(self, tokens, *, mask=None, padding_mask=None, caches=None, **inputs):
        """The input of the LM head, (b, t, m).

        `mask` is an additional Mask for this batch. `padding_mask` (b, k), True at tokens, covers
        cached tokens too; it is short for mask=Padding(padding_mask, mask). `caches` has one cache
        per layer, from `self.caches`. Other inputs are passed to every block.
        Raises ValueError for tokens outside the vocabulary; on a GPU, torch raises a device-side
        assert instead.
        """
        start = caches[0].length if caches else 0
        try:
            x = self.embedding(tokens)
            batch, t, _ = x.shape
        except (IndexError, TypeError, RuntimeError, ValueError) as error:
            wanted = f"integers (b, t) from 0 to {self.config.vocab_size - 1}"
            found = f"{tokens.dtype} {tuple(tokens.shape)}"
            raise ValueError(f"tokens must be {wanted}, not {found}") from error
        x = self.position.at_input(x, start)
        mask = mask if padding_mask is None else Padding(padding_mask, mask)
        seen = Visibility(self.mask, t, start + t, batch=batch, device=x.device, batch_mask=mask)
        layers = []
        padded = isinstance(mask, Padding)
        with known_padding(self, mask, (batch, start + t)) if padded else nullcontext():
            for block, cache in zip(self.blocks, caches or [None] * len(self.blocks), strict=True):
                layers.append((block, block.mixer.inputs(seen) | {"cache": cache} | inputs))
            return self.norm(self.blocks[0].stack(x, layers))

    caches = decoding.empty_caches
    generate = decoding.generate


SEAMS = {
    "mixer": Mixer,
    "position": Position,
    "mask": Mask,
    "score": AttentionFn,
    "projection": QKVProjection,
    "ffn": FeedForward,
    "norm": Norm,
    "qk_norm": Norm,
    "residual": Block,
    "lm_head": LMHead,
    "initialization": Initialization,
}  # {field of ModelConfig: base class of its kinds}
