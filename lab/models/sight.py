"""Who sees whom in one forward pass: mask, causality and bias, made once for all layers that ask alike."""

from lab.models.masks import Mask, Padding


class Sight:
    """Queries are the last q_len of k_len positions. `real` (b, k) is False at padding; `given` is a Mask of this batch
    alone, which joins `mask`: pairs that both allow are attended."""

    def __init__(self, mask, q_len, k_len, *, batch, device, real=None, given=None):
        self.mask, self.q_len, self.k_len, self.real, self.given = mask, q_len, k_len, real, given
        self.batch = 1 if real is None and given is None else batch
        self.device, self._bias, self._pairs = device, {}, {}

    def bias(self, position):
        """What the position adds to the scores, (h, q, k) or None."""
        if position not in self._bias:
            self._bias[position] = position.bias(self.q_len, self.k_len)
        return self._bias[position]

    def pairs(self, *, biased, heads=1):
        """What the score gets as its mask: nothing, the kernel's own causality, or booleans (b, 1 or h, q, k).

        b is 1 where there is neither `real` nor `given`.
        """
        if (biased, heads) not in self._pairs:
            self._pairs[biased, heads] = self._visible(biased, heads)
        return self._pairs[biased, heads]

    def new_real(self):
        """`real` of the queries, (b, q)."""
        return self.real[:, self.k_len - self.q_len :]

    def _visible(self, biased, heads):
        mask = self.mask if self.given is None else self.mask & self.given
        mask = mask if self.real is None else mask & Padding(self.real)
        kind = type(mask)
        if kind is Mask.kinds["none"] or (kind is Mask.kinds["causal"] and self.q_len == 1):
            return {}
        if kind is Mask.kinds["causal"] and self.q_len == self.k_len and not biased:
            return {"causal": True}
        sizes = {"batch": self.batch, "heads": heads if mask.per_head else 1}
        return {"mask": mask.dense(self.q_len, self.k_len, device=self.device, **sizes)}
