"""Position-wise maps that use part of themselves: the k most active units, blocks of the weights,
or as much width as a token asks for (chapter §1.4.5, §1.4.6).
"""

import torch
import torch.nn.functional as F
from torch import nn

from lab.models.gpt import FeedForward
from lab.models.precision import wide


class Largest(nn.Module):
    """max(0, x), the `k` largest of each token, all others 0."""

    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        largest = F.relu(x).topk(self.k, -1)
        return torch.zeros_like(x).scatter(-1, largest.indices, largest.values)


class TopUnits(FeedForward, kind="top-k"):
    """ReLU of which the `k` most active units of each token are kept, by default an eighth.

    Ahmad & Scheinkman 2019.

    x ── W1 ── relu ── k largest ── W2 ──
    """

    activation = nn.ReLU

    def __init__(self, config, *, ratio=None, width=None, bias=None, k=None):
        super().__init__(config, ratio=ratio, width=width, bias=bias)
        units = self.up.out_features
        k = k or max(1, units // 8)
        if not 1 <= k <= units:
            raise ValueError(f"1 <= k <= {units}, the units, is needed, got {k}")
        self.act = Largest(k)


class BlockMap(nn.Module):
    """A linear map of `blocks` x `blocks` blocks: block i of the outputs reads the inputs of blocks
    i, i + 1, ..., `links` of them, around the end. `links` / `blocks` of the weights and products
    of a dense one.
    """

    def __init__(self, d_in, d_out, blocks, links, bias):
        super().__init__()
        if d_in % blocks or d_out % blocks or not 1 <= links <= blocks:
            raise ValueError(
                f"{blocks} blocks must divide {d_in} and {d_out}, with 1..{blocks} links, got {links}"
            )
        self.blocks, self.links = blocks, links
        self.map = nn.Conv1d(
            links * d_in, d_out, 1, groups=blocks, bias=bias
        )  # weight (d_out, links d_in / blocks, 1)
        self.fan_out = links * d_out // blocks  # outputs that an input reaches

    def forward(self, x):
        parts = x.unflatten(-1, (self.blocks, -1))
        read = torch.cat(
            [parts.roll(-i, -2) for i in range(self.links)], -1
        )  # (..., blocks, links d_in / blocks)
        return (
            self.map(read.flatten(0, -3).flatten(1)[..., None]).squeeze(-1).view(*x.shape[:-1], -1)
        )

    def dense(self):
        """The same as one matrix, (d_out, d_in)."""
        weight = (
            self.map.weight.squeeze(-1)
            .unflatten(0, (self.blocks, -1))
            .unflatten(-1, (self.links, -1))
        )
        out = weight.new_zeros(self.blocks, weight.shape[1], self.blocks, weight.shape[3])
        for i in range(self.blocks):
            for j in range(self.links):
                out[i, :, (i + j) % self.blocks] = weight[i, :, j]
        return out.flatten(2).flatten(0, 1)


class BlockSparse(FeedForward, kind="block-sparse"):
    """GELU between two maps of `blocks` x `blocks` blocks, of which `links` in each row hold
    weights. Child 2019.

    ▪▪··        blocks 4, links 2: half of the weights; what one block knows reaches
    ·▪▪·        the others through the stack
    ··▪▪
    ▪··▪
    """

    activation = nn.GELU

    def __init__(self, config, *, ratio=None, width=None, bias=None, blocks=4, links=2):
        super().__init__(config, ratio=ratio, width=width, bias=bias)
        sizes, bias = (self.up.in_features, self.up.out_features), self.up.bias is not None
        self.up = BlockMap(*sizes, blocks, links, bias)
        self.down = BlockMap(*sizes[::-1], blocks, links, bias)

    def output_projections(self):
        return [self.down.map]


class AdaptiveWidth(FeedForward, kind="adaptive-width"):
    """GELU over as many hidden units as a token asks for: the first z = d_ff sigmoid(w·x + 2), and
    a ramp of them.

    x ──┬── W1 ── act ── * ── W2 ──      unit i is weighted by clamp((z + ramp - i) / ramp, 0, 1), as spans are in
        └── w ── ramp ───┘               Sukhbaatar 2019; `ramp` is a share of d_ff

    `used`, the mean share of its units at the last call, padding left out, is differentiable:
    `width_loss` makes tokens ask for fewer.
    """

    activation, of_call, sees_padding, repeatable = nn.GELU, ("used",), True, False

    def __init__(self, config, *, ratio=None, width=None, bias=None, ramp=0.125):
        super().__init__(config, ratio=ratio, width=width, bias=bias)
        if not 0 < ramp <= 1:
            raise ValueError(f"ramp is a share of the units, above 0 and not above 1, got {ramp}")
        self.ramp, self.used = ramp, None
        self.ask = nn.Linear(config.d_model, 1, bias=False)

    def share(self, x):
        """What each unit counts for each token, (b, t, d_ff)."""
        units = self.up.out_features
        place = torch.arange(units, device=x.device) / units
        return ((torch.sigmoid(wide(self.ask(x)) + 2) + self.ramp - place) / self.ramp).clamp(0, 1)

    def forward(self, x):
        share = self.share(x)
        self.used = self.tokens(share).mean()
        return self.down(self.act(self.up(x)) * share.to(x.dtype))


def width_loss(model):
    """Mean share of hidden units that the tokens of the last call asked for, to be added to a loss
    with a weight.

    ValueError where the model has no layers of adaptive width, or they were never called.
    """
    used = [module.used for module in model.modules() if isinstance(module, AdaptiveWidth)]
    if not used or any(share is None for share in used):
        raise ValueError("the model has no layer of adaptive width that was called")
    return torch.stack(used).mean()
