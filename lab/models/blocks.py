"""Kinds of residual blocks: norms and skip connections (chapter §1.5.1, §1.5.3).

The default, pre-norm, is Block in gpt.py. Each kind here wraps both sublayers f (attention and
feed-forward) in the same way. The diagrams show one sublayer; x and f(x) have shape (b, t, m).
"""

import math
import random
from functools import partial

import torch
from torch import nn

from lab.models.gpt import Block, Norm


class SameAround(Block):
    """Base class of blocks that wrap both sublayers in the same way. Subclasses define `around`."""

    names = ("mixer", "ffn")  # sublayers in order of execution

    def forward(self, x, **seen):
        for name, f in self.sublayers(**seen):
            x = self.around(x, f, name)
        return x

    def around(self, x, f, name):
        """The residual stream after sublayer f; `name` is "mixer" or "ffn"."""
        raise NotImplementedError

    def sublayers(self, **seen):
        """A list of pairs (name, sublayer as a function of x), in order of execution."""
        return [("mixer", partial(self.mixer, **seen)), ("ffn", self.ffn)]

    def norm(self, x, name):
        """Apply the norm of sublayer `name` to x."""
        return getattr(self, f"{name}_norm")(x)

    def each(self, make):
        """A ParameterDict with one parameter, made by make(), per sublayer."""
        return nn.ParameterDict({name: nn.Parameter(make()) for name in self.names})


class Plain(SameAround, kind="plain"):
    """Residual connection without a norm. He 2016.

    x ──┬── f ── + ──
        └────────┘
    """

    final_norm = False

    def __init__(self, config, position):
        super().__init__(config.model_copy(update={"norm": "none"}), position)

    def around(self, x, f, name):
        return x + f(x)


class NoSkip(SameAround, kind="none"):
    """No skip connection around the sublayer.

    x ── norm ── f ──
    """

    def around(self, x, f, name):
        return f(self.norm(x, name))


class PostNorm(SameAround, kind="post"):
    """Norm after the residual sum. Vaswani 2017 §5.4.

    Dropout applies to f(x) or, with `outside`, to the normalized sum.

    x ──┬── f ── dropout ── + ── norm ──
        └───────────────────┘
    """

    final_norm = False

    def __init__(self, config, position, *, dropout=0.0, outside=False):
        super().__init__(config, position)
        self.dropout = nn.Dropout(dropout)
        self.outside = outside

    def around(self, x, f, name):
        if self.outside:
            return self.dropout(self.norm(x + f(x), name))
        return self.norm(x + self.dropout(f(x)), name)


class Sandwich(SameAround, kind="sandwich"):
    """A norm before f and another after it, both inside the branch. Ding 2021 (CogView).

    x ──┬── norm ── f ── norm ── + ──
        └────────────────────────┘
    """

    def __init__(self, config, position):
        super().__init__(config, position)
        norms = {name: Norm.build(config.norm, config) for name in self.names}
        self.norm_out = nn.ModuleDict(norms)

    def around(self, x, f, name):
        return x + self.norm_out[name](f(self.norm(x, name)))


class DeepNorm(SameAround, kind="deepnorm"):
    """Post-norm with a scaled skip connection: alpha = (2 n_layers)^(1/4). Wang 2022.

    x ──┬── f ──────── + ── norm ──      use with initialization "deepnorm"; this alpha assumes
        └── × alpha ───┘                 two sublayers per layer
    """

    final_norm = False

    def __init__(self, config, position, *, alpha=None):
        super().__init__(config, position)
        self.alpha = (2 * config.n_layers) ** 0.25 if alpha is None else alpha

    def around(self, x, f, name):
        return self.norm(self.alpha * x + f(x), name)


