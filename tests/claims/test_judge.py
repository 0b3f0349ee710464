"""Answers follow from rows, gates and comparison alone; labels from answers and the quantifier."""

import math

import numpy as np
import pandas as pd
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from lab.claims.claims import EXACT, Claim
from lab.claims.judge import NO, OTHER_WAY, TOO_SMALL, UNDECIDED, YES, computed, judge, label_of
from lab.measure.statistics import Interval, mean

ABOUT = {"id": "some-claim", "exercise": "1.4", "priority": "A", "sources": ["chapter"], "claim": "a beats b",
         "claim_zh": "甲胜乙", "metric": "m", "unit": "points", "question": "a minus b"}  # fmt: skip


def claim(direction="above", bar=0.1, kind="comparison", **fields):
    return Claim(**ABOUT | {"kind": kind, "direction": direction, "bar": bar} | fields)


# An interval

INTERVALS = [  # direction, value, bar; low, high; answer
    ("above", 0, 0.1, 0.2, 0.3, YES),
    ("above", 0, 0.1, 0.1, 0.3, UNDECIDED),  # what touches the bar is not beyond it
    ("above", 0, 0.1, 0.0999, 0.3, UNDECIDED),
    ("above", 0, 0.1, -0.2, 0.1, UNDECIDED),
    ("above", 0, 0.1, -0.2, 0.0999, TOO_SMALL),  # some effect may be there, but none that matters
    ("above", 0, 0.1, -0.3, -0.2, OTHER_WAY),
    ("above", 0, 0.1, -math.inf, math.inf, UNDECIDED),
    ("below", 0, 0.1, -0.3, -0.2, YES),
    ("below", 0, 0.1, -0.3, -0.1, UNDECIDED),
    ("below", 0, 0.1, -0.0999, 0.2, TOO_SMALL),
    ("below", 0, 0.1, 0.1, 0.2, OTHER_WAY),
    ("not above", 0, 0.1, -0.3, 0.0999, YES),
    ("not above", 0, 0.1, 0.05, 0.15, UNDECIDED),
    ("not above", 0, 0.1, 0.11, 0.2, NO),
    ("not below", 0, 0.1, -0.0999, 0.3, YES),
    ("not below", 0, 0.1, -0.3, -0.11, NO),
    ("equal", 1, 0.05, 0.95, 1.05, YES),
    ("equal", 1, 0.05, 0.9, 1.01, UNDECIDED),
    ("equal", 1, 0.05, 1.051, 1.2, NO),
]


@pytest.mark.parametrize("direction, value, bar, low, high, answer", INTERVALS)
def test_an_interval_is_judged_as_a_whole(direction, value, bar, low, high, answer):
    compared = {"measure": "m", "compare": {"arm": ["a", "b"]}, "needs": {"budget": {"same": ["steps"]}}}
    about = claim(direction, bar, value=value, **compared)
    from lab.claims.judge import decided

    assert decided(about, about.parts[0], Interval(0.0, low, high, n=5)) == answer


def test_an_interval_without_a_table_is_judged_too():
    (got,) = judge(claim(), Interval(0.25, 0.2, 0.3, n=5, mde=0.04), figure="f", note="seen")
    assert (got.id, got.exercise, got.low, got.high, got.n, got.unit, got.figure, got.note) == (
        "some-claim", "1.4", 0.2, 0.3, 5, "points", "f", "seen")  # fmt: skip
    assert (got.answer, got.label, got.bar, got.cells) == (YES, "supported", "> 0.1", 1)


@pytest.mark.parametrize("low, high", [(0.2, 0.3), (-0.2, 0.3), (-0.3, -0.2)])
def test_a_question_is_answered_by_its_interval(low, high):
    (got,) = judge(claim(kind="question"), Interval(0.0, low, high, n=5, mde=0.04), note="seen")
    assert (got.answer, got.label, got.low, got.high, got.note) == ("answered", "answered", low, high, "seen")
    assert got.bar == ""


# Exact statements

