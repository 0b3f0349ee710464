"""N-gram models, counted on the same text that a training run read.

A model whose loss stays above the loss of trigrams has learnt less than two tokens of context
allow.
"""

import numpy as np
import pandas as pd


class NGram:
    """Next-token probabilities given 0..`order` - 1 tokens, with Witten-Bell smoothing.

        p(w | h) = (c(h w) + t(h) p(w | h')) / (c(h) + t(h))

    c is a count, t(h) the number of different tokens that followed h, and h' is h without its first
    token. For the empty context p(w | h') is uniform. An unseen context has the probabilities of h'
    (Witten & Bell 1991, method C; Chen & Goodman 1998, §2.5).

    `read` is the text a run read: integers 0..vocabulary-1 of shape (windows, length), tokens and
    the last target; a whole text is one window. The first token of a window is context only, as it
    was for the run. Raises ValueError for other shapes or tokens, for windows shorter than `order`,
    and if vocabulary^order is 2^63 or more.
    """

    def __init__(self, read, order=4, vocabulary=256):
        if order < 1 or vocabulary**order >= 2**63:
            raise ValueError(
                f"order must be 1 or more, and vocabulary ** order below 2^63; got {order}, "
                f"{vocabulary}"
            )
        self.order = order
        self.vocabulary = vocabulary
        # one entry per context length
        self._pairs = []  # (codes, counts)
        self._contexts = []  # (codes, counts, number of different successors)
        codes = self._codes(read)
        if codes[0].shape[1] < order - 1 or not codes[0].size:
            raise ValueError(
                f"windows of {codes[0].shape[1] + 1} tokens are too short for order {order}"
            )
        for n in range(order):
            seen, count = np.unique(codes[n][:, max(0, n - 1) :], return_counts=True)
            context, begins = np.unique(seen // vocabulary, return_index=True)
            kinds = np.diff(begins, append=len(seen))
            self._pairs.append((seen, count))
            self._contexts.append((context, np.add.reduceat(count, begins), kinds))

    def losses(self, windows):
        """Loss in nats of every token but the first of windows (b, t + 1): (order, b, t).

        The first axis is the order 1..`order`. Tokens near the start of a window have shorter
        contexts.
        """
        return -np.log(self._probabilities(self._codes(windows)))

    def distribution(self, context):
        """Next-token probabilities after contexts (b, n), n >= 1: (order, b, vocabulary)."""
        context = self._checked(context)
        last = np.arange(self.vocabulary)
        codes = self._codes(
            np.column_stack([context.repeat(self.vocabulary, 0), np.tile(last, len(context))])
        )
        ends = [code[:, -1:] for code in codes]
        return self._probabilities(ends, whole=context.shape[1]).reshape(
            self.order, len(context), self.vocabulary
        )

    def _probabilities(self, codes, whole=None):
        p = np.full(codes[0].shape, 1 / self.vocabulary)
        by_order = []
        for n, code in enumerate(codes):
            (seen, count), (contexts, total, kinds) = self._pairs[n], self._contexts[n]
            at, known = _lookup(contexts, code // self.vocabulary)
            total, kinds = total[at] * known, kinds[at] * known
            at, known = _lookup(seen, code)
            longer = (count[at] * known + kinds * p) / np.maximum(total + kinds, 1)
            short = np.arange(1, code.shape[1] + 1) < n if whole is None else whole < n
            p = np.where((total == 0) | short, p, longer)
            by_order.append(p)
        return np.stack(by_order)

    def _codes(self, windows):
        """For n = 0..order - 1: each token but the first, with n tokens before it, as an integer.

        Each array has shape (b, t).
        """
        windows = self._checked(windows)
        by_length = []
        code = windows[:, 1:].copy()
        for n in range(self.order):
            if n:
                code = code.copy()
                code[:, n - 1 :] += windows[:, : max(0, windows.shape[1] - n)] * self.vocabulary**n
            by_length.append(code)
        return by_length

    def _checked(self, windows):
        windows = np.asarray(windows)
        if windows.ndim != 2 or 0 in windows.shape or not np.issubdtype(windows.dtype, np.integer):
            raise ValueError(
                f"windows must be whole numbers (windows, length), got {windows.dtype} "
                f"{windows.shape}"
            )
        if windows.min() < 0 or windows.max() >= self.vocabulary:
            raise ValueError(
                f"tokens {windows.min()}..{windows.max()} are not all among "
                f"0..{self.vocabulary - 1}"
            )
        return windows.astype(np.int64)


def ngram_losses(read, windows, order=4, vocabulary=256):
    """Mean loss in nats per token of `windows`, by order 1..`order`: a Series.

    The n-grams are counted on the windows `read`. Both are as in NGram: (windows, length + 1),
    tokens and the last target. Compare the losses with a run that was trained on `read` and
    evaluated on `windows`.
    """
    losses = NGram(read, order, vocabulary).losses(windows)
    return pd.Series(
        losses.mean((1, 2)), index=pd.RangeIndex(1, order + 1, name="order"), name="nats"
    )


def _lookup(sorted_codes, codes):
    """(indices of codes in sorted_codes, whether sorted_codes contains them)."""
    at = np.searchsorted(sorted_codes, codes)
    at[at == len(sorted_codes)] = 0
    return at, sorted_codes[at] == codes
