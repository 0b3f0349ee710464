"""N-gram baselines, counted on the text that a training run reads.

A model whose loss stays above that of trigrams makes worse use of its whole context than trigrams
make of two tokens.
"""

import numpy as np
import pandas as pd


def ngram_losses(read, windows, order=4, vocabulary=256):
    """Validation loss of n-gram models of orders 1..`order`, in nats per token: a Series by order.

    read, windows: integers 0..vocabulary-1, shape (windows, length + 1); each row has the tokens of
    a window and its last target. The n-grams are counted on `read` and evaluated on `windows`, so
    their losses are comparable with those of a model trained on `read`. As for the model, the first
    token of a window is only context, and contexts do not reach beyond the start of a window.

    Probabilities have Witten-Bell smoothing (Witten & Bell 1991, method C; Chen & Goodman 1998,
    §2.5), where c is a count, t(h) is the number of different tokens seen after h, and h' is h
    without its first token:

        p(w | h) = (c(h w) + t(h) p(w | h')) / (c(h) + t(h))

    For empty h, p(w | h') is uniform. For unseen h, p(w | h) = p(w | h').
    """
    p = 1 / vocabulary
    losses = []
    asked = codes(windows, order, vocabulary)
    for n, (known, code) in enumerate(zip(codes(read, order, vocabulary), asked, strict=True)):
        ngrams, count = np.unique(known[:, max(0, n - 1) :], return_counts=True)
        contexts, begins = np.unique(ngrams // vocabulary, return_index=True)
        kinds = np.diff(begins, append=len(ngrams))
        total = np.add.reduceat(count, begins)
        at, found = look_up(contexts, code // vocabulary)
        total, kinds = total[at] * found, kinds[at] * found
        at, found = look_up(ngrams, code)
        longer = (count[at] * found + kinds * p) / np.maximum(total + kinds, 1)
        too_short = np.arange(1, code.shape[1] + 1) < n  # contexts at the start of a window
        p = np.where((total == 0) | too_short, p, longer)
        losses.append(-np.log(p))
    orders = pd.RangeIndex(1, order + 1, name="order")
    return pd.Series(np.stack(losses).mean((1, 2)), index=orders, name="nats")


def codes(windows, order, vocabulary):
    """Integer codes of all n-grams: a list of arrays (windows, length), one for each n in 1..order.

    A code encodes a token and the n - 1 tokens before it; the first token of a window has no code.
    Raises ValueError if the codes would overflow int64.
    """
    if vocabulary**order >= 2**63:
        raise ValueError(f"vocabulary ** order must be below 2^63, got {vocabulary} ** {order}")
    windows = np.asarray(windows).astype(np.int64)
    found = [windows[:, 1:].copy()]
    for n in range(1, order):
        code = found[-1].copy()
        code[:, n - 1 :] += windows[:, : max(0, windows.shape[1] - n)] * vocabulary**n
        found.append(code)
    return found


def look_up(sorted_codes, wanted):
    """For each code in `wanted`: (its index in sorted_codes, whether sorted_codes contains it)."""
    at = np.searchsorted(sorted_codes, wanted)
    at[at == len(sorted_codes)] = 0
    return at, sorted_codes[at] == wanted