NUMBERS = [
    ("equal", 0.0, 1e-12, 1e-12, True), ("equal", 0.0, 1e-12, 2e-12, False), ("equal", 0.0, 1.0, math.inf, False),
    ("equal", 1.0, 0.0, 1, True), ("equal", 1.0, 0.0, 1 + 1e-15, True), ("equal", 786432, 0.0, 786433, False),
    ("above", 0.8, 0.0, 0.8, True), ("above", 0.8, 0.0, 0.79, False),
    ("below", 0.8, 0.0, 0.8, True), ("below", 0.8, 0.0, 0.81, False),
]  # fmt: skip


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("direction, value, bar, number, right", NUMBERS)
def test_agreement_of_numbers_is_checked_and_not_proved(direction, value, bar, number, right, kind):
    (got,) = judge(claim(direction, bar, kind, value=value), number)
    assert (got.label, got.effect) == ("checked" if right else "disproved", number)
    assert math.isnan(got.low) and got.n is None


def test_symbols_prove_and_disprove():
    n, d = sympy.symbols("n d")
    zero = sympy.simplify((n + d) ** 2 - n**2 - 2 * n * d - d**2)
    assert judge(claim("equal", 0, "theorem"), zero)[0].label == "proved"
    assert judge(claim("equal", 0, "theorem"), sympy.Rational(1, 3))[0].label == "disproved"


@pytest.mark.parametrize("kind", ["comparison", "trend", "question"])
def test_a_number_is_no_evidence_for_a_trend(kind):
    with pytest.raises(TypeError, match=f"some-claim is a {kind}: it wants an Interval"):
        judge(claim(kind=kind), 0.5)


def test_what_was_not_measured_is_not_judged():
    with pytest.raises(ValueError, match="some-claim"):
        judge(claim(kind="theorem"), math.nan)


def test_without_a_comparison_there_is_no_answer():
    with pytest.raises(ValueError, match="some-claim has no comparison"):
        judge(claim().model_copy(update={"parts": []}), Interval(1.0, 0.9, 1.1, 5))


numbers = st.floats(-10, 10)


@given(direction=st.sampled_from(["above", "below", "equal"]), value=numbers, bar=st.floats(1e-3, 2),
       ends=st.tuples(numbers, numbers).map(sorted))  # fmt: skip
def test_answers_mirror(direction, value, bar, ends):
    low, high = ends
    (got,) = judge(claim(direction, bar, value=value), Interval(0, low, high, 5))
    opposite = {"above": "below", "below": "above", "equal": "equal"}[direction]
    (mirrored,) = judge(claim(opposite, bar, value=-value), Interval(0, -high, -low, 5))
    assert mirrored.answer == got.answer


# From rows

NEEDS = {"headroom": {"measure": "accuracy", "ceiling": 1.0, "floor": 0.0}}
COMPARED = {"measure": "accuracy", "rows": {"lookups": 4}, "compare": {"n_heads": [4, 1]}, "needs": NEEDS}
BY_LOOKUPS = COMPARED | {"rows": {}, "by": {"lookups": [2, 4]}}


def rows(few=0.55, many=0.99, lookups=4, spread=0.01, seeds=5):
    """A run a seed for one and four heads."""
    return pd.DataFrame(
        {"seed": seed, "n_heads": h, "lookups": lookups, "steps": 600,
         "accuracy": mean + spread * (seed - 2) * (-1) ** h}
        for h, mean in ((1, few), (4, many)) for seed in range(seeds)
    )  # fmt: skip


def judged(table, **fields):
    return judge(claim(**COMPARED | fields), table, figure="f")


def test_the_rows_of_the_ledger_are_compared_seed_by_seed():
    (got,) = judged(pd.concat([rows(), rows(many=0.2, lookups=8)]))
    assert (got.label, got.n, got.figure, got.unit) == ("supported", 5, "f", "points")
    assert got.effect == pytest.approx(0.44) and got.low < 0.44 < got.high
    assert got.gates == "✓ headroom: accuracy 0.99 / 0.55"


def test_the_other_way_round_is_said_so():
    (got,) = judged(rows(few=0.99, many=0.55))
    assert (got.label, got.answer) == ("refuted", OTHER_WAY)


