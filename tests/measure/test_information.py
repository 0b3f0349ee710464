"""Mutual information against channels whose value is known."""

import numpy as np
import pytest

from lab.measure.information import entropy, mutual_information


@pytest.mark.parametrize("flips", [0.0, 0.1, 0.5])
def test_a_binary_channel_carries_what_shannon_says(flips):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, 100_000)
    y = np.where(rng.random(100_000) < flips, 1 - x, x)
    lost = 0 if flips == 0 else -flips * np.log(flips) - (1 - flips) * np.log(1 - flips)
    assert mutual_information(x, y) == pytest.approx(np.log(2) - lost, abs=0.005)


def test_names_and_sides_do_not_matter_and_a_copy_tells_all():
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 7, 500), rng.integers(0, 5, 500)
    renamed = np.array(list("abcde"))[y]
    assert mutual_information(x, y) == pytest.approx(mutual_information(renamed, x))
    assert mutual_information(x, x) == pytest.approx(entropy(np.bincount(x)))


def test_independent_labels_share_nothing_on_average():
    rng = np.random.default_rng(2)
    found = [mutual_information(rng.integers(0, 8, 400), rng.integers(0, 8, 400)) for _ in range(300)]
    plug_in = 49 / 800  # what counting alone would find
    assert abs(np.mean(found)) < 0.1 * plug_in


def test_entropy_of_a_fair_die_is_nearly_unbiased():
    rng = np.random.default_rng(3)
    found = [entropy(np.bincount(rng.integers(0, 6, 60), minlength=6)) for _ in range(2000)]
    assert np.mean(found) == pytest.approx(np.log(6), abs=0.003)


def test_what_cannot_be_paired_is_refused():
    with pytest.raises(ValueError, match=r"got shapes \(3,\) and \(2,\)"):
        mutual_information([1, 2, 3], [1, 2])
    for empty in ([], [0, 0]):
        with pytest.raises(ValueError):
            entropy(empty)
