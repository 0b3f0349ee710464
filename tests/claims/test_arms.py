"""Rows become arms, and arms an effect with its interval."""

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from lab.claims.arms import Absent, Arms, together
from lab.measure import statistics

LOSS = {1: 2.2, 2: 2.1, 4: 2.0, 8: 2.0}
TABLE = pd.DataFrame(
    {"seed": seed, "n_heads": h, "position": p, "loss": loss + 0.01 * seed * (1 + (h == 1)) + (p == "t5")}
    for p in ("rotary", "t5") for h, loss in LOSS.items() for seed in (3, 1, 2)
)  # fmt: skip


def arms(**fields):
    return Arms(**{"measure": "loss", "rows": {"position": "t5"}} | fields)


def test_a_difference_is_paired_by_seed_whatever_the_order_of_rows():
    (case,) = arms(compare={"n_heads": [1, 8]}).cases(TABLE)
    shuffled = TABLE.sample(frac=1, random_state=1)
    (again,) = arms(compare={"n_heads": [1, 8]}).cases(shuffled)
    wanted = statistics.mean([0.2 + 0.01 * seed for seed in (1, 2, 3)])
    assert case.interval.effect == pytest.approx(wanted.effect) and case.interval.low == pytest.approx(wanted.low)
    assert again.interval.effect == pytest.approx(wanted.effect) and again.interval.high == pytest.approx(wanted.high)


def test_a_change_is_the_quotient_less_one():
    (case,) = arms(**{"as": "change"}, compare={"n_heads": [1, 8]}).cases(TABLE)
    wanted = [(3.2 + 0.02 * seed) / (3.0 + 0.01 * seed) - 1 for seed in (1, 2, 3)]
    assert case.interval.effect == pytest.approx(np.mean(wanted))


def test_a_mean_and_a_slope():
    (case,) = arms(**{"as": "mean"}, rows={"position": "t5", "n_heads": 8}).cases(TABLE)
    assert case.interval.effect == pytest.approx(3.02) and case.arms == ()
    (case,) = arms(**{"as": "slope"}, compare={"n_heads": [1, 2, 4]}).cases(TABLE[TABLE.seed == 1])
    assert case.interval.effect == pytest.approx(-0.105), "a doubling"


def test_outcomes_have_the_intervals_of_shares():
    rows = [{"seed": seed, "arm": arm, "learnt": arm == "one"} for seed in range(5) for arm in ("one", "other")]
    table = pd.DataFrame(rows)
    (case,) = arms(measure="learnt", rows={}, compare={"arm": ["one", "other"]}).cases(table)
    assert case.interval == statistics.share_difference([1] * 5, [0] * 5) and case.interval.low < 0.4
    (mean,) = arms(**{"as": "mean"}, measure="learnt", rows={"arm": "one"}).cases(table)
    assert mean.interval == statistics.share([1] * 5) and mean.interval.low < 0.6


def test_several_arms_and_each_are_cases_of_their_own():
    cases = arms(rows={}, each={"position": ["rotary", "t5"]}, compare={"n_heads": [[1, 2], 8]}).cases(TABLE)
    assert [case.name for case in cases] == [
        "position rotary, n_heads 1 / 8", "position rotary, n_heads 2 / 8",
        "position t5, n_heads 1 / 8", "position t5, n_heads 2 / 8",
    ]  # fmt: skip
    assert len(together(cases)) == 2 * 3 * 3, "the rows of 8 heads once"


def test_what_is_not_there_is_named():
    with pytest.raises(Absent, match="n_heads 32"):
        arms(compare={"n_heads": [32, 8]}).cases(TABLE)
    with pytest.raises(ValueError, match="no column accuracy; it has seed"):
        arms(measure="accuracy", compare={"n_heads": [1, 8]}).cases(TABLE)


def test_a_seed_with_two_rows_and_seeds_that_differ_are_errors():
    twice = pd.concat([TABLE, TABLE], ignore_index=True)
    with pytest.raises(ValueError, match="several rows of loss"):
        arms(compare={"n_heads": [1, 8]}).cases(twice)[0].interval  # noqa: B018
    gone = TABLE[(TABLE.seed != 2) | (TABLE.n_heads != 8)]
    for how in ("difference", "change"):
        with pytest.raises(ValueError):
            arms(**{"as": how}, compare={"n_heads": [1, 8]}).cases(gone)[0].interval  # noqa: B018


@pytest.mark.parametrize(
    "fields",
    [{"compare": {"n_heads": [1]}}, {"compare": {"n_heads": [1, 8], "position": ["t5", "rotary"]}}, {"compare": {}},
     {"as": "mean", "compare": {"n_heads": [1, 8]}}, {"as": "slope", "compare": {"n_heads": [1, 8]}}],
)  # fmt: skip
def test_arms_that_say_nothing_are_refused(fields):
    with pytest.raises(ValidationError, match="compare: one column"):
        arms(**fields)
