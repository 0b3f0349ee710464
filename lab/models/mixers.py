"""Mixers: what moves information between the positions of a sequence, a choice of every layer (chapter §1.1, §1.6).

b batch, h query head, g key-value head, t token, d head width, m model width. A mixer maps x (b, t, m) to (b, t, m).
While decoding it reads and extends a State, what it keeps of the positions before: all of their keys and values, or a
sum of fixed size. What it cannot honour of positions and masks is an error at construction.
"""

from torch import nn

from lab.models.caches import State
from lab.models.heads import Heads
from lab.models.masks import Mask
from lab.models.norms import Norm
from lab.models.registry import Seam

WITHOUT = {"bias": "no scores to add a bias to", "at_query_key": "no queries and keys to turn"}


class Mixer(nn.Module, Seam):
    hooks = {"at_input"}  # of Position: those that can act where this mixer stands
    masks = {"causal"}  # kinds of Mask that it can honour; None: all
    looks_at = "order"  # a word of registry.GOES_BY, positions and heads aside

    def __init__(self, config, position):
        super().__init__()
        self.config = config
        name = type(self).__name__
        for hook in sorted(position.acts() - self.hooks):
            raise ValueError(f"{name} has {WITHOUT[hook]}: position {config.position!r} cannot act in its layer")
        if self.masks is not None and (kind := Mask.resolve(config.mask)[0]) not in map(Mask.kinds.get, self.masks):
            allowed = " or ".join(sorted(self.masks))
            raise ValueError(f"{name} chooses no pairs: the mask must be {allowed}, not {kind.__name__.lower()}")

    def inputs(self, context):
        """What `forward` is told of the positions that may see each other in this pass, by name."""
        if context.batch_mask is not None:
            raise ValueError(f"{type(self).__name__} chooses no pairs: it takes no mask of a batch")
        return {} if context.padding_mask is None else {"padding_mask": context.query_padding_mask()}

    def forward(self, x, cache=None, padding_mask=None):
        """`padding_mask` (b, t) is False at padding, which leaves no trace."""
        raise NotImplementedError

    def goes_by(self):
        """{part of it, in words: a word of registry.GOES_BY}."""
        return {f"mixer {self.config.mixer!r}": self.looks_at}

    def empty(self, batch, context, **tensor):
        """The State of `batch` sequences before their first token, with room for `context` positions."""
        return State()

    def state_bytes(self, length):
        """Bytes that decoding keeps for each sequence after `length` positions."""
        raise NotImplementedError

    def output_projections(self):
        """The maps whose output is added to the stream."""
        return [self.out]


class QKVMixer(Mixer):
    """Mixers of queries, keys and values that heads make."""

    hooks = {"at_input", "at_query_key"}
    by_products = False  # True where only products of queries and keys count: both may be turned

    def __init__(self, config, position):
        super().__init__(config, position)
        self.heads = Heads.build(config.heads, config)
        width = config.model_copy(update={"d_model": config.d_head})
        self.query_norm, self.key_norm = (Norm.build(config.qk_norm, width) for _ in "qk")
        self.position = position

    def goes_by(self):
        hooks, found = self.position.acts(), super().goes_by()
        position = f"position {self.config.position!r}"
        if "at_query_key" in hooks and not self.by_products:
            kinds = f"mixer {self.config.mixer!r} and score {self.config.score!r}"
            found[f"{position} with {kinds}"] = "place"
        elif hooks & {"at_query_key", "bias"}:
            found[position] = "distance"
        if self.heads.reach:  # padding in front would stand where they expect zeros
            found[f"heads {self.config.heads!r}"] = "place"
        return found

    def split(self, x, cache):
        """Queries (b, h, t, d), keys and values (b, g, t, d) of x, which stands after the positions in `cache`."""
        q, k, v = self.heads.split(x) if cache is None else self.heads.following(x, cache)
        q, k = self.query_norm(q), self.key_norm(k)
        return *self.position.at_query_key(q, k, start=0 if cache is None else cache.length), v

    def recent_bytes(self, length):
        """Bytes of the inputs that heads keep to make the next queries, keys and values."""
        weight = self.heads.qkv.weight
        return min(length, self.heads.reach) * self.heads.d_model * weight.element_size()

    def output_projections(self):
        return [self.heads.out]