class Admin(SameAround, kind="admin"):
    """Post-norm with a trained weight omega per feature of the skip connection. Liu 2020.

    x ──┬── f ──────── + ── norm ──      initialization "admin" sets omega² to the summed variance
        └── × omega ───┘                 of earlier outputs, so that later sublayers change x less
    """

    final_norm = False

    def __init__(self, config, position):
        super().__init__(config, position)
        self.omega = self.each(partial(torch.ones, config.d_model))

    def around(self, x, f, name):
        return self.norm(self.omega[name] * x + f(x), name)


class Weighted(SameAround, kind="weighted"):
    """a x + (1 - a) f(norm(x)); `a` is fixed, or learned per sublayer. He 2016b; Srivastava 2015.

    x ──┬── norm ── f ── × (1 - a) ── + ──
        └── × a ──────────────────────┘

    Raises ValueError unless 0 < a < 1.
    """

    def __init__(self, config, position, *, a=0.5, learned=False):
        super().__init__(config, position)
        if not 0 < a < 1:
            raise ValueError(f"a must be between 0 and 1, got {a}")
        for sublayer in self.names:
            logit = torch.tensor(math.log(a / (1 - a)))
            if learned:
                self.register_parameter(f"{sublayer}_logit", nn.Parameter(logit))
            else:
                self.register_buffer(f"{sublayer}_logit", logit)

    def a(self, name):
        """The weight of the skip connection around a sublayer."""
        return torch.sigmoid(getattr(self, f"{name}_logit"))

    def around(self, x, f, name):
        a = self.a(name)
        return a * x + (1 - a) * f(self.norm(x, name))


class Scaled(SameAround, kind="scaled"):
    """x + scale · f(norm(x + shift)), with two learned scalars per sublayer.

    Norm "none" gives Fixup (Zhang 2019).

    x ──┬── + shift ── norm ── f ── × scale ── + ──      initial scale 0: ReZero
        └──────────────────────────────────────┘
    """

    def __init__(self, config, position, *, scale=1.0):
        super().__init__(config, position)
        self.scale = self.each(partial(torch.tensor, float(scale)))
        self.shift = self.each(partial(torch.tensor, 0.0))

    def around(self, x, f, name):
        return x + self.scale[name] * f(self.norm(x + self.shift[name], name))


class Dense(SameAround, kind="dense"):
    """Each sublayer reads a learned weighted sum of all earlier outputs. Pagliardini 2024.

    x0 ──┬── norm(Σ w x) ── f ── x1 ──┬── ...      output: x0 + x1 + ...
         └────────────────────────────┘            (Huang 2017 concatenates instead of adding)

    Each sublayer has its own weights w, which start at 1. With weights 1 the model equals pre-norm.
    """

    def __init__(self, config, position):
        super().__init__(config, position)
        most = 1 + 3 * config.n_layers  # a layer has two sublayers; there is room for three
        self.weights = self.each(partial(torch.ones, most))

    def around(self, stream, f, name):
        mixed = sum(w * x for w, x in zip(self.weights[name], stream, strict=False))
        return (*stream, f(self.norm(mixed, name)))

    @staticmethod
    def stack(x, layers):
        return sum(Block.stack((x,), layers))


class StochasticDepth(SameAround, kind="stochastic-depth"):
    """Pre-norm; training runs f with probability `keep`, evaluation multiplies f by `keep`.

    Each sublayer makes one random choice per batch, with its own generator, seeded by the model's
    seed. Huang 2016. Raises ValueError unless 0 < keep <= 1.
    """

    def __init__(self, config, position, *, keep=0.8):
        super().__init__(config, position)
        if not 0 < keep <= 1:
            raise ValueError(f"keep must be in (0, 1], got {keep}")
        self.keep = keep
        seeds = {name: torch.randint(2**31, (), device="cpu").item() for name in self.names}
        self.coins = {name: random.Random(seed) for name, seed in seeds.items()}

    def around(self, x, f, name):
        if not self.training:
            return x + self.keep * f(self.norm(x, name))
        if self.coins[name].random() < self.keep:
            return x + f(self.norm(x, name))
        return x


