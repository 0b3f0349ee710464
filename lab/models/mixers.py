"""Further mixers: attention to earlier segments, a recurrence, a convolution (§1.2, §1.6.2)."""

import torch
import torch.nn.functional as F
from torch import nn

from lab.models.gpt import Attention, Cache, Mixer


class TransformerXL(Attention, kind="transformer-xl"):
    """Attention to the segment and to the last `memory` inputs of the same layer. Dai 2019.

    `memory` defaults to the context.

    segment 1   a b c d        memory of segment 2: the inputs a b c d of each layer, detached
    segment 2         e f g h  g sees a b c d e f g; through n layers it reaches n memories back

    Feed the segments of a text one by one with the same caches, in training too: `caches =
    model.caches(b)`, then model(segment, caches=caches) for each. No gradient flows between
    segments. Without caches this is ordinary attention. Use positions that encode distances
    (rotary, alibi, t5): others end at the context. Raises ValueError if memory is below 1.
    """

    position_dependence = "distance"

    def __init__(self, config, position, *, memory=None):
        super().__init__(config, position)
        self.memory = config.block_size if memory is None else memory
        if self.memory < 1:
            raise ValueError(f"memory must be at least 1 position, got {memory}")

    def inputs(self, visibility):
        kept = min(visibility.k_len - visibility.q_len, self.memory)
        inputs = super().inputs(visibility)
        for name in ("bias", "mask"):
            if inputs.get(name) is not None:
                inputs[name] = inputs[name][..., -(kept + visibility.q_len) :]
        return inputs

    def split(self, x, cache):
        if cache is None:
            return super().split(x, None)
        # the first keys of the memory also depend on `history` earlier inputs
        seen = cache.append_inputs(x, self.memory + self.heads.history)
        kept = min(seen.shape[1] - x.shape[1], self.memory)
        q, k, v = (part[:, :, -(kept + x.shape[1]) :] for part in self.heads.split(seen))
        q = self.query_norm(q)
        k = self.key_norm(k)
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
        kept = min(length, self.memory + self.heads.history)
        return kept * self.heads.d_model * self.heads.qkv.weight.element_size()


class Gru(Mixer, kind="gru"):
    """A GRU as wide as the stream; decoding keeps its last output. Cho 2014 §2.3.

    x ── GRU ──      no W_O: its outputs, in -1..1, are added to the stream

    For every initialization scheme the weights start at torch's default, uniform in ±1/sqrt(m).
    Raises ValueError for a padding mask, which a recurrence over all positions cannot apply.
    """

    def __init__(self, config, position):
        super().__init__(config, position)
        self.cell = nn.GRU(config.d_model, config.d_model, bias=config.bias, batch_first=True)

    def inputs(self, visibility):
        if visibility.padding_mask is not None:
            raise ValueError("Gru is recurrent over all positions and supports no padding mask")
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
    """A gated causal depthwise convolution over the last `width` positions. Fu 2023 (H3); LFM2.

    x ──┬── W ── convolution ── * ── W_O ──      y_t = Σ_i w_i p_(t-i), i < width, w per feature
        └── W_g ─────────────── ┘

    Before the first position p is 0. Decoding keeps p at the last width - 1 positions. The w_i
    start from N(0, 1 / width), for every initialization scheme. Raises ValueError for a width below
    1.
    """

    undecayed = ("conv_weight",)
    position_dependence = "distance"

    def __init__(self, config, position, *, width=4):
        super().__init__(config, position)
        if width < 1:
            raise ValueError(f"a convolution needs a width of at least 1, got {width}")
        d = config.d_model
        self.up = nn.Linear(d, 2 * d, bias=config.bias)
        self.kernel_size = width
        self.conv_weight = nn.Parameter(torch.randn(d, 1, width) * width**-0.5)  # the last is w_0
        self.out = nn.Linear(d, d, bias=config.bias)

    def forward(self, x, cache=None, padding_mask=None):
        p, gate = self.up(x).chunk(2, -1)
        if padding_mask is not None:
            p = p * padding_mask[..., None]
        if cache is None:
            seen = F.pad(p, (0, 0, self.kernel_size - 1, 0))
        else:
            seen = torch.cat([cache.tensors["before"], p], 1)
            cache.tensors["before"] = seen[:, x.shape[1] :].detach().clone()
            cache.length += x.shape[1]
        mixed = F.conv1d(seen.mT, self.conv_weight, groups=len(self.conv_weight)).mT
        return self.out(mixed * gate)

    def init_cache(self, batch, context, **tensor):
        kept = self.kernel_size - 1
        return Cache(before=torch.zeros(batch, kept, self.out.in_features, **tensor))

    def state_bytes(self, length):
        return (self.kernel_size - 1) * self.out.in_features * self.out.weight.element_size()
