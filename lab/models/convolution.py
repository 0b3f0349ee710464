"""A convolutional mixer: a position is told of the few just before it, each feature by itself (chapter §1.6.2)."""

import torch
import torch.nn.functional as F
from torch import nn

from lab.models.mixers import Mixer, State


class Convolution(Mixer, kind="convolution"):
    """A causal depthwise convolution over the last `width` positions, gated by the last, as in LFM2 and H3 (Fu 2023).

    x ──┬── W ── convolution ── * ── W_O ──      y_t = Σ_i w_i p_(t-i), i < width, each feature with w of its own
        └── W_g ─────────────── ┘

    Before the first position stand zeros. Decoding keeps p of the last width - 1 positions. ValueError for a width
    below 1.
    """

    def __init__(self, config, position, *, width=4):
        super().__init__(config, position)
        if width < 1:
            raise ValueError(f"a convolution needs a width of at least 1, got {width}")
        d = config.d_model
        self.up = nn.Linear(d, 2 * d, bias=config.bias)
        self.taps = nn.Conv1d(d, d, width, groups=d, bias=config.bias)
        self.out = nn.Linear(d, d, bias=config.bias)

    def forward(self, x, cache=None, real=None):
        p, gate = self.up(x).chunk(2, -1)
        if real is not None:
            p = p * real[..., None]
        if cache is None:
            seen = F.pad(p, (0, 0, self.taps.kernel_size[0] - 1, 0))
        else:
            seen = torch.cat([cache.tensors["before"], p], 1)
            cache.tensors["before"] = seen[:, x.shape[1] :].detach().clone()
            cache.length += x.shape[1]
        return self.out(self.taps(seen.mT).mT * gate)

    def empty(self, batch, context, **tensor):
        return State(before=torch.zeros(batch, self.taps.kernel_size[0] - 1, self.out.in_features, **tensor))

    def state_bytes(self, length):
        return (self.taps.kernel_size[0] - 1) * self.out.in_features * self.out.weight.element_size()
