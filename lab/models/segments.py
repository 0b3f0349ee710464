"""Recurrence over segments: attention that also reads what its layer read in the segments before (Dai 2019)."""

from lab.models.attention import Attention
from lab.models.mixers import State


class Segments(Attention, kind="transformer-xl"):
    """Attention to the segment and to the last `memory` inputs of the layer before it (default: the context).

    segment 1   a b c d        memory of segment 2: the inputs a b c d of each layer, as constants
    segment 2         e f g h  g sees a b c d e f g; through n layers it hears of n memories back

    The segments of a text go through the model one by one with the same caches, in training too: `caches =
    model.caches(b)`, then model(segment, caches=caches) for each. No gradient passes from one segment to another.
    Without caches it is attention. Positions should tell distances (rotary, alibi, t5): others end at the context.
    """

    def __init__(self, config, position, *, memory=None):
        super().__init__(config, position)
        self.memory = config.context if memory is None else memory
        if self.memory < 1:
            raise ValueError(f"memory is a number of positions, at least 1, got {memory}")

    def inputs(self, sight):
        kept = min(sight.k_len - sight.q_len, self.memory)
        return {
            name: part[..., -(kept + sight.q_len) :] if name in ("bias", "mask") and part is not None else part
            for name, part in super().inputs(sight).items()
        }

    def split(self, x, cache):
        if cache is None:
            return super().split(x, None)
        seen = cache.remember(x, self.memory + self.heads.reach)  # the first keys of memory are made of inputs before
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

    def empty(self, batch, context, **tensor):
        return State()

    def state_bytes(self, length):
        return min(length, self.memory + self.heads.reach) * self.heads.d_model * self.heads.qkv.weight.element_size()
