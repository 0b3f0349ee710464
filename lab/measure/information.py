"""How much one label tells of another, in nats (chapter §1.1.5)."""

import numpy as np


def entropy(counts):
    """Entropy of a distribution given by counts, by Miller & Madow: the plug-in value plus (kinds seen - 1) / 2n."""
    counts = np.asarray(counts, dtype=float)
    counts = counts[counts > 0]
    if not len(counts):
        raise ValueError("an entropy needs counts above 0")
    n = counts.sum()
    return float(np.log(n) - (counts * np.log(counts)).sum() / n + (len(counts) - 1) / (2 * n))


def mutual_information(x, y):
    """I(x; y) = H(x) + H(y) - H(x, y) of paired labels, two sequences of one length, each entropy by Miller & Madow.

    Without the correction two independent labels of a and b kinds would share (a - 1)(b - 1) / 2n nats on average; with
    it their mean is about 0, and single values may lie below. What is no label (an activation) must be cut into bins
    first. ValueError for unequal or empty sequences.
    """
    x, y = np.asarray(x), np.asarray(y)
    if x.shape != y.shape or x.ndim != 1 or not len(x):
        raise ValueError(f"two label sequences of one length are needed, got shapes {x.shape} and {y.shape}")
    x, y = (np.unique(labels, return_inverse=True)[1] for labels in (x, y))
    joint = np.zeros((x.max() + 1, y.max() + 1))
    np.add.at(joint, (x, y), 1)
    return entropy(joint.sum(1)) + entropy(joint.sum(0)) - entropy(joint.ravel())
