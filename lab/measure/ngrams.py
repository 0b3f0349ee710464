"""N-gram models, counted on the same text that a training run read.

A model whose loss stays above the loss of trigrams has learnt less than two tokens of context
allow.
"""

import numpy as np
import pandas as pd


def ngram_losses(read, windows, order=4, vocabulary=256):
    """Mean loss in nats per token of `windows`, by order 1..`order`: a Series.

    `read` and `windows` are integers 0..vocabulary-1 of shape (windows, length + 1): tokens and the
    last target. The first token of a window is context only, as it is for a run; tokens near the
    start of a window have shorter contexts. The n-grams are counted on `read`: compare the losses
    with a run that was trained on `read` and evaluated on `windows`.

    Odds have Witten-Bell smoothing (Witten & Bell 1991, method C; Chen & Goodman 1998, §2.5):

        p(w | h) = (c(h w) + t(h) p(w | h')) / (c(h) + t(h))

    c is a count, t(h) the number of different tokens that followed h, and h' is h without its first
    token. For the empty context p(w | h') is uniform. An unseen context has the odds of h'.
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
    """For n = 0..order - 1: each token but the first, with n tokens before it, as one integer.

    Each array has shape (windows, length). Raises ValueError where the integers would be too large.
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
    """(indices of `wanted` in sorted_codes, whether sorted_codes contains them)."""
    at = np.searchsorted(sorted_codes, wanted)
    at[at == len(sorted_codes)] = 0
    return at, sorted_codes[at] == wanted
