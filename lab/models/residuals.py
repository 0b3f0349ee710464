"""Where norm and skip stand around a branch, attention or feed-forward (chapter §1.5.1, §1.5.3)."""

import math
import random

import torch
from torch import nn

from lab.models.norms import Norm
from lab.models.registry import Seam


class Residual(nn.Module, Seam):
    """No norm on the way.

    x ──┬── branch ── + ──
        └─────────────┘

    The stream x is (b, t, m). A kind may carry another stream through the stack: `enter` makes it from the embedded
    tokens, `leave` makes (b, t, m) of it, and `run` takes it through layers, pairs (block, inputs of that block).
    """

    final_norm = False  # True where the stream itself is never normalised on the way

    def __init__(self, config):
        super().__init__()

    def forward(self, x, branch):
        return x + branch(x)

    @staticmethod
    def enter(x):
        return x

    @staticmethod
    def leave(stream):
        return stream

    @staticmethod
    def run(stream, layers):
        for block, inputs in layers:
            stream = block(stream, **inputs)
        return stream

    @staticmethod
    def check(blocks):
        """ValueError where this kind cannot work around a part of the blocks."""


Residual.kinds["plain"] = Residual


class PreNorm(Residual, kind="pre"):
    """The norm inside the branch, and one at the end of the stack. Xiong 2020.

    x ──┬── norm ── branch ── + ──
        └─────────────────────┘
    """

    final_norm = True

    def __init__(self, config):
        super().__init__(config)
        self.norm = Norm.build(config.norm, config)

    def forward(self, x, branch):
        return x + branch(self.norm(x))


class NoSkip(PreNorm, kind="none"):
    """No way around the branch.

    x ── norm ── branch ──
    """

    def forward(self, x, branch):
        return branch(self.norm(x))


class PostNorm(Residual, kind="post"):
    """The norm on the stream; dropout on the branch, or, where `outside`, on everything. Vaswani 2017 §5.4.

    x ──┬── branch ── dropout ── + ── norm ──
        └────────────────────────┘
    """

    def __init__(self, config, *, dropout=0.0, outside=False):
        super().__init__(config)
        self.norm = Norm.build(config.norm, config)
        self.dropout, self.outside = nn.Dropout(dropout), outside

    def forward(self, x, branch):
        if self.outside:
            return self.dropout(self.norm(x + branch(x)))
        return self.norm(x + self.dropout(branch(x)))


class Sandwich(PreNorm, kind="sandwich"):
    """A norm before and one behind the branch, both inside it. Ding 2021 (CogView).

    x ──┬── norm ── branch ── norm ── + ──
        └─────────────────────────────┘
    """

    def __init__(self, config):
        super().__init__(config)
        self.norm_out = Norm.build(config.norm, config)

    def forward(self, x, branch):
        return x + self.norm_out(branch(self.norm(x)))


class DeepNorm(PostNorm, kind="deepnorm"):
    """PostNorm with a heavier skip: alpha = (2 n_layers)^(1/4) for a stack of two branches a layer. Wang 2022.

    x ──┬── branch ─── + ── norm ──      with initialization "deepnorm"
        └── × alpha ───┘
    """

    def __init__(self, config, *, alpha=None):
        super().__init__(config)
        self.alpha = (2 * config.n_layers) ** 0.25 if alpha is None else alpha

    def forward(self, x, branch):
        return self.norm(self.alpha * x + branch(x))


class Admin(PostNorm, kind="admin"):
    """PostNorm with a trained weight for each feature of the skip, which initialization "admin" sets. Liu 2020.

    x ──┬── branch ─── + ── norm ──      omega^2 = the variance that came before: each branch is a small part
        └── × omega ───┘                 of what it is added to, the later the smaller
    """

    def __init__(self, config):
        super().__init__(config)
        self.omega = nn.Parameter(torch.ones(config.d_model))

    def forward(self, x, branch):
        return self.norm(self.omega * x + branch(x))


class Weighted(PreNorm, kind="weighted"):
    """a x + (1 - a) branch: a fixed, or learned for each branch from there on. He 2016b; Srivastava 2015.

    x ──┬── norm ── branch ── × (1 - a) ── + ──
        └── × a ───────────────────────────┘
    """

    def __init__(self, config, *, a=0.5, learned=False):
        super().__init__(config)
        if not 0 < a < 1:
            raise ValueError(f"a must lie between 0 and 1, got {a}")
        logit = torch.tensor(math.log(a / (1 - a)))
        if learned:
            self.logit = nn.Parameter(logit)
        else:
            self.register_buffer("logit", logit)

    @property
    def a(self):
        return torch.sigmoid(self.logit)

    def forward(self, x, branch):
        return self.a * x + (1 - self.a) * branch(self.norm(x))


class Scaled(PreNorm, kind="scaled"):
    """x + scale · branch(x + shift), two learned scalars. Fixup (Zhang 2019) with norm "none"; scale 0: ReZero.

    x ──┬── + shift ── norm ── branch ── × scale ── + ──
        └───────────────────────────────────────────┘
    """

    def __init__(self, config, *, scale=1.0):
        super().__init__(config)
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        self.shift = nn.Parameter(torch.tensor(0.0))

    def forward(self, x, branch):
        return x + self.scale * branch(self.norm(x + self.shift))