def test_rows_at_other_values_are_no_evidence():
    """Eight lookups are no evidence of four."""
    (got,) = judged(rows(lookups=8))
    assert (got.answer, got.label, got.note) == ("not run at these values",) * 2 + ("without lookups 4",)
    assert math.isnan(got.effect)


def test_a_failed_gate_stops_its_own_cell_and_no_other():
    ceiling = rows(few=0.999, many=0.9999, spread=0.0001, lookups=2)
    first, second = judged(pd.concat([ceiling, rows()], ignore_index=True), **BY_LOOKUPS)
    assert first.answer == "out of reach" and first.gates.startswith("✗ headroom")
    assert second.answer == YES and second.gates.startswith("✓ headroom")
    assert (first.label, first.yes, first.no, first.cells) == (UNDECIDED, 1, 0, 2)


def test_a_missing_arm_is_told_in_its_own_cell():
    first, second = judged(rows(), **BY_LOOKUPS)
    assert (first.where, first.answer) == ("lookups 2", "not run at these values")
    assert (second.where, second.answer, second.label) == ("lookups 4", YES, UNDECIDED)


def test_every_condition_is_a_line_and_the_label_counts_them():
    table = pd.concat([rows(few=0.97, lookups=2), rows()], ignore_index=True)
    first, second = judged(table, **BY_LOOKUPS)
    assert (first.answer, second.answer) == (TOO_SMALL, YES)
    assert {(line.label, line.yes, line.no, line.cells) for line in (first, second)} == {("not everywhere", 1, 1, 2)}
    assert judged(table, **BY_LOOKUPS, over="some")[0].label == "supported"
    assert judged(table, **BY_LOOKUPS, over="count")[0].label == "counted"


def test_parts_are_judged_each_by_its_own_rows():
    parts = [{"name": "more", "direction": "above"}, {"name": "less", "direction": "below"}]
    about = claim(**COMPARED, parts=parts)
    assert [line.label for line in judge(about, rows())] == ["supported", "refuted"]
    swapped = {"more": rows(few=0.99, many=0.55), "less": rows()}
    assert [line.label for line in judge(about, swapped)] == ["refuted", "refuted"]


def test_what_is_undecided_says_how_many_runs_would_do():
    (got,) = judged(rows(few=0.85, spread=0.03))
    assert got.answer == UNDECIDED and "runs would decide" in got.note
    more = int(got.note.split(" runs")[0].split()[-1])
    assert more > 5
    (never,) = judged(rows(few=0.889, many=0.99, spread=0.03))
    assert never.note == "not within 100 runs"


def test_one_seed_decides_nothing_and_the_note_says_why():
    (got,) = judged(rows(seeds=1, spread=0))
    assert (got.answer, got.n, got.low, got.high) == (UNDECIDED, 1, -math.inf, math.inf)
    assert got.note == "one seed has no interval"


@pytest.mark.parametrize("kind", ["comparison", "question"])
def test_numbers_that_are_not_finite_decide_nothing(kind):
    """Such as nought by nought."""
    needs = {"budget": {"same": ["lookups"]}}
    (got,) = judged(rows(few=0, many=0, spread=0), kind=kind, needs=needs, **{"as": "change"})
    assert (got.answer, got.note) == (UNDECIDED, "some of the numbers compared are not finite")
    (got,) = judge(claim(kind=kind), computed(lambda: mean([0.1, math.nan])))
    assert (got.answer, got.note) == (UNDECIDED, "some of the numbers compared are not finite")


def outcomes(ones, others, n=5):
    return pd.DataFrame(
        {"seed": seed, "arm": arm, "learnt": seed < count} for arm, count in (("a", ones), ("b", others))
        for seed in range(n)
    )  # fmt: skip


@pytest.mark.parametrize("ones, others, n, answer", [(5, 0, 5, YES), (5, 2, 5, UNDECIDED), (8, 2, 8, YES)])
def test_outcomes_of_few_runs_are_told_as_counts_and_tested_exactly(ones, others, n, answer):
    compared = {"measure": "learnt", "compare": {"arm": ["a", "b"]}, "needs": {"budget": {"same": ["seed"]}}}
    (got,) = judge(claim(**compared), outcomes(ones, others, n))
    assert got.answer == answer and f"{ones} of {n} / {others} of {n}" in got.note


