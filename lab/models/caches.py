"""What decoding keeps of the positions before: state of fixed size, or all keys and values (chapter §1.2)."""

import torch


class State:
    """What decoding keeps of one layer: tensors by name, and the number of positions that went into them."""

    def __init__(self, **tensors):
        self.tensors, self.length = tensors, 0

    @property
    def nbytes(self):
        """Bytes of memory that the tensors hold on to."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self.tensors.values())

    def remember(self, x, reach):
        """x (b, t, m) after the `reach` inputs before it, as far as there are any; those are constants."""
        seen = x if "recent" not in self.tensors else torch.cat([self.tensors["recent"], x], 1)
        self.tensors["recent"] = seen[:, max(0, seen.shape[1] - reach) :].detach().clone()
        return seen


class KVCache(State):
    """Preallocated keys and values of one layer: 2 x batch x kv_heads x context x d_head elements.

    Where values have a width of their own, d_value, they hold batch x kv_heads x context x d_value.
    """

    def __init__(self, batch, kv_heads, context, d_head, d_value=None, **tensor):
        super().__init__(
            keys=torch.empty(batch, kv_heads, context, d_head, **tensor),
            values=torch.empty(batch, kv_heads, context, d_value or d_head, **tensor),
        )

    @property
    def keys(self):
        return self.tensors["keys"]

    @property
    def values(self):
        return self.tensors["values"]

    def extend(self, k, v):
        """All keys and values so far, the new ones last. ValueError when the cache is full."""
        end = self.length + k.shape[2]
        if end > self.keys.shape[2]:
            raise ValueError(f"the cache holds {self.keys.shape[2]} positions, {end} are needed")
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]