class Dense(PreNorm, kind="dense"):
    """Every branch reads its own learned sum of ALL earlier results; with all weights 1, their start, this is pre.

    x0 ──┬── norm(Σ w x) ── branch ── x1 ──┬── ...      the stream is (x0, x1, ...), the output their sum
         └─────────────────────────────────┘
    Pagliardini 2024 (DenseFormer); Huang 2017 concatenates instead.
    """

    def __init__(self, config):
        super().__init__(config)
        self.weights = nn.Parameter(torch.ones(1 + 3 * config.n_layers))  # no more than 3 branches a layer

    def forward(self, stream, branch):
        mixed = sum(w * x for w, x in zip(self.weights, stream, strict=False))
        return (*stream, branch(self.norm(mixed)))

    @staticmethod
    def enter(x):
        return (x,)

    @staticmethod
    def leave(stream):
        return sum(stream)


class StochasticDepth(PreNorm, kind="stochastic-depth"):
    """PreNorm whose branch runs with probability `keep` in training, and is weighted by it afterwards. Huang 2016.

    One coin for the batch, from random numbers of its own, so that equal seeds train alike.
    """

    def __init__(self, config, *, keep=0.8):
        super().__init__(config)
        if not 0 < keep <= 1:
            raise ValueError(f"keep must lie above 0 and not above 1, got {keep}")
        self.keep, self.coin = keep, random.Random(torch.randint(2**31, (), device="cpu").item())

    def forward(self, x, branch):
        if not self.training:
            return x + self.keep * branch(self.norm(x))
        return x + branch(self.norm(x)) if self.coin.random() < self.keep else x


def run_reversibly(stream, layers):
    """The stream through layers, pairs (block, inputs), each block with an `inverse`; autograd keeps the result alone.

    Backward, every block is undone and run again: about two more forward passes for a memory that does not grow with
    depth. Gradients reach the stream, the blocks' parameters and tensors among the inputs.
    ValueError where a block draws random numbers from torch.
    """
    cached = any(inputs.get("cache") is not None for _, inputs in layers)
    if cached or not torch.is_grad_enabled():
        for block, inputs in layers:
            stream = block(stream, **inputs)
        return stream
    apart = {}  # tensors that came from elsewhere, cut from there: their gradients are handed on once

    def cut(x):
        return apart.setdefault(id(x), (x, x.detach().requires_grad_()))[1]

    layers = [
        (block, {k: cut(x) if isinstance(x, torch.Tensor) and x.requires_grad else x for k, x in inputs.items()})
        for block, inputs in layers
    ]
    weights = dict.fromkeys(p for block, _ in layers for p in block.parameters() if p.requires_grad)
    outer = [x for x, _ in apart.values()] + list(weights)
    inner = [x for _, x in apart.values()] + list(weights)
    return _Undone.apply(stream, layers, inner, *outer)


class _Undone(torch.autograd.Function):
    @staticmethod
    def forward(ctx, stream, layers, inner, *outer):
        before = torch.get_rng_state()
        for block, inputs in layers:
            stream = block(stream, **inputs)
        if not torch.equal(before, torch.get_rng_state()):
            raise ValueError("reversible layers are computed twice: none may draw random numbers")
        ctx.layers, ctx.inner = layers, inner
        ctx.save_for_backward(stream)
        return stream

    @staticmethod
    def backward(ctx, gradient):
        (stream,), total = ctx.saved_tensors, [None] * len(ctx.inner)
        for block, inputs in reversed(ctx.layers):
            with torch.no_grad():
                stream = block.inverse(stream, **inputs)
            with torch.enable_grad():
                before = stream.detach().requires_grad_()
                after = block(before, **inputs)
                gradient, *found = torch.autograd.grad(after, [before, *ctx.inner], gradient, allow_unused=True)
            total = [a if b is None else b if a is None else a + b for a, b in zip(total, found, strict=True)]
        return gradient, None, None, *total


class Reversible(PreNorm, kind="reversible"):
    """Two streams that take turns; inputs follow from outputs, so none is kept for the backward pass. Gomez 2017.

    x1 ───────────────────── + ── y2        the next branch reads y2 and adds to y1
    x2 ──┬── norm ── branch ─┘
         └───────────────────────  y1

    A branch is computed three times in a step. So ValueError refuses parts that draw random numbers
    (dropout, randomized positions, gates) or leave something behind (running statistics, a loss).
    """

    def forward(self, stream, branch):
        x1, x2 = stream.chunk(2, -1)
        return torch.cat([x2, x1 + branch(self.norm(x2))], -1)

    def inverse(self, stream, branch):
        """The stream before `forward`, up to rounding."""
        y1, y2 = stream.chunk(2, -1)
        return torch.cat([y2 - branch(self.norm(y1)), y1], -1)

    @staticmethod
    def enter(x):
        return torch.cat([x, x], -1)

    @staticmethod
    def leave(stream):
        return sum(stream.chunk(2, -1)) / 2

    run = staticmethod(run_reversibly)

    @staticmethod
    def check(blocks):
        for part in blocks.modules():
            if isinstance(part, nn.Dropout) or not getattr(part, "repeatable", True):
                raise ValueError(
                    "residual 'reversible' computes every branch again in the backward pass, and "
                    f"{type(part).__name__} differs from call to call: choose another of the two"
                )
