"""Primer's heads: queries, keys and values that are mixed over neighbouring positions before they meet (§1.6.2)."""

import torch
import torch.nn.functional as F
from torch import nn

from lab.models.heads import Heads


class Convolved(Heads, kind="convolved"):
    """A causal depthwise convolution over positions after W_Q, W_K and W_V. So 2021, Primer.

    x ── W ── p      q_t, k_t or v_t = w_0 p_t + w_1 p_(t-1) + ... + w_(width-1) p_(t-width+1), each channel its own w

    Before the first position stand zeros. Weights start as in Primer, w_0 at 1/2 and the others at 1/(2 width),
    whatever the scheme of initialisation. ValueError for a width below 1.
    """

    undecayed = ("taps",)

    def __init__(self, config, *, width=3):
        super().__init__(config)
        if width < 1:
            raise ValueError(f"the convolution of heads needs a width of at least 1, got {width}")
        self.reach = width - 1
        start = torch.full((self.qkv.out_features, width), 0.5 / width)
        start[:, 0] = 0.5
        self.taps = nn.Parameter(start)  # (channels, width)

    def split(self, x):
        return self.across(x, x)

    def following(self, x, cache):
        seen = cache.remember(x, self.reach)
        return [part[:, :, -x.shape[1] :] for part in self.split(seen)]

    def _project(self, x, rows):
        p, taps = super()._project(x, rows), self.taps[rows].unflatten(0, (-1, self.d))  # (b, h, t, d), (h, d, width)
        return sum(F.pad(p, (0, 0, i, 0))[:, :, : p.shape[2]] * taps[:, None, :, i] for i in range(self.reach + 1))
