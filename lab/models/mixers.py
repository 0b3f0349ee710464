"""Kinds of mixers: attention to earlier segments, recurrence, convolution (§1.2, §1.6.2)."""

import torch
import torch.nn.functional as F
from torch import nn

from lab.models.decoding import Cache
from lab.models.gpt import Attention, Mixer, QKVMixer
from lab.models.masks import Mask
from lab.models.padding import Padding


class StateMixer(Mixer):
    """Base class of mixers without pairwise scores; they keep a state instead of a key/value cache.

    The constructor raises ValueError for a position encoding or mask that the mixer cannot apply.
    """

    hooks = {"at_input"}  # hooks of Position that this mixer applies
    masks = {"causal"}  # kinds of Mask that it can apply

    def __init__(self, config, position):
        super().__init__(config, position)
        name = type(self).__name__
        missing = {"bias": "scores to add a bias to", "at_query_key": "queries and keys to rotate"}
        for hook in sorted(position.acts() - self.hooks):
            raise ValueError(
                f"{name} has no {missing[hook]}: position {config.position!r} cannot be used "
                "with it"
            )
        kind = Mask.resolve(config.mask)[0]
        if kind not in map(Mask.kinds.get, self.masks):
            allowed = " or ".join(sorted(self.masks))
            raise ValueError(
                f"{name} cannot mask individual query-key pairs: the mask must be {allowed}, "
                f"not {config.mask!r}"
            )

    def inputs(self, seen):
        """Return {}, no arguments: a causal mixer never reads padding, which is on the right.

        Raises ValueError for padding in a model that is not causal, and for any other batch mask,
        with or without padding.
        """
        mask = seen.batch_mask
        behind = isinstance(mask, Padding) and mask.beside is None and seen.mask.causal
        if mask is not None and not behind:
            name = type(self).__name__
            raise ValueError(
                f"{name} cannot mask individual query-key pairs: "
                "it does not accept a per-batch mask"
            )
        return {}

    def init_cache(self, batch, context, **tensor):
        return Cache()


class QKVStateMixer(QKVMixer, StateMixer):
    """Base class of state mixers with the queries, keys and values of attention."""

    hooks = {"at_input", "at_query_key"}


class TransformerXL(Attention, kind="transformer-xl"):
    """Attention to the current segment and to the layer's last `memory` inputs. Dai 2019.

    `memory` defaults to block_size.

    segment 1   a b c d        memory of segment 2: the inputs a b c d of each layer, detached
    segment 2         e f g h  g sees a b c d e f g; n layers together reach n · memory tokens back

    Process the segments of a sequence in order and with the same caches, even in training: first
    `caches = model.caches(b)`, then model(segment, caches=caches) for each segment. No gradient
    flows between segments. Without caches this is standard attention. Use relative positions
    (rotary, alibi, t5): learned and randomized positions raise an error beyond block_size. Raises
    ValueError if memory < 1.
    """

    def __init__(self, config, position, *, memory=None):
        super().__init__(config, position)
        self.memory = config.block_size if memory is None else memory
        if self.memory < 1:
            raise ValueError(f"memory must be at least 1 position, got {memory}")

    def inputs(self, seen):
        kept = min(seen.k_len - seen.q_len, self.memory)
        inputs = super().inputs(seen)
        for name in ("bias", "mask"):
            if inputs.get(name) is not None:
                inputs[name] = inputs[name][..., -(kept + seen.q_len) :]
        return inputs

    def split(self, x, cache):
        if cache is None:
            return super().split(x, None)
        # the first keys of the memory also depend on the `history` inputs before it
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


class Gru(StateMixer, kind="gru"):
    """A GRU of width d_model; decoding keeps its last output. Cho 2014 §2.3.

    x ── GRU ──      no W_O: its outputs, in -1..1, are added to the residual stream

    Every initialization scheme leaves the weights at torch's default, uniform in ±1/sqrt(m).
    """

    def __init__(self, config, position):
        super().__init__(config, position)
        self.cell = nn.GRU(config.d_model, config.d_model, bias=config.bias, batch_first=True)

    def forward(self, x, cache=None):
        if cache is None:
            return self.cell(x)[0]
        out, last = self.cell(x, cache.tensors.get("output"))
        cache.tensors["output"] = last.detach()
        cache.length += x.shape[1]
        return out

    def state_bytes(self, length):
        return self.cell.hidden_size * self.cell.weight_hh_l0.element_size()


class Convolution(StateMixer, kind="convolution"):
    """A gated causal depthwise convolution over the last `width` positions. Fu 2023 (H3); LFM2.

    x ──┬── W ── p ── convolution ── y ── * ── W_O ──    y_t = Σ_i w_i p_(t-i), i < width,
        └── W_g ───────────────────────── ┘              with one w per feature

    p is 0 before the first position. Decoding keeps p of the last width - 1 positions. Every
    initialization scheme leaves the w_i at N(0, 1 / width). Raises ValueError for width < 1.
    """

    undecayed = ("conv_weight",)

    def __init__(self, config, position, *, width=4):
        super().__init__(config, position)
        if width < 1:
            raise ValueError(f"a convolution needs a width of at least 1, got {width}")
        d = config.d_model
        self.up = nn.Linear(d, 2 * d, bias=config.bias)
        self.kernel_size = width
        self.conv_weight = nn.Parameter(torch.randn(d, 1, width) * width**-0.5)  # the last is w_0
        self.out = nn.Linear(d, d, bias=config.bias)

    def forward(self, x, cache=None):
        p, gate = self.up(x).chunk(2, -1)
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
