"""Feed-forward layers (chapter §1.4): d_model -> d_ff -> d_model, plain or gated.

`act` is a module, so that probes can hook it.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from lab.models.gpt import FeedForward
from lab.models.padding import SeesPadding
from lab.models.precision import wide


class Relu(FeedForward, kind="relu"):
    activation = nn.ReLU


class GeluTanh(FeedForward, kind="gelu-tanh"):
    """GELU approximated by 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). Hendrycks 2016."""

    activation = staticmethod(partial(nn.GELU, approximate="tanh"))


class Silu(FeedForward, kind="silu"):
    activation = nn.SiLU


class SquaredReLU(nn.Module):
    def forward(self, x):
        return F.relu(x).square()


class Relu2(FeedForward, kind="relu2"):
    """max(0, x)^2. So 2021 (Primer)."""

    activation = SquaredReLU


class Gated(FeedForward):
    """(act(x Wg) * (x W1)) W2. Shazeer 2020.

    The default d_ff = 8/3 d_model gives as many parameters as d_ff = 4 d_model without a gate.

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
    """Gated by a sigmoid. Dauphin 2017."""

    activation = nn.Sigmoid


class Reglu(Gated, kind="reglu"):
    activation = nn.ReLU


class Geglu(Gated, kind="geglu"):
    activation = nn.GELU


class Swiglu(Gated, kind="swiglu"):
    activation = nn.SiLU


class Bilinear(Gated, kind="bilinear"):
    """Gated without an activation: (x Wg) * (x W1), an even function of x if there is no bias."""

    activation = nn.Identity


class LowRank(FeedForward, kind="low-rank"):
    """GELU with W1 and W2 factored into matrices of rank `rank` (default d_model / 4).

    x ── d x r ── r x d_ff ── act ── d_ff x r ── r x d ──   2 r (d + d_ff) parameters, not 2 d d_ff
    """

    activation = nn.GELU

    def __init__(self, config, *, ratio=None, rank=None):
        super().__init__(config, ratio=ratio)
        rank = rank or max(1, config.d_model // 4)
        self.up = factored(self.up, rank)
        self.down = factored(self.down, rank)


def factored(linear, rank):
    """A new map with the sizes of `linear`, of rank `rank`: two linear maps in sequence."""
    return nn.Sequential(
        nn.Linear(linear.in_features, rank, bias=False),
        nn.Linear(rank, linear.out_features, bias=linear.bias is not None),
    )


class Mixture(SeesPadding, FeedForward, kind="mixture"):
    """Mixture of experts: each token uses the `active` experts with the highest router scores.

    x ──┬── router ── softmax ── top k ──┐
        └── chosen experts ───────────── * ── + ──

    Expert outputs are weighted by the router probabilities. If active > 1, these are renormalized
    over the chosen experts (Lepikhin 2020, GShard). If active = 1, they are not, because the router
    gets its gradient through this factor (Fedus 2021, Switch). No token is dropped. `expert` is any
    other feed-forward kind. After a call, `balance` is the load-balancing loss of that call,
    excluding padding (chapter §1.6.4). Raises ValueError unless 1 <= active <= experts.
    """

    of_call = ("balance",)
    repeatable = False

    def __init__(self, config, *, experts=8, active=2, expert="gelu"):
        nn.Module.__init__(self)
        if not 1 <= active <= experts:
            raise ValueError(
                f"active must be in 1..experts, got active {active}, experts {experts}"
            )
        self.active = active
        self.balance = None
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


def load_balance(probabilities, chosen):
    """Load-balancing loss E sum_i f_i P_i (Fedus 2021).

    f_i is the fraction of all choices that go to expert i, and P_i is its mean probability.
    probabilities (..., E), chosen (..., k). The loss is 1 if f and P are uniform, and E if f and P
    are 1 for one expert. It can be below 1.
    """
    experts = probabilities.shape[-1]
    f = torch.bincount(chosen.flatten(), minlength=experts) / chosen.numel()
    return experts * (f * probabilities.flatten(0, -2).mean(0)).sum()


def balance_loss(model):
    """Mean load-balancing loss of all Mixture layers in the model's last call.

    Add it to the training loss with a weight of about 0.01. Raises ValueError if the model has no
    such layer, or one that has not been called yet.
    """
    losses = [module.balance for module in model.modules() if isinstance(module, Mixture)]
    if not losses or any(loss is None for loss in losses):
        raise ValueError("the model has no mixture of experts, or one has not been called yet")
    return torch.stack(losses).mean()


class Nothing(FeedForward, kind="none"):
    """Returns 0, so that the model is attention-only."""

    def __init__(self, config):
        nn.Module.__init__(self)

    def forward(self, x):
        return torch.zeros_like(x)