class Reversible(SameAround, kind="reversible"):
    """Two residual streams; the backward pass recomputes activations. Gomez 2017 (RevNet).

    x1 ────────────────── + ── y2        the next sublayer reads y2 and updates y1
    x2 ──┬── norm ── f ───┘
         └──────────────────── y1

    Activations are not stored, so a training step runs each sublayer three times. Raises ValueError
    for parts that draw random numbers (dropout, randomized positions, gates) or keep state (running
    statistics, a loss).
    """

    def __init__(self, config, position):
        super().__init__(config, position)
        for part in self.modules():
            if isinstance(part, nn.Dropout) or not getattr(part, "repeatable", True):
                raise ValueError(
                    "residual 'reversible' recomputes every branch in the backward pass, but "
                    f"{type(part).__name__} gives different outputs from call to call: "
                    "replace one of the two"
                )

    def around(self, stream, f, name):
        x1, x2 = stream.chunk(2, -1)
        return torch.cat([x2, x1 + f(self.norm(x2, name))], -1)

    def inverse(self, stream, **inputs):
        """Recompute the input of `forward` from its output, up to rounding."""
        for name, f in reversed(self.sublayers(**inputs)):
            y1, y2 = stream.chunk(2, -1)
            stream = torch.cat([y2 - f(self.norm(y1, name)), y1], -1)
        return stream

    @staticmethod
    def stack(x, layers):
        return sum(run_reversibly(torch.cat([x, x], -1), layers).chunk(2, -1)) / 2


def run_reversibly(stream, layers):
    """Run the stream through `layers`, storing only the final output for the backward pass.

    `layers` is a list of pairs (block, inputs); each block has a method `inverse`. The backward
    pass inverts and reruns each block, which costs about two extra forward passes; memory does not
    depend on the number of layers. Gradients flow to the stream, to the parameters of the blocks
    and to tensors in `inputs`. Raises ValueError if a block draws random numbers from torch.
    """
    cached = any(inputs.get("cache") is not None for _, inputs in layers)
    if cached or not torch.is_grad_enabled():
        for block, inputs in layers:
            stream = block(stream, **inputs)
        return stream
    # {id: (outer tensor, detached copy)}, with one copy per tensor to accumulate its gradient
    detached = {}

    def cut(x):
        if not isinstance(x, torch.Tensor) or not x.requires_grad:
            return x
        return detached.setdefault(id(x), (x, x.detach().requires_grad_()))[1]

    layers = [(block, {k: cut(x) for k, x in inputs.items()}) for block, inputs in layers]
    weights = dict.fromkeys(p for block, _ in layers for p in block.parameters() if p.requires_grad)
    outer = [x for x, _ in detached.values()] + list(weights)
    inner = [x for _, x in detached.values()] + list(weights)
    return _ReversibleFunction.apply(stream, layers, inner, *outer)


class _ReversibleFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, stream, layers, inner, *outer):
        before = torch.get_rng_state()
        for block, inputs in layers:
            stream = block(stream, **inputs)
        if not torch.equal(before, torch.get_rng_state()):
            raise ValueError(
                "reversible layers are rerun in the backward pass, so none may draw random numbers"
            )
        ctx.layers = layers
        ctx.inner = inner
        ctx.save_for_backward(stream)
        return stream

    @staticmethod
    def backward(ctx, gradient):
        (stream,) = ctx.saved_tensors
        total = [None] * len(ctx.inner)
        for block, inputs in reversed(ctx.layers):
            with torch.no_grad():
                stream = block.inverse(stream, **inputs)
            with torch.enable_grad():
                before = stream.detach().requires_grad_()
                after = block(before, **inputs)
                gradient, *found = torch.autograd.grad(
                    after, [before, *ctx.inner], gradient, allow_unused=True
                )
            total = [
                a if b is None else b if a is None else a + b
                for a, b in zip(total, found, strict=True)
            ]
        return gradient, None, None, *total
