"""A verdict follows from rows, gates and prediction alone; without arms from interval and prediction."""

import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.claims.claims import EXACT, Claim, Prediction
from lab.claims.judge import computed, judge
from lab.measure.statistics import Interval, mean


def claim(direction="above", threshold=0.1, tolerance=0.0, kind="comparison", **fields):
    prediction = Prediction(compares="a minus b", direction=direction, threshold=threshold, tolerance=tolerance)
    return Claim(id="some-claim", exercise="1.4", kind=kind, priority="A", sources=["chapter"], claim="a beats b",
                 claim_zh="甲胜乙", metric="m", unit="points", prediction=prediction, **fields)  # fmt: skip


# Verdicts

INTERVALS = [  # prediction; low, high; verdict
    ("above", 0.1, 0, 0.2, 0.3, "supported"),
    ("above", 0.1, 0, 0.1, 0.3, "inconclusive"),  # what touches the bar is not beyond it
    ("above", 2, 0, 2, 2, "inconclusive"),
    ("above", 0.1, 0, 0.0999, 0.3, "inconclusive"),
    ("above", 0.1, 0, -0.2, 0.1, "inconclusive"),
    ("above", 0.1, 0, -0.2, 0.0999, "refuted"),  # some effect may be there, but none that matters
    ("above", 0.1, 0, -0.3, -0.2, "refuted"),
    ("above", 0.1, 0, -math.inf, math.inf, "inconclusive"),
    ("below", -0.1, 0, -0.3, -0.2, "supported"),
    ("below", -0.1, 0, -0.3, -0.1, "inconclusive"),
    ("below", -0.1, 0, -0.3, -0.0999, "inconclusive"),
    ("below", -0.1, 0, -0.1, 0.2, "inconclusive"),
    ("below", -0.1, 0, -0.0999, 0.2, "refuted"),
    ("equal", 1.0, 0.05, 0.96, 1.04, "supported"),
    ("equal", 1.0, 0.05, 0.95, 1.05, "supported"),
    ("equal", 1.0, 0.05, 0.9, 1.01, "inconclusive"),
    ("equal", 1.0, 0.05, 0.9, 1.2, "inconclusive"),
    ("equal", 1.0, 0.05, 1.05, 1.2, "inconclusive"),
    ("equal", 1.0, 0.05, 1.051, 1.2, "refuted"),
    ("equal", 1.0, 0.05, 0.8, 0.949, "refuted"),
]


@pytest.mark.parametrize("direction, threshold, tolerance, low, high, verdict", INTERVALS)
def test_an_interval_is_judged_as_a_whole(direction, threshold, tolerance, low, high, verdict):
    got = judge(
        claim(direction, threshold, tolerance), Interval(0.0, low, high, n=5, mde=0.04), figure="f", note="seen."
    )
    assert got.verdict == verdict
    assert (got.id, got.exercise, got.low, got.high, got.n, got.unit, got.figure) == (
        "some-claim", "1.4", low, high, 5, "points", "f")  # fmt: skip
    assert got.threshold == str(claim(direction, threshold, tolerance).prediction)
    assert got.note == ("seen. minimum detectable effect 0.04" if verdict == "inconclusive" else "seen.")


@pytest.mark.parametrize("low, high", [(0.2, 0.3), (-0.2, 0.3), (-0.3, -0.2)])
def test_a_question_is_answered_by_its_interval(low, high):
    got = judge(claim(kind="question"), Interval(0.0, low, high, n=5, mde=0.04), note="seen.")
    assert (got.verdict, got.low, got.high, got.note) == ("answered", low, high, "seen.")
    assert got.threshold == "a minus b", "what was measured, and no bar"


def test_an_undecided_interval_without_a_detectable_effect_says_nothing_of_it():
    got = judge(claim(), Interval(0.0, -1.0, 1.0, n=5))
    assert (got.verdict, got.note) == ("inconclusive", "")


NUMBERS = [
    ("equal", 0.0, 1e-12, 1e-12, "proved"), ("equal", 0.0, 1e-12, -1e-12, "proved"),
    ("equal", 0.0, 1e-12, 2e-12, "disproved"), ("equal", 0.0, 1.0, math.inf, "disproved"),
    ("equal", 1.0, 0.0, 1, "proved"), ("equal", 786432, 0.0, 786433, "disproved"),
    ("above", 0.8, 0.0, 0.8, "proved"), ("above", 0.8, 0.0, 0.79, "disproved"),
    ("below", 0.8, 0.0, 0.8, "proved"), ("below", 0.8, 0.0, 0.81, "disproved"),
]  # fmt: skip


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("direction, threshold, tolerance, number, verdict", NUMBERS)
def test_an_exact_statement_is_proved_or_not(direction, threshold, tolerance, number, verdict, kind):
    got = judge(claim(direction, threshold, tolerance, kind), number)
    assert (got.verdict, got.effect) == (verdict, number)
    assert math.isnan(got.low) and got.n is None


