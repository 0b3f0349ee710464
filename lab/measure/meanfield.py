"""Closed forms for stacks at initialisation, in the set-up of Xiong 2020 (chapter §1.5.3, §1.5.5).

One head, every weight d x d with variance 1/d, W_Q = W_K = 0 so that n tokens are averaged, ReLU, no biases, inputs of
variance 1. S is the mean square of an entry of the stream, c the mean product of the same entry of two tokens.
"""

from math import acos, pi, sqrt

import pandas as pd


def relu_overlap(r):
    """E[relu(x) relu(y)] · 2 of two standard normals with correlation r: 1 at r = 1. Cho & Saul 2009."""
    return (sqrt(max(0.0, 1 - r * r)) + r * (pi - acos(max(-1.0, min(1.0, r))))) / pi


def moments(placement, n, layers, *, branch=1.0):
    """One row per layer 0..layers: layer, S, c of the stream behind it, and sum, the mean square before a post-norm.

    `placement` is pre, post or none; `branch` multiplies the variance of every branch (1/N where N branches are scaled
    by 1/√N). Pre with n = 1: S = 1 + 3/2 layer; post: sum = 3/2; none: S grows by (1 + m/S) · 3/2 in ratio.
    """
    if placement not in ("pre", "post", "none"):
        raise ValueError(f"placement is pre, post or none, got {placement!r}")
    S, c, rows = 1.0, 0.0, [(0, 1.0, 0.0, 1.0)]
    for layer in range(1, layers + 1):
        size = 1.0 if placement == "pre" else S  # of the branch's input; normed inputs have 1
        mean = branch * size * (1 / n + (1 - 1 / n) * c / S)  # attention gives every token the same average
        S, c = S + mean, c + mean
        if placement == "post":
            S, c = 1.0, c / S
        size = 1.0 if placement == "pre" else S
        S, c = S + branch * size / 2, c + branch * size / 2 * relu_overlap(c / S)
        before = S
        if placement == "post":
            S, c = 1.0, c / S
        rows.append((layer, S, c, before))
    return pd.DataFrame(rows, columns=["layer", "S", "c", "sum"])
