"""Position-wise maps (chapter §1.4): d_model -> d_ff -> d_model, plain or gated.

`act` is a module, to be tapped.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from lab.models.gpt import FeedForward
from lab.models.precision import wide


class Relu(FeedForward, kind="relu"):
    activation = nn.ReLU


class GeluTanh(FeedForward, kind="gelu-tanh"):
    """GELU by its approximation 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). Hendrycks 2016."""

    activation = staticmethod(partial(nn.GELU, approximate="tanh"))


class Silu(FeedForward, kind="silu"):
    activation = nn.SiLU


class SquaredReLU(nn.Module):
    def forward(self, x):
        return F.relu(x).square()


class Relu2(FeedForward, kind="relu2"):
    """max(0, x)^2. So 2021, Primer."""

    activation = SquaredReLU


class Gated(FeedForward):
    """(act(x Wg) * (x W1)) W2 with d_ff = 8/3 d_model, the parameters of a plain one at 4.

    Shazeer 2020.

    x ──┬── Wg ── act ── * ── W2 ──
        └── W1 ──────────┘
    """

    default_ratio = 8 / 3

    def __init__(self, config, *, ratio=None, width=None, bias=None):
        super().__init__(config, ratio=ratio, width=width, bias=bias)
        self.gate = nn.Linear(config.d_model, self.up.out_features, bias=self.up.bias is not None)

    def forward(self, x):
        return self.down(self.act(self.gate(x)) * self.up(x))


class Glu(Gated, kind="glu"):
    """Dauphin 2017."""

    activation = nn.Sigmoid


class Reglu(Gated, kind="reglu"):
    activation = nn.ReLU


class Geglu(Gated, kind="geglu"):
    activation = nn.GELU


class Swiglu(Gated, kind="swiglu"):
    activation = nn.SiLU


class Bilinear(Gated, kind="bilinear"):
    """A product of two linear maps, without any activation: even in x where there are no biases."""

    activation = nn.Identity


class LowRank(FeedForward, kind="low-rank"):
    """GELU with W1 and W2 of rank `rank` (default d_model / 4), each a product of two thin
    matrices.

    x ── d x r ── r x d_ff ── act ── d_ff x r ── r x d ──      2 r (d + d_ff) parameters, not 2 d d_ff
    """

    activation = nn.GELU

    def __init__(self, config, *, ratio=None, rank=None):
        super().__init__(config, ratio=ratio)
        rank = rank or max(1, config.d_model // 4)
        self.up, self.down = (
            nn.Sequential(
                nn.Linear(m.in_features, rank, bias=False),
                nn.Linear(rank, m.out_features, bias=config.bias),
            )
            for m in (self.up, self.down)
        )

    def output_projections(self):
        return [self.down[-1]]


class Mixture(FeedForward, kind="mixture"):
    """Each token passes through `active` of the `experts`, those that a linear router scores
    highest (chapter §1.6.4).

    x ──┬── router ── softmax ── top k ──┐
        └── chosen experts ───────────── * ── + ──

    The chosen probabilities weight the experts, divided by their sum where there are several
    (Lepikhin 2020, GShard); a single one keeps its probability, by which the router learns (Fedus
    2021, Switch). No token is ever dropped. `expert` is any other choice of this seam. After a call
    `balance` is the load-balance loss of what passed, padding left out.
    """

    of_call, sees_padding, repeatable = ("balance",), True, False

    def __init__(self, config, *, experts=8, active=2, expert="gelu"):
        nn.Module.__init__(self)
        if not 1 <= active <= experts:
            raise ValueError(
                f"1 <= active <= experts is needed, got active {active}, experts {experts}"
            )
        self.active, self.balance = active, None
        self.router = nn.Linear(config.d_model, experts, bias=False)
        self.experts = nn.ModuleList(FeedForward.build(expert, config) for _ in range(experts))

    def forward(self, x):
        tokens = x.flatten(0, -2)  # (n, m)
        probabilities = wide(self.router(tokens)).softmax(-1)
        share, chosen = probabilities.topk(self.active)  # (n, active)
        real = (self.tokens(each.unflatten(0, x.shape[:-1])) for each in (probabilities, chosen))
        self.balance = load_balance(*real)
        if self.active > 1:
            share = share / share.sum(-1, keepdim=True)
        out = torch.zeros_like(tokens)
        for i, expert in enumerate(self.experts):
            row, place = (chosen == i).nonzero(as_tuple=True)
            weighted = share[row, place, None] * expert(tokens[row])
            out = out.index_add(0, row, weighted.to(out.dtype))
        return out.view_as(x)

    def output_projections(self):
        return [writer for expert in self.experts for writer in expert.output_projections()]


def load_balance(probabilities, chosen):
    """E sum_i f_i P_i: f_i the share of choices that fall on expert i, P_i its mean probability
    (Fedus 2021).

    probabilities (..., E), chosen (..., k). It is 1 where both are uniform, E where one expert
    takes all, and may fall below 1.
    """
    experts = probabilities.shape[-1]
    f = torch.bincount(chosen.flatten(), minlength=experts) / chosen.numel()
    return experts * (f * probabilities.flatten(0, -2).mean(0)).sum()


def balance_loss(model):
    """Mean load-balance loss of all mixtures in a model at their last call, to be added to a loss
    with weight ~ 0.01.

    ValueError where the model has none, or they were never called.
    """
    losses = [module.balance for module in model.modules() if isinstance(module, Mixture)]
    if not losses or any(loss is None for loss in losses):
        raise ValueError("the model has no mixture of experts that was called")
    return torch.stack(losses).mean()


class Nothing(FeedForward, kind="none"):
    """Adds nothing to the stream: a model of attention alone."""

    def __init__(self, config):
        nn.Module.__init__(self)

    def forward(self, x):
        return torch.zeros_like(x)

    def output_projections(self):
        return []
