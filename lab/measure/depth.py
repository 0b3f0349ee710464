"""Measurements of the residual stream and the blocks across layers; theory at initialization."""

from contextlib import contextmanager
from math import acos, pi, sqrt

import pandas as pd
import torch
import torch.nn.functional as F


@contextmanager
def perturbed_weights(model, size, seed=0):
    """Context manager that adds noise size · rms(w) · N(0, 1) to each parameter w until exit."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        kept = [p.clone() for p in model.parameters()]
        for p in model.parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p)
            p += size * p.square().mean().sqrt() * noise
    try:
        yield
    finally:
        with torch.no_grad():
            for p, value in zip(model.parameters(), kept, strict=True):
                p.copy_(value)


def layer_cosine_similarity(streams):
    """Mean cosine similarity of a token's residual stream at adjacent layers: (layers - 1,).

    streams: (layers, ..., m).
    """
    return F.cosine_similarity(streams[1:], streams[:-1], dim=-1).flatten(1).mean(1)


@torch.no_grad()
def layer_ablation_losses(blocks, loss):
    """Increase of loss() when each block in turn is replaced with the identity: a list."""

    def skipped(x, **_):
        return x

    base = loss()
    rises = []
    for block in blocks:
        block.forward = skipped
        try:
            rises.append(loss() - base)
        finally:
            del block.forward
    return rises


def relu_overlap(r):
    """2 E[relu(x) relu(y)] for standard normal x, y with correlation r (Cho & Saul 2009)."""
    return (sqrt(max(0.0, 1 - r * r)) + r * (pi - acos(max(-1.0, min(1.0, r))))) / pi


def moments(placement, n, layers, *, branch=1.0):
    """Predicted statistics of the residual stream at initialization: one row per layer 0..layers.

    The prediction assumes embeddings N(0, 1), uniform attention to all tokens, ReLU layers and
    weights of variance 1 / fan_in.

    Columns: layer; S, the mean square of the stream after the layer; c, the mean product of the
    streams of two tokens; sum, the mean square before the post-norm. n is the number of tokens. The
    placement of the norm is pre, post or none. `branch` multiplies the variance of each branch; use
    1/N if branch outputs are multiplied by 1/√N. For n = 1, pre has S = 1 + 3/2 layer, post has sum
    = 3/2 and none has S = 3^layer. Raises ValueError for an unknown placement.
    """
    if placement not in ("pre", "post", "none"):
        raise ValueError(f"placement must be pre, post or none, got {placement!r}")
    S, c, rows = 1.0, 0.0, [(0, 1.0, 0.0, 1.0)]
    for layer in range(1, layers + 1):
        size = 1.0 if placement == "pre" else S  # mean square of the input of the branch
        # attention is uniform: every token receives the same average
        mean = branch * size * (1 / n + (1 - 1 / n) * c / S)
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


def probe_accuracy(features, labels, *, ridge=1e-2):
    """Accuracy of a linear probe on features (n, m) with labels (n,) in 0..c-1.

    The probe is a ridge regression onto one-hot labels, in closed form. It is fitted to the first
    half of the rows and scored on the second half. Features are standardized; the penalty is
    `ridge` times the number of fitted rows.
    """
    features, labels = features.cpu().double(), labels.cpu()
    targets = F.one_hot(labels, int(labels.max()) + 1).double()
    half = len(features) // 2
    mean = features[:half].mean(0)
    spread = features[:half].std(0) + 1e-9
    ones = torch.ones(len(features), 1, dtype=torch.float64)
    x = torch.cat([(features - mean) / spread, ones], 1)
    eye = torch.eye(x.shape[1], dtype=torch.float64)
    fit = x[:half]
    weights = torch.linalg.solve(fit.T @ fit + ridge * half * eye, fit.T @ targets[:half])
    return ((x[half:] @ weights).argmax(1) == labels[half:]).double().mean().item()
