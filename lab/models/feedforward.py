"""Position-wise maps (chapter §1.4): d_model -> d_ff -> d_model, plain or gated. `act` is a module, to be tapped."""

from torch import nn

from lab.models.seams import Seam


class FeedForward(nn.Module, Seam):
    """act(x W1) W2 with d_ff = ratio x d_model (default 4)."""

    activation, default_ratio = None, 4.0

    def __init__(self, config, *, ratio=None):
        super().__init__()
        d_ff = round((ratio or self.default_ratio) * config.d_model)
        self.up = nn.Linear(config.d_model, d_ff, bias=config.bias)
        self.act = self.activation()
        self.down = nn.Linear(d_ff, config.d_model, bias=config.bias)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Relu(FeedForward, kind="relu"):
    activation = nn.ReLU


class Gelu(FeedForward, kind="gelu"):
    activation = nn.GELU


class Silu(FeedForward, kind="silu"):
    activation = nn.SiLU


class Gated(FeedForward):
    """(act(x Wg) * (x W1)) W2 with d_ff = 8/3 d_model, the parameters of a plain one at 4. Shazeer 2020."""

    default_ratio = 8 / 3

    def __init__(self, config, *, ratio=None):
        super().__init__(config, ratio=ratio)
        self.gate = nn.Linear(config.d_model, self.up.out_features, bias=config.bias)

    def forward(self, x):
        return self.down(self.act(self.gate(x)) * self.up(x))


class Swiglu(Gated, kind="swiglu"):
    activation = nn.SiLU


class Geglu(Gated, kind="geglu"):
    activation = nn.GELU