@pytest.mark.parametrize("kind", ["comparison", "trend", "question"])
def test_a_number_is_no_evidence_for_a_trend(kind):
    with pytest.raises(ValueError, match=f"some-claim is a {kind}: it wants an interval"):
        judge(claim(kind=kind), 0.5)


def test_what_was_not_measured_is_not_judged():
    with pytest.raises(ValueError, match="some-claim"):
        judge(claim(kind="theorem"), math.nan)


def test_without_a_prediction_there_is_no_verdict():
    with pytest.raises(ValueError, match="some-claim has no prediction"):
        judge(claim().model_copy(update={"prediction": None}), Interval(1.0, 0.9, 1.1, 5))


numbers = st.floats(-10, 10)


@given(direction=st.sampled_from(["above", "below", "equal"]), threshold=numbers, tolerance=st.floats(1e-3, 2),
       ends=st.tuples(numbers, numbers).map(sorted), mirrored=st.booleans())  # fmt: skip
def test_verdicts_mirror_and_never_contradict(direction, threshold, tolerance, ends, mirrored):
    tolerance = tolerance if direction == "equal" else 0.0
    low, high = ends
    verdict = judge(claim(direction, threshold, tolerance), Interval(0, low, high, 5)).verdict
    opposite = {"above": "below", "below": "above", "equal": "equal"}[direction]
    assert judge(claim(opposite, -threshold, tolerance), Interval(0, -high, -low, 5)).verdict == verdict
    points = {judge(claim(direction, threshold, tolerance, "theorem"), x).verdict for x in ends}
    if verdict == "supported":
        assert points == {"proved"}
    if verdict == "refuted":
        assert points == {"disproved"}


# From rows

COMPARED = {"measure": "accuracy", "rows": {"lookups": 4}, "compare": {"n_heads": [4, 1]}}
NEEDS = {"headroom": {"measure": "accuracy", "ceiling": 1.0, "floor": 0.0}}


def rows(few=0.55, many=0.99, lookups=4, spread=0.01, seeds=5):
    """A run a seed for one and four heads."""
    return pd.DataFrame(
        {"seed": seed, "n_heads": h, "lookups": lookups, "steps": 600, "seconds": 4.0,
         "accuracy": mean + spread * (seed - 2) * (-1) ** h}
        for h, mean in ((1, few), (4, many)) for seed in range(seeds)
    )  # fmt: skip


def judged(table, arms=COMPARED, needs=NEEDS, **fields):
    return judge(claim(arms=arms, needs=needs, **fields), table, figure="f")


def test_the_rows_of_the_ledger_are_compared_seed_by_seed():
    got = judged(pd.concat([rows(), rows(many=0.2, lookups=8)]))
    assert (got.verdict, got.n, got.figure, got.unit) == ("supported", 5, "f", "points")
    assert got.effect == pytest.approx(0.44) and got.low < 0.44 < got.high
    assert got.gates == "✓ headroom: accuracy 0.99 / 0.55"


def test_the_other_way_round_is_refuted():
    assert judged(rows(few=0.99, many=0.55)).verdict == "refuted"


def test_rows_at_other_values_are_not_judged_under_these():
    """Eight lookups are no evidence of four."""
    got = judged(rows(lookups=8))
    assert (got.verdict, got.note, got.figure) == ("not run at these values", "without lookups 4", "")
    assert math.isnan(got.effect)


def test_a_failed_gate_is_out_of_reach_whatever_the_effect():
    got = judged(rows(few=0.999, many=0.9999, spread=0.0001), direction="below")
    assert got.verdict == "out of reach" and got.gates.startswith("✗ headroom")
    assert "headroom" in got.note and "600 steps" in got.note and "core hours" in got.note


