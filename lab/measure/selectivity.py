"""Selectivity of units: the concepts they detect, and agreement of clusters with classes.

Letters: n tokens, u units, c concepts.
"""

import numpy as np
import pandas as pd
from scipy.cluster.vq import kmeans2
from scipy.stats import rankdata


def detectors(activations, labels, *, shifts=100, level=0.05, seed=0) -> pd.DataFrame:
    """The best unit for each concept, against chance: columns concept, unit, auc, null, share.

    The unit is chosen on the first half of the tokens and its AUC measured on the second, so the
    choice among many units does not inflate it. `null` is the AUC that the same procedure reaches
    with probability `level` in ANY concept if the labels are rotated against the tokens by random
    amounts; rotation, unlike shuffling, keeps the autocorrelation of real text. labels: {concept:
    (n,) booleans}; activations (n, u); share is the frequency of the concept.
    """
    names = list(labels)
    n = len(activations)
    half = n // 2
    rng = np.random.default_rng(seed)
    truth = np.stack([np.asarray(labels[name], dtype=np.float64) for name in names], 1)  # (n, c)
    turns = [0, *rng.integers(n // 10, n - n // 10, size=shifts)]
    # (n, (1 + shifts) c)
    columns = np.concatenate([np.roll(truth, turn, axis=0) for turn in turns], 1)
    values = np.asarray(activations, dtype=np.float64)
    first = _auc(rankdata(values[:half], axis=0), columns[:half])
    second = _auc(rankdata(values[half:], axis=0), columns[half:])
    chosen = np.nan_to_num(first).argmax(0)
    held_out = np.take_along_axis(second, chosen[None], 0)[0]
    held_out = held_out.reshape(1 + shifts, -1)  # (1 + shifts, c)
    null = np.nanquantile(np.nanmax(held_out[1:], axis=1), 1 - level)
    rows = zip(names, chosen[: len(names)], held_out[0], truth.mean(0), strict=True)
    table = pd.DataFrame(rows, columns=["concept", "unit", "auc", "share"])
    return table.assign(null=float(null))


def _auc(ranks, labels):
    yes = labels.sum(0)
    n = len(labels)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (ranks.T @ labels - yes * (yes + 1) / 2) / (yes * (n - yes))


def adjusted_rand(a, b):
    """Adjusted Rand index of two partitions: 1 if equal, 0 on average by chance. Hubert 1985."""
    table = pd.crosstab(np.asarray(a), np.asarray(b)).to_numpy().astype(float)

    def pairs(x):
        return (x * (x - 1) / 2).sum()

    both = pairs(table)
    rows = pairs(table.sum(1))
    columns = pairs(table.sum(0))
    total = pairs(table.sum())
    expected = rows * columns / total
    return float((both - expected) / ((rows + columns) / 2 - expected))


def cluster_agreement(vectors, labels, *, seed=0, clusters=None):
    """Adjusted Rand index of k-means clusters of the normalised vectors with labels (n,)."""
    vectors = np.asarray(vectors, dtype=np.float64)
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    clusters = clusters or len(np.unique(labels))
    _, found = kmeans2(vectors, clusters, minit="++", rng=seed, missing="warn")
    return adjusted_rand(found, labels)
