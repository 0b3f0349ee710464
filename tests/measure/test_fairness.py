"""Arms that are fair to compare, and what is said of others."""

import pandas as pd
import pytest

from lab.measure.fairness import UnfairComparison, check_arms


def runs(**changes):
    table = pd.DataFrame(
        {
            "kind": ["rotary", "rotary", "alibi", "alibi"],
            "seed": [0, 1, 0, 1],
            "fingerprint": ["a0", "a1", "b0", "b1"],
            "data_hash": ["x0", "x1", "x0", "x1"],
            "parameters": [1000, 1000, 1010, 1010],
        }
    )
    return table.assign(**changes)


def test_fair_arms_give_one_line_per_check():
    checks = check_arms(runs(), "kind", matched=["parameters"])
    assert checks["check"].tolist() == ["same seeds", "distinct outputs", "same data", "matched parameters"]
    assert checks["finding"].tolist()[-1] == "within 1.00% (allowed 2.0%)"
    unchecked = check_arms(runs(), "kind", fingerprint=None, data=None)
    assert unchecked["finding"].tolist()[1:] == ["not checked"] * 2


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"fingerprint": ["a0", "a1", "b0", "a1"]}, "'rotary', 'alibi'.*seed 1.*had no effect"),
        ({"data_hash": ["x0", "x1", "x0", "x7"]}, "rotary.*data_hash.*alibi.*seed 1"),
        ({"seed": [0, 1, 0, 2]}, "rotary.*seed.*alibi.*paired"),
        ({"parameters": [1000, 1000, 1021, 1010]}, "alibi has 1,021.*rotary 1,000.*2.1% apart"),
        ({"parameters": [0, 0, 5, 5]}, "inf"),
    ],
)
def test_unfair_arms_are_named(changes, message):
    with pytest.raises(UnfairComparison, match=message):
        check_arms(runs(**changes), "kind", matched=["parameters"])


@pytest.mark.parametrize("changes", [{"kind": "one"}, {"fingerprint": ["a", "b", "c", None]}])
def test_a_table_that_cannot_be_checked_is_refused(changes):
    with pytest.raises(ValueError) as caught:
        check_arms(runs(**changes), "kind")
    assert not isinstance(caught.value, UnfairComparison)
    with pytest.raises(ValueError, match="flops"):
        check_arms(runs(), "kind", matched=["flops"])