def test_a_table_and_a_measure_belong_together():
    with pytest.raises(TypeError, match="wants a table"):
        judge(claim(**COMPARED), Interval(1, 0.9, 1.1, 5))
    with pytest.raises(TypeError, match="wants a number or an Interval"):
        judge(claim(), rows())


def test_a_question_of_rows_is_answered_without_gates():
    (got,) = judge(claim(kind="question", **COMPARED | {"needs": {}}), rows(few=0.99, many=0.5))
    assert (got.label, got.gates) == ("answered", "") and got.effect < 0


def test_what_has_no_gates_yet_says_so():
    assert judge(claim(), Interval(1, 0.9, 1.1, 5))[0].gates == "not yet gated"
    assert judge(claim(kind="theorem"), 0.5)[0].gates == ""


@pytest.mark.parametrize("needs", [{}, {"machine": True}])
@pytest.mark.parametrize("kind", ["comparison", "trend"])
def test_a_comparison_of_rows_without_gates_is_refused(kind, needs):
    with pytest.raises(ValueError, match="a comparison of rows needs gates"):
        claim(kind=kind, **COMPARED | {"needs": needs})


# Labels

LABELS = [
    ("all", (YES, YES), "supported"),
    ("all", (YES, UNDECIDED), UNDECIDED),
    ("all", (NO, TOO_SMALL), "refuted"),
    ("all", (YES, OTHER_WAY), "not everywhere"),
    ("all", (UNDECIDED, NO), "not everywhere"),
    ("all", (UNDECIDED, "out of reach"), UNDECIDED),
    ("all", ("out of reach", "out of reach"), "out of reach"),
    ("some", (YES, NO), "supported"),
    ("some", (UNDECIDED, NO), UNDECIDED),
    ("some", (NO, OTHER_WAY), "refuted"),
    ("count", (YES, NO), "counted"),
    ("all", ("not run at these values",), "not run at these values"),
]


@pytest.mark.parametrize("over, answers, label", LABELS)
def test_the_quantifier_and_the_answers_give_the_label(over, answers, label):
    assert label_of(over, list(answers)) == label


def simulated(effects, n, generator):
    """The lines of cells with these true effects, in units of the spread of a run."""
    table = pd.DataFrame(
        {"seed": seed, "cell": cell, "arm": arm, "score": (arm == "a") * effect + generator.normal() / 2**0.5}
        for cell, effect in enumerate(effects) for arm in ("a", "b") for seed in range(n)
    )  # fmt: skip
    return table


SIMULATED = {
    "measure": "score", "compare": {"arm": ["a", "b"]}, "bar": 1.0, "needs": {"budget": {"same": ["cell"]}},
}  # fmt: skip


@pytest.mark.parametrize("n", [5, 8])
def test_the_interval_of_a_line_covers_the_truth(n):
    """Coverage of 95 % intervals in 150 drawn experiments; below .89 by chance once in 1000 times."""
    generator = np.random.default_rng(n)
    about = claim(**SIMULATED)
    lines = [judge(about, simulated([1.3], n, generator))[0] for _ in range(150)]
    assert np.mean([line.low <= 1.3 <= line.high for line in lines]) > 0.89


@pytest.mark.parametrize("n", [5, 8])
@pytest.mark.parametrize("k", [1, 4, 8])
def test_labels_are_rarely_false(n, k):
    """False labels where every cell lies exactly at the bar: at most 5 %, and the noise of 80 draws.

    `all` supported needs every cell, so it errs less with more cells. `some` supported and `not
    everywhere` rest on one cell, which has to stand at the level 1 - .05 / K.
    """
    generator = np.random.default_rng(10 * n + k)
    about = {"by": {"cell": list(range(k))}, **SIMULATED}
    tables = [simulated([1.0] * k, n, generator) for _ in range(80)]
    every = [judge(claim(**about), table)[0].label for table in tables]
    some = [judge(claim(**about, over="some"), table)[0].label for table in tables]
    assert every.count("supported") <= 8
    assert some.count("supported") <= 8
    assert every.count("not everywhere") <= 8
    assert every.count("refuted") <= 8
