"""Detectors against planted units and chance; agreement of partitions."""

import numpy as np
import pytest
from scipy import stats

from lab.measure import selectivity


def auc(unit, label):
    """The chance that the unit is higher where the label holds, ties counting half."""
    return stats.mannwhitneyu(unit[label], unit[~label]).statistic / (label.sum() * (~label).sum())


def test_detectors_find_a_planted_unit_and_not_the_best_of_many_noisy_ones():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((2000, 300))
    planted, absent = rng.random(2000) < 0.1, rng.random(2000) < 0.01
    a[:, 17] += 3 * planted
    found = selectivity.detectors(a, {"planted": planted, "absent": absent}).set_index("concept")
    assert found.unit["planted"] == 17
    assert found.auc["planted"] > max(0.95, found.null["planted"])
    best = max(auc(unit, absent) for unit in a.T)
    assert best > 0.7, "the best of 300 looks good where it was chosen"
    assert found.auc["planted"] == pytest.approx(auc(a[1000:, 17], planted[1000:]))
    assert found.auc["absent"] < found.null["absent"]
    assert found.share["planted"] == pytest.approx(planted.mean())


def test_the_null_of_detectors_holds_its_level():
    rng = np.random.default_rng(2)
    beats = 0
    for draw in range(40):
        runs = np.repeat(rng.random(100) < 0.2, 10)  # labels come in runs, as in text
        drift = np.cumsum(rng.standard_normal((1000, 20)), 0)  # and so do activations
        found = selectivity.detectors(drift, {"runs": runs}, seed=draw)
        beats += int(found.auc[0] > found.null[0])
    assert beats <= 8  # 2 expected at 5 %; a shuffled null would be beaten far more often


def test_adjusted_rand_is_one_for_renamed_partitions_and_nought_by_chance():
    rng = np.random.default_rng(0)
    a = rng.integers(0, 4, 2000)
    assert selectivity.adjusted_rand(a, (a + 1) % 4) == pytest.approx(1)
    assert abs(selectivity.adjusted_rand(a, rng.integers(0, 4, 2000))) < 0.01
    assert selectivity.adjusted_rand([0, 0, 1, 1], [0, 0, 1, 2]) == pytest.approx(4 / 7)


def test_clusters_agree_with_labels_that_directions_carry():
    labels = np.arange(300) % 3
    vectors = np.eye(3)[labels] * np.random.default_rng(0).uniform(1, 9, (300, 1))
    noisy = vectors + 0.05 * np.random.default_rng(1).standard_normal((300, 3))
    assert selectivity.cluster_agreement(noisy, labels) > 0.95
    assert abs(selectivity.cluster_agreement(noisy, np.random.default_rng(2).permutation(labels))) < 0.05
