"""A convolutional mixer: a position is told of the few just before it, each feature by itself (chapter §1.6.2)."""

import torch
import torch.nn.functional as F
from torch import nn

from lab.models.mixers import Mixer, State


class Convolution(Mixer, kind="convolution"):
    """A causal depthwise convolution over the last `width` positions, gated by the last, as in LFM2 and H3 (Fu 2023).

    x ──┬── W ── convolution ── * ── W_O ──      y_t = Σ_i w_i p_(t-i), i < width, each feature with w of its own
        └── W_g ─────────────── ┘

    Before the first position stand zeros. Decoding keeps p of the last width - 1 positions. Its w start from
    N(0, 1 / width), whatever the scheme of initialisation. ValueError for a width below 1.
    """

    undecayed = ("taps",)

    def __init__(self, config, position, *, width=4):
        super().__init__(config, position)
        if width < 1:
            raise ValueError(f"a convolution needs a width of at least 1, got {width}")
        d = config.d_model
        self.up = nn.Linear(d, 2 * d, bias=config.bias)
        self.reach = width - 1
        self.taps = nn.Parameter(torch.randn(d, 1, width) * width**-0.5)  # the last is w_0
        self.out = nn.Linear(d, d, bias=config.bias)

    def forward(self, x, cache=None, real=None):
        p, gate = self.up(x).chunk(2, -1)
        if real is not None:
            p = p * real[..., None]
        if cache is None:
            seen = F.pad(p, (0, 0, self.reach, 0))
        else:
            seen = torch.cat([cache.tensors["before"], p], 1)
            cache.tensors["before"] = seen[:, x.shape[1] :].detach().clone()
            cache.length += x.shape[1]
        return self.out(F.conv1d(seen.mT, self.taps, groups=len(self.taps)).mT * gate)

    def empty(self, batch, context, **tensor):
        return State(before=torch.zeros(batch, self.reach, self.out.in_features, **tensor))

    def state_bytes(self, length):
        return self.reach * self.out.in_features * self.out.weight.element_size()
