"""Accuracy and loss by sequence length and position, within and beyond the training length.

`predict` is a function from tokens (b, t) to logits (b, t, classes) or (b, t, outputs, classes).
"""

import math

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F


@torch.no_grad()
def accuracy_by_length(predict, of_length, lengths, *, size=256, seed=0):
    """Accuracy and loss at each length: a DataFrame with one row per length.

    Columns: length; per_token, the share of answers that are correct; exact, the share of sequences
    with all answers correct; loss, in nats per answer. Both shares are NaN if all logits of some
    answer are NaN. Since earlier answers are inputs (teacher forcing), `exact` is also the share of
    sequences that greedy decoding solves.

    of_length(generator, size, n) returns tokens and targets, (b, t) each, where target -100 means
    no answer. The sequences of a length depend only on `seed`, `size` and the length. Raises
    ValueError if all targets are -100.
    """
    rows = []
    for n in lengths:
        tokens, targets = of_length(torch.Generator().manual_seed(10**6 * (seed + 1) + n), size, n)
        has_answer = targets != -100
        if not has_answer.any():
            raise ValueError(f"sequences of length {n} have no answer: all their targets are -100")
        logits = predict(tokens).reshape(*targets.shape, -1)
        right = (logits.argmax(-1) == targets) & has_answer
        loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=-100)
        per_token = right.sum().item() / has_answer.sum().item()
        exact = (right == has_answer).flatten(1).all(1).float().mean().item()
        if (logits.isnan().all(-1) & has_answer).any():  # argmax of NaN would count as class 0
            per_token = exact = math.nan
        rows.append((n, per_token, exact, loss.item()))
    return pd.DataFrame(rows, columns=["length", "per_token", "exact", "loss"])


@torch.no_grad()
def window_losses(predict, text, length, stride, *, start=None, batch_tokens=16384):
    """Loss in nats of each target of a text, by a sliding window: (windows, stride).

    text: (n,). A window has `length` input tokens. Only its last `stride` targets are scored, and
    the next window starts `stride` tokens later. With stride = length the windows do not overlap,
    and their first targets have almost no context. With a smaller stride every target has at least
    length - stride + 1 tokens of context.

    text[start] is the first target that is scored; default: length - stride + 1. Set `start` to
    compare lengths and strides on the same targets. The last window ends at the end of the text and
    has NaN for targets that the window before it scored. Raises ValueError if the text is too
    short, stride is not in 1..length, or start is below its default.

    ^ marks inputs whose targets are scored:

    length 4, stride 4   [a b c d] [e f g h]      length 4, stride 1   [a b c d]
                          ^ ^ ^ ^   ^ ^ ^ ^                                   ^
                                                                         [b c d e]
                                                                                ^
    """
    least = length - stride + 1
    start = least if start is None else start
    if not 1 <= stride <= length or start < least:
        raise ValueError(
            f"1 <= stride <= length and start >= {least} must hold, got {stride}, {length}, {start}"
        )
    if len(text) < start + stride:
        raise ValueError(f"the text has {len(text)} tokens, {start + stride} are needed")
    windows = text[start - least :].unfold(0, length + 1, stride)
    more = (len(text) - start) % stride  # number of targets left for a last window
    if more:
        windows = torch.cat([windows, text[None, -length - 1 :]])
    losses = []
    for part in windows.split(max(1, batch_tokens // length)):
        logits = predict(part[:, :-1])[:, -stride:]
        losses.append(
            F.cross_entropy(
                logits.flatten(0, 1), part[:, -stride:].flatten(), reduction="none"
            ).cpu()
        )
    losses = torch.cat(losses).view(-1, stride)
    if more:
        losses[-1, :-more] = torch.nan
    return losses


def by_bucket(losses, edges):
    """Mean loss per bucket of window positions: a DataFrame with one row per bucket.

    losses: (windows, positions), NaN for targets to ignore. edges: the first position of each
    bucket, increasing. Columns: position and last, the first and the last position of the bucket;
    loss, in the unit of `losses`; targets, their number. Raises ValueError if edges do not increase
    or lie outside the window.
    """
    ends = [*edges[1:], losses.shape[1]]
    if list(edges) != sorted(set(edges)) or edges[0] < 0 or ends[-1] <= edges[-1]:
        raise ValueError(
            f"edges must increase from 0 to below {losses.shape[1]}, got {list(edges)}"
        )
    rows = []
    for first, last in zip(edges, ends, strict=True):
        part = losses[:, first:last]
        rows.append((first, last - 1, part.nanmean().item(), int((~part.isnan()).sum())))
    return pd.DataFrame(rows, columns=["position", "last", "loss", "targets"])


def similarity(codes):
    """Cosine similarity of all pairs of position vectors (n, m), after centring: (n, n)."""
    codes = np.asarray(codes, dtype=float)
    codes = codes - codes.mean(0)
    codes /= np.linalg.norm(codes, axis=1, keepdims=True)
    return codes @ codes.T


def order_in_similarity(matrix):
    """Spearman correlation of a similarity matrix (n, n) with -|i - j|, over pairs i < j."""
    from scipy.stats import spearmanr

    i, j = np.triu_indices(len(matrix), 1)
    return float(spearmanr(np.asarray(matrix)[i, j], i - j).statistic)
