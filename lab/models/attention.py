"""Multi-head attention composed of its seams, with a memory of earlier segments too (chapter §1.1, §1.2)."""

from lab.models.caches import KVCache, State
from lab.models.masks import Mask, Padding
from lab.models.mixers import QKVMixer
from lab.models.scores import Score


class AttentionContext:
    """Who sees whom in one forward pass: mask, causality and bias, made once for all layers that ask alike.

    Queries are the last q_len of k_len positions. `padding_mask` (b, k) is True at tokens, False at padding.
    `batch_mask` is a Mask of this batch alone, which joins `mask`: pairs that both allow are attended.
    """

    def __init__(self, mask, q_len, k_len, *, batch, device, padding_mask=None, batch_mask=None):
        self.mask, self.q_len, self.k_len, self.padding_mask, self.batch_mask = (
            mask,
            q_len,
            k_len,
            padding_mask,
            batch_mask,
        )
        self.batch = 1 if padding_mask is None and batch_mask is None else batch
        self.device, self._bias, self._pairs = device, {}, {}

    def bias(self, position):
        """What the position adds to the scores, (h, q, k) or None."""
        if position not in self._bias:
            self._bias[position] = position.bias(self.q_len, self.k_len)
        return self._bias[position]

    def pairs(self, *, biased, heads=1):
        """What the score gets as its mask: nothing, the kernel's own causality, or booleans (b, 1 or h, q, k).

        b is 1 where there is neither `padding_mask` nor `batch_mask`.
        """
        if (biased, heads) not in self._pairs:
            self._pairs[biased, heads] = self._visible(biased, heads)
        return self._pairs[biased, heads]

    def query_padding_mask(self):
        """The padding mask of the queries, (b, q)."""
        return self.padding_mask[:, self.k_len - self.q_len :]

    def _visible(self, biased, heads):
        mask = self.mask if self.batch_mask is None else self.mask & self.batch_mask
        mask = mask if self.padding_mask is None else mask & Padding(self.padding_mask)
        kind = type(mask)
        if kind is Mask.kinds["none"] or (kind is Mask.kinds["causal"] and self.q_len == 1):
            return {}
        if kind is Mask.kinds["causal"] and self.q_len == self.k_len and not biased:
            return {"causal": True}
        sizes = {"batch": self.batch, "heads": heads if mask.per_head else 1}
        return {"mask": mask.dense(self.q_len, self.k_len, device=self.device, **sizes)}


class Attention(QKVMixer, kind="attention"):
    """x (b, t, m) -> (b, t, m). Heads split, the position turns query and key, the score mixes, heads join."""

    hooks = {"at_input", "at_query_key", "bias"}
    masks = None

    def __init__(self, config, position):
        super().__init__(config, position)
        self.score = Score.build(config.score, config)
        self.by_products = self.score.by_products

    def goes_by(self):
        goes_by = "distance" if self.score.by_distance else "order"
        return super().goes_by() | {f"score {self.config.score!r}": goes_by}

    def inputs(self, context):
        bias = context.bias(self.position)
        return {"bias": bias} | context.pairs(biased=bias is not None, heads=self.heads.n)

    def forward(self, x, cache=None, **visible):
        q, k, v = self.split(x, cache)
        if cache is not None:
            k, v = cache.extend(k, v)
        return self.heads.join(self.score(q, k, v, **visible))

    def empty(self, batch, context, **tensor):
        return KVCache(batch, self.heads.kv, context, self.heads.d, self.heads.d_value, **tensor)

    def state_bytes(self, length):
        element = self.heads.kv * (self.heads.d + self.heads.d_value) * self.heads.qkv.weight.element_size()
        return length * element + self.recent_bytes(length)


class TransformerXL(Attention, kind="transformer-xl"):
    """Attention to the segment and to the last `memory` inputs of the layer before it (default: the context).

    segment 1   a b c d        memory of segment 2: the inputs a b c d of each layer, as constants
    segment 2         e f g h  g sees a b c d e f g; through n layers it hears of n memories back

    The segments of a text go through the model one by one with the same caches, in training too: `caches =
    model.caches(b)`, then model(segment, caches=caches) for each. No gradient passes from one segment to another.
    Without caches it is attention. Positions should tell distances (rotary, alibi, t5): others end at the context.
    """

    looks_at = "distance"

    def __init__(self, config, position, *, memory=None):
        super().__init__(config, position)
        self.memory = config.context if memory is None else memory
        if self.memory < 1:
            raise ValueError(f"memory is a number of positions, at least 1, got {memory}")

    def inputs(self, context):
        kept = min(context.k_len - context.q_len, self.memory)
        return {
            name: part[..., -(kept + context.q_len) :] if name in ("bias", "mask") and part is not None else part
            for name, part in super().inputs(context).items()
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
