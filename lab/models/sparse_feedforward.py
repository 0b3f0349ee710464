"""Sparse feed-forward layers: top-k units, sparse blocks, adaptive width (§1.4.5, §1.4.6)."""

import torch
import torch.nn.functional as F
from torch import nn

from lab.models.gpt import FeedForward
from lab.models.padding import SeesPadding
from lab.models.precision import wide


class Largest(nn.Module):
    """Keeps the `k` largest entries of max(0, x) per token and sets the others to 0."""

    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        largest = F.relu(x).topk(self.k, -1)
        return torch.zeros_like(x).scatter(-1, largest.indices, largest.values)


class TopUnits(FeedForward, kind="top-k"):
    """ReLU that keeps only the `k` largest hidden units per token. Ahmad & Scheinkman 2019.

    x ── W1 ── relu ── k largest ── W2 ──

    `k` defaults to d_ff / 8; 0 stands for the default. Raises ValueError unless 0 <= k <= d_ff.
    """

    activation = nn.ReLU

    def __init__(self, config, *, ratio=None, width=None, bias=None, k=None):
        super().__init__(config, ratio=ratio, width=width, bias=bias)
        units = self.up.out_features
        k = k or max(1, units // 8)
        if not 1 <= k <= units:
            raise ValueError(f"k must be in 1..{units}, got {k}")
        self.act = Largest(k)


class BlockMap(nn.Module):
    """A block-sparse linear map: output block i reads input blocks i..i + links - 1, cyclically.

    Parameters and FLOPs are links / blocks of those of a dense map. Raises ValueError unless
    `blocks` divides both widths and 1 <= links <= blocks.
    """

    def __init__(self, d_in, d_out, blocks, links, bias):
        super().__init__()
        if d_in % blocks or d_out % blocks or not 1 <= links <= blocks:
            raise ValueError(
                f"{blocks} blocks must divide {d_in} and {d_out}, links must be "
                f"1..{blocks}, got {links}"
            )
        self.blocks = blocks
        self.links = links
        # weight (d_out, links d_in / blocks, 1)
        self.map = nn.Conv1d(links * d_in, d_out, 1, groups=blocks, bias=bias)
        self.fan_out = links * d_out // blocks  # number of outputs that read each input

    def forward(self, x):
        parts = x.unflatten(-1, (self.blocks, -1))
        # (..., blocks, links d_in / blocks)
        read = torch.cat([parts.roll(-i, -2) for i in range(self.links)], -1)
        out = self.map(read.flatten(0, -3).flatten(1)[..., None])
        return out.squeeze(-1).view(*x.shape[:-1], -1)

    def dense(self):
        """The same map as a dense matrix (d_out, d_in)."""
        weight = self.map.weight.squeeze(-1).unflatten(0, (self.blocks, -1))
        weight = weight.unflatten(-1, (self.links, -1))
        out = weight.new_zeros(self.blocks, weight.shape[1], self.blocks, weight.shape[3])
        for i in range(self.blocks):
            for j in range(self.links):
                out[i, :, (i + j) % self.blocks] = weight[i, :, j]
        return out.flatten(2).flatten(0, 1)


class BlockSparse(FeedForward, kind="block-sparse"):
    """GELU between two block-sparse maps. Child 2019.

    Each block row has `links` non-zero blocks out of `blocks`:

    ▪▪··        blocks 4, links 2: half of the weights;
    ·▪▪·        information reaches the other blocks in later layers
    ··▪▪
    ▪··▪
    """

    activation = nn.GELU

    def __init__(self, config, *, ratio=None, width=None, bias=None, blocks=4, links=2):
        super().__init__(config, ratio=ratio, width=width, bias=bias)
        sizes, bias = (self.up.in_features, self.up.out_features), self.up.bias is not None
        self.up = BlockMap(*sizes, blocks, links, bias)
        self.down = BlockMap(*sizes[::-1], blocks, links, bias)


class AdaptiveWidth(SeesPadding, FeedForward, kind="adaptive-width"):
    """GELU layer in which each token uses only the first fraction z of the hidden units.

    x ──┬── W1 ── act ── * ── W2 ──      z = sigmoid(w·x + 2); unit i has weight
        └── w ── ramp ───┘               clamp((z + ramp - i / d_ff) / ramp, 0, 1)

    This is the soft mask of Sukhbaatar 2019, applied to units instead of distances. `ramp` is a
    fraction of d_ff. `used` is the mean weight of the units in the last call, excluding padding. It
    is differentiable, so that `width_loss` can penalize it. Raises ValueError unless 0 < ramp <= 1.
    """

    activation = nn.GELU
    of_call = ("used",)
    repeatable = False

    def __init__(self, config, *, ratio=None, width=None, bias=None, ramp=0.125):
        super().__init__(config, ratio=ratio, width=width, bias=bias)
        if not 0 < ramp <= 1:
            raise ValueError(f"ramp, a fraction of the units, must be in (0, 1], got {ramp}")
        self.ramp = ramp
        self.used = None
        self.ask = nn.Linear(config.d_model, 1, bias=False)

    def share(self, x):
        """The weight of each unit for each token, (b, t, d_ff)."""
        units = self.up.out_features
        place = torch.arange(units, device=x.device) / units
        return ((torch.sigmoid(wide(self.ask(x)) + 2) + self.ramp - place) / self.ramp).clamp(0, 1)

    def forward(self, x):
        share = self.share(x)
        self.used = self.tokens(share).mean()
        return self.down(self.act(self.up(x)) * share.to(x.dtype))


def width_loss(model):
    """Mean of `used` over all AdaptiveWidth layers in the model's last call.

    Add it to the training loss with a weight. Raises ValueError if the model has no such layer, or
    one that has not been called yet.
    """
    used = [module.used for module in model.modules() if isinstance(module, AdaptiveWidth)]
    if not used or any(share is None for share in used):
        raise ValueError("the model has no layer of adaptive width, or one has not been called yet")
    return torch.stack(used).mean()
