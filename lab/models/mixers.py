"""Further mixers: attention to earlier segments, a recurrence, a convolution (chapter §1.2,
§1.6.2).
"""

import torch
import torch.nn.functional as F
from torch import nn

from lab.models.gpt import Attention, Cache, Mixer


class TransformerXL(Attention, kind="transformer-xl"):
    """Attention to the segment and to the last `memory` inputs of the layer before it (default: the
    context).

    segment 1   a b c d        memory of segment 2: the inputs a b c d of each layer, as constants
    segment 2         e f g h  g sees a b c d e f g; through n layers it hears of n memories back

    The segments of a text go through the model one by one with the same caches, in training too:
    `caches = model.caches(b)`, then model(segment, caches=caches) for each. No gradient passes from
    one segment to another. Without caches it is attention. Positions should tell distances (rotary,
    alibi, t5): others end at the context.
    """

    looks_at = "distance"

    def __init__(self, config, position, *, memory=None):
        super().__init__(config, position)
        self.memory = config.context if memory is None else memory
        if self.memory < 1:
            raise ValueError(f"memory is a number of positions, at least 1, got {memory}")

    def inputs(self, visibility):
        kept = min(visibility.k_len - visibility.q_len, self.memory)
        return {
            name: part[..., -(kept + visibility.q_len) :]
            if name in ("bias", "mask") and part is not None
            else part
            for name, part in super().inputs(visibility).items()
        }

    def split(self, x, cache):
        if cache is None:
            return super().split(x, None)
        seen = cache.append_inputs(
            x, self.memory + self.heads.history
        )  # the first keys of memory are made of inputs before
        kept = min(seen.shape[1] - x.shape[1], self.memory)
        q, k, v = (part[:, :, -(kept + x.shape[1]) :] for part in self.heads.split(seen))
        q, k = self.query_norm(q), self.key_norm(k)
        q, k = self.position.at_query_key(q, k, start=cache.length - kept)
        return q[:, :, kept:], k, v

    def forward(self, x, cache=None, **visible):
        mixed = self.heads.join(self.score(*self.split(x, cache), **visible))
        if cache is not None:
            cache.length += x.shape[1]
        return mixed

    def init_cache(self, batch, context, **tensor):
        return Cache()

    def state_bytes(self, length):
        return (
            min(length, self.memory + self.heads.history)
            * self.heads.d_model
            * self.heads.qkv.weight.element_size()
        )


class Gru(Mixer, kind="gru"):
    """A GRU of the width of the stream; decoding keeps its last output. Cho 2014 §2.3.

    x ── GRU ──      no W_O: its outputs, within -1..1, are added to the stream

    Its weights start as torch's do, uniform within ±1/sqrt(m), whatever the scheme of
    initialisation. It reads every position in turn: ValueError where there is padding.
    """

    def __init__(self, config, position):
        super().__init__(config, position)
        self.cell = nn.GRU(config.d_model, config.d_model, bias=config.bias, batch_first=True)

    def inputs(self, visibility):
        if visibility.padding_mask is not None:
            raise ValueError("Gru reads every position in turn: it takes no padding")
        return super().inputs(visibility)

    def forward(self, x, cache=None):
        if cache is None:
            return self.cell(x)[0]
        out, last = self.cell(x, cache.tensors.get("output"))
        cache.tensors["output"] = last.detach()
        cache.length += x.shape[1]
        return out

    def state_bytes(self, length):
        return self.cell.hidden_size * self.cell.weight_hh_l0.element_size()

    def output_projections(self):
        return []


class Convolution(Mixer, kind="convolution"):
    """A causal depthwise convolution over the last `width` positions, gated by the last, as in LFM2
    and H3 (Fu 2023).

    x ──┬── W ── convolution ── * ── W_O ──      y_t = Σ_i w_i p_(t-i), i < width, each feature with w of its own
        └── W_g ─────────────── ┘

    Before the first position stand zeros. Decoding keeps p of the last width - 1 positions. Its w
    start from N(0, 1 / width), whatever the scheme of initialisation. ValueError for a width below
    1.
    """

    undecayed, looks_at = ("taps",), "distance"

    def __init__(self, config, position, *, width=4):
        super().__init__(config, position)
        if width < 1:
            raise ValueError(f"a convolution needs a width of at least 1, got {width}")
        d = config.d_model
        self.up = nn.Linear(d, 2 * d, bias=config.bias)
        self.reach = width - 1
        self.taps = nn.Parameter(torch.randn(d, 1, width) * width**-0.5)  # the last is w_0
        self.out = nn.Linear(d, d, bias=config.bias)

    def forward(self, x, cache=None, padding_mask=None):
        p, gate = self.up(x).chunk(2, -1)
        if padding_mask is not None:
            p = p * padding_mask[..., None]
        if cache is None:
            seen = F.pad(p, (0, 0, self.reach, 0))
        else:
            seen = torch.cat([cache.tensors["before"], p], 1)
            cache.tensors["before"] = seen[:, x.shape[1] :].detach().clone()
            cache.length += x.shape[1]
        return self.out(F.conv1d(seen.mT, self.taps, groups=len(self.taps)).mT * gate)

    def init_cache(self, batch, context, **tensor):
        return Cache(before=torch.zeros(batch, self.reach, self.out.in_features, **tensor))

    def state_bytes(self, length):
        return self.reach * self.out.in_features * self.out.weight.element_size()