def test_every_case_has_to_hold_and_the_least_favourable_one_is_shown():
    both = {"measure": "accuracy", "rows": {}, "each": {"lookups": [2, 4]}, "compare": {"n_heads": [4, 1]}}
    table = pd.concat([rows(few=0.8, lookups=2), rows()], ignore_index=True)
    got = judged(table, arms=both)
    assert got.verdict == "supported" and got.effect == pytest.approx(0.19)
    assert "lookups 2, n_heads 4 / 1: 0.19" in got.note and "lookups 4, n_heads 4 / 1: 0.44" in got.note
    got = judged(pd.concat([rows(few=0.97, lookups=2), rows()], ignore_index=True), arms=both)
    assert got.verdict == "refuted" and got.effect == pytest.approx(0.02)


@pytest.mark.parametrize("unit", ["share", "share of heads"])
@pytest.mark.parametrize(
    "values, low, high",
    [
        ((0.999, 0.998, 1.0), 0.9965, 1.0),
        ((0.0, 0.001, 0.003), 0.0, 0.0051),
        ((0.4, 0.5, 0.6), 0.2516, 0.7484),
        ((-0.001, 0.001, 0.003), -0.004, 0.006),
    ],
)
def test_the_interval_of_a_mean_share_ends_at_0_and_1(values, low, high, unit):
    """Differences of shares have the unit too: a value below 0 tells them."""
    table = pd.DataFrame({"seed": range(3), "accuracy": values, "steps": 600})
    about = claim(kind="question", arms={"measure": "accuracy", "as": "mean"})
    got = judge(about.model_copy(update={"unit": unit}), table)
    assert (got.low, got.high) == pytest.approx((low, high), abs=1e-4)
    plain = judge(about, table)
    assert (plain.low, plain.high) == pytest.approx((mean(values).low, mean(values).high))


def test_the_seeds_that_would_decide_follow_from_the_whole_interval():
    about = claim(threshold=0.9, arms={"measure": "accuracy", "as": "mean"}, needs=NEEDS)
    table = pd.DataFrame({"seed": range(3), "accuracy": (0.88, 0.93, 0.98), "steps": 600})
    notes = [judge(about.model_copy(update={"unit": unit}), table).note for unit in ("share", "points")]
    assert "seeds would decide" in notes[0] and notes[0] == notes[1]


def test_what_is_undecided_says_how_many_seeds_would_do():
    got = judged(rows(few=0.85, spread=0.03))
    assert got.verdict == "inconclusive" and "seeds would decide" in got.note
    more = int(got.note.split(" seeds")[0].split()[-1])
    assert more > 5


def test_one_seed_decides_nothing_and_the_note_says_why():
    got = judged(rows(seeds=1, spread=0))
    assert (got.verdict, got.n, got.low, got.high) == ("inconclusive", 1, -math.inf, math.inf)
    assert got.effect == pytest.approx(0.44) and got.note == "one seed has no interval"
    assert judge(claim(), mean([0.4]), note="seen").note == "seen; one seed has no interval"


@pytest.mark.parametrize("kind", ["comparison", "question"])
def test_numbers_that_are_not_finite_decide_nothing(kind):
    """Such as nought by nought."""
    change = {"measure": "accuracy", "as": "change", "compare": {"n_heads": [4, 1]}}
    got = judged(rows(few=0, many=0, spread=0), arms=change, needs={"one model": {"same": ["lookups"]}}, kind=kind)
    assert (got.verdict, got.note) == ("inconclusive", "some of the numbers compared are not finite")
    got = judge(claim(kind=kind), computed(lambda: mean([0.1, math.nan])))
    assert (got.verdict, got.note) == ("inconclusive", "some of the numbers compared are not finite")


def test_a_table_and_arms_belong_together():
    with pytest.raises(TypeError, match="wants a table"):
        judge(claim(arms=COMPARED, needs=NEEDS), Interval(1, 0.9, 1.1, 5))
    with pytest.raises(TypeError, match="no arms"):
        judge(claim(), rows())


def test_a_question_of_rows_is_answered_without_gates():
    got = judge(claim(kind="question", arms=COMPARED), rows(few=0.99, many=0.5))
    assert (got.verdict, got.gates) == ("answered", "") and got.effect < 0


def test_what_has_no_gates_yet_says_so():
    assert judge(claim(), Interval(1, 0.9, 1.1, 5)).gates == "not yet gated"
    assert judge(claim(kind="theorem"), 0.5).gates == ""


@pytest.mark.parametrize("needs", [None, {"machine": True}])
@pytest.mark.parametrize("kind", ["comparison", "trend"])
def test_a_comparison_of_rows_without_gates_is_refused(kind, needs):
    with pytest.raises(ValueError, match="a comparison with arms needs gates"):
        claim(kind=kind, arms=COMPARED, needs=needs)
