"""The Transformer composed from one configuration: embeddings, blocks, readout, generation with a cache."""

from contextlib import contextmanager

import torch
from pydantic import BaseModel, ConfigDict, model_validator
from torch import nn

from lab.models.feedforward import FeedForward
from lab.models.heads import Heads
from lab.models.initialization import Initialization
from lab.models.masks import Mask
from lab.models.mixers import Mixer
from lab.models.norms import Norm, leaving_out
from lab.models.positions import Position
from lab.models.readouts import Readout
from lab.models.residuals import Residual
from lab.models.scores import Score
from lab.models.sharing import named_once
from lab.models.sight import Sight

Choice = str | dict  # a kind, or {"kind": ..., its options}
SEAMS = {
    "mixer": Mixer, "position": Position, "mask": Mask, "score": Score, "heads": Heads, "ffn": FeedForward,
    "norm": Norm, "qk_norm": Norm, "residual": Residual, "readout": Readout, "initialization": Initialization,
}  # fmt: skip


class ModelConfig(BaseModel):
    """Everything that defines a model but its seed. `n_heads`, `mixer` and `score` may be lists, an entry a layer."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    vocabulary: int
    context: int  # positions a learned encoding and a cache hold
    d_model: int = 64
    n_layers: int = 2
    unique_layers: int | None = None  # blocks with weights of their own, used in turn; default n_layers, ALBERT 1
    n_heads: int | list[int] = 4
    kv_heads: int | None = None  # key-value heads; default n_heads
    d_head: int | None = None  # default d_model / n_heads
    d_out: int | None = None  # width of the readout; default vocabulary
    bias: bool = False
    mixer: Choice | list[Choice] = "attention"
    position: Choice = "rotary"
    mask: Choice = "causal"
    score: Choice | list[Choice] = "softmax"
    heads: Choice = "full"
    ffn: Choice = "gelu"
    norm: Choice = "layernorm"
    qk_norm: Choice = "none"  # over the width of a head, before positions turn it
    residual: Choice = "pre"
    readout: Choice = "own"
    initialization: Choice = "fan-in"

    @model_validator(mode="after")
    def _fits(self):
        for field, seam in SEAMS.items():
            choice = getattr(self, field)
            for each in choice if isinstance(choice, list) else [choice]:
                seam.resolve(each)
        for field in ("vocabulary", "context", "d_model", "n_layers", "unique_layers", "n_heads", "kv_heads",
                      "d_head", "d_out"):  # fmt: skip
            sizes = getattr(self, field)
            if any(size is not None and size < 1 for size in (sizes if isinstance(sizes, list) else [sizes])):
                raise ValueError(f"{field} must be at least 1, got {sizes}")
        for field in ("n_heads", "mixer", "score"):
            value = getattr(self, field)
            if isinstance(value, list) and len(value) != self.n_layers:
                raise ValueError(f"{field} lists {len(value)} layers, n_layers is {self.n_layers}")
            if self.unique_layers is not None and isinstance(value, list):
                raise ValueError(f"shared layers have one {field}, not a list of them")
        if self.unique_layers is not None and self.n_layers % self.unique_layers:
            raise ValueError(f"unique_layers {self.unique_layers} does not divide n_layers {self.n_layers}")
        for heads in self.n_heads if isinstance(self.n_heads, list) else [self.n_heads]:
            if self.d_head is None and self.d_model % heads:
                raise ValueError(f"n_heads {heads} does not divide d_model {self.d_model}; give d_head, or change one")
            if self.kv_heads is not None and heads % self.kv_heads:
                raise ValueError(f"kv_heads {self.kv_heads} does not divide n_heads {heads}")
        return self

    @property
    def causal(self):
        return Mask.build(self.mask).causal

    def layer(self, i):
        """The configuration of layer i with every size a number: n_heads, kv_heads, d_head, d_out filled in."""
        n_heads, mixer, score = (
            value[i] if isinstance(value, list) else value for value in (self.n_heads, self.mixer, self.score)
        )
        return self.model_copy(
            update={
                "n_heads": n_heads,
                "mixer": mixer,
                "score": score,
                "kv_heads": self.kv_heads or n_heads,
                "d_head": self.d_head or self.d_model // n_heads,
                "d_out": self.d_out or self.vocabulary,
            }
        )


class Block(nn.Module):
    """What mixes positions, then the position-wise map, each inside its residual."""

    def __init__(self, config, position):
        super().__init__()
        self.mixer = Mixer.build(config.mixer, config, position)
        self.ffn = FeedForward.build(config.ffn, config)
        self.attention_residual = Residual.build(config.residual, config)
        self.ffn_residual = Residual.build(config.residual, config)

    def branches(self, **inputs):
        """(residual, branch) in their order."""
        return [(self.attention_residual, lambda y: self.mixer(y, **inputs)), (self.ffn_residual, self.ffn)]

    def forward(self, x, padding=None, **inputs):
        """`padding` (b, k): which tokens are real, for norms that see it."""
        with leaving_out(padding, self):
            for residual, branch in self.branches(**inputs):
                x = residual(x, branch)
        return x

    def inverse(self, x, padding=None, **inputs):
        """What `forward` made x from, where the residuals can be undone."""
        with leaving_out(padding, self):
            for residual, branch in reversed(self.branches(**inputs)):
                x = residual.inverse(x, branch)
        return x


class Transformer(nn.Module):
    """tokens (b, t) -> logits (b, t, d_out), from a ModelConfig. The weights depend on `seed` alone."""

    def __init__(self, config, *, seed=0, block=Block):
        super().__init__()
        self.config = config
        self.mask = Mask.build(config.mask)
        layers = [config.layer(i) for i in range(config.n_layers)]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(config.vocabulary, config.d_model)
            self.position = Position.build(config.position, max(layers, key=lambda layer: layer.n_heads))
            own = config.unique_layers or config.n_layers
            unique = [block(layer, self.position.of_layer(i, layer)) for i, layer in enumerate(layers[:own])]
            self.blocks = nn.ModuleList(unique * (config.n_layers // own))
            self.residual = Residual.resolve(config.residual)[0]
            self.norm = Norm.build(config.norm if self.residual.final_norm else "none", config)
            self.readout = Readout.build(config.readout, layers[0], self.embedding)
            Initialization.build(config.initialization)(self)
        named_once(self)

    def hidden(self, tokens, *, real=None, mask=None, caches=None, **inputs):
        """The stream before the readout, (b, t, m). `real` (b, k) is False at padding; `caches` one per layer.

        Padding may stand in front of a text where positions tell distances alone; ValueError where they are counted.
        `mask` is a Mask of this batch alone, which joins the configuration's: pairs both allow are attended.
        `inputs` go to every block, where blocks of another kind take some.
        """
        x, layers = self.prepared(tokens, real, mask, caches, inputs)
        return self.ended(self.residual.through(self.residual.enter(x), layers), real)

    def exits(self, tokens, *, real=None, mask=None, caches=None, **inputs):
        """Logits (b, t, d_out) after the first block, the second, ... the last: who stops asking saves the rest."""
        x, layers = self.prepared(tokens, real, mask, caches, inputs)
        stream = self.residual.enter(x)
        for layer in layers:
            stream = self.residual.through(stream, [layer])
            yield self.readout(self.ended(stream, real))

    def ended(self, stream, real):
        """What the readout reads of the stream behind a block, (b, t, m)."""
        with leaving_out(real, self.norm):
            return self.norm(self.residual.leave(stream))

    def prepared(self, tokens, real, mask, caches, inputs):
        """The embedded tokens (b, t, m), and a pair (block, its inputs) for every layer."""
        start = caches[0].length if caches else 0
        if real is not None and "at_input" in self.position.acts() and (real[:, 1:] & ~real[:, :-1]).any():
            raise ValueError(f"position {self.config.position!r} counts places from the first: padding must come last")
        length, device = tokens.shape[1], tokens.device
        sight = Sight(self.mask, length, start + length, batch=len(tokens), device=device, real=real, given=mask)
        caches = caches or [None] * len(self.blocks)
        layers = [
            (block, {"cache": cache} | ({} if real is None else {"padding": real}) | block.mixer.inputs(sight) | inputs)
            for block, cache in zip(self.blocks, caches, strict=True)
        ]
        return self.position.at_input(self.embedding(tokens), start), layers

    def forward(self, tokens, **hidden):
        return self.readout(self.hidden(tokens, **hidden))

    def writes_to_stream(self):
        """Weights of the maps whose output is added to the stream: W_O and W_2 of every block (of all its experts)."""
        maps = dict.fromkeys(m for block in self.blocks for m in (*block.mixer.writers(), *block.ffn.writers()))
        return [m.weight for m in maps if isinstance(m, nn.Linear | nn.Conv1d)]

    def random_inputs(self, batch):
        """What the blocks read besides the tokens, drawn from N(0, 1), by name."""
        return {}

    def caches(self, batch, context=None):
        """Empty caches, one a layer, for `context` positions (default the configuration's)."""
        weight, context = self.embedding.weight, context or self.config.context
        like = {"device": weight.device, "dtype": weight.dtype}
        return [block.mixer.empty(batch, context, **like) for block in self.blocks]

    @torch.no_grad()
    def generate(self, tokens, n, *, temperature=1.0, generator=None):
        """tokens (b, t) continued by n more, (b, t + n), without dropout; temperature 0 takes the likeliest."""
        caches, logits = self.caches(len(tokens), tokens.shape[1] + n), None
        with evaluated(self):
            for _ in range(n):
                logits = self(tokens if logits is None else tokens[:, -1:], caches=caches)[:, -1]
                if temperature == 0:
                    new = logits.argmax(-1, keepdim=True)
                else:
                    new = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
                tokens = torch.cat([tokens, new], dim=1)
        return tokens


@contextmanager
def evaluated(model):
    """Within, the model is in evaluation; afterwards each of its modules is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        yield model.eval()
    finally:
        for module, mode in modes:
            module.training = mode
