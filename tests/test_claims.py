"""Claims: intervals against scipy, answers, file validation and formats."""

import math

import numpy as np
import pandas as pd
import pytest
import sympy
from scipy import stats

from lab import claims
from lab.claims import Claim, judge
from lab.measure import statistics

LOSS = {"question": "lower?", "measure": "loss", "compare": {"arm": ["a", "b"]}, "direction": "below", "bar": 0.1}


def claim(kind="comparison", **fields):
    return Claim(**{"id": "a-claim", "kind": kind} | LOSS | fields)


def table(a=(1.0, 1.1, 1.2, 0.9), b=(2.0, 2.2, 2.1, 1.9), **columns):
    rows = [{"arm": arm, "seed": seed, "loss": x} for arm, xs in (("a", a), ("b", b)) for seed, x in enumerate(xs)]
    return pd.DataFrame(rows).assign(**columns)


def line(entry, measured):
    (result,) = judge(entry, measured).itertuples()
    return result


# Intervals


def student(values):
    low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    return np.mean(values), low, high


A, B = np.array([1.0, 1.1, 1.2, 0.9]), np.array([2.0, 2.2, 2.1, 1.9])
INTERVALS = {
    "difference": ({}, student(A - B)),
    "change": ({"as": "change"}, np.expm1(student(np.log(A) - np.log(B)))),
    "mean": ({"as": "mean", "compare": {}, "rows": {"arm": "a"}}, student(A)),
    "ratio": ({"as": "ratio", "compare": {}, "rows": {"arm": "b"}}, np.exp(student(np.log(B)))),
}


@pytest.mark.parametrize("how", INTERVALS)
def test_student_intervals(how):
    fields, expected = INTERVALS[how]
    result = line(claim(**fields), table(A, B))
    assert [result.effect, result.low, result.high] == pytest.approx(list(expected), rel=1e-12) and result.n == 4


def test_slope_is_fitted_for_each_seed_in_units_per_doubling():
    runs = {1: (1.0, 1.1, 1.3), 2: (2.0, 2.2, 2.1), 4: (3.5, 3.1, 3.2)}
    rows = [{"width": w, "seed": seed, "loss": x} for w, xs in runs.items() for seed, x in enumerate(xs)]
    result = line(claim(**{"as": "slope", "compare": {"width": [1, 2, 4]}, "direction": "above"}), pd.DataFrame(rows))
    slopes = [np.polyfit([0, 1, 2], [runs[w][seed] for w in runs], 1)[0] for seed in range(3)]
    assert [result.effect, result.low, result.high] == pytest.approx(list(student(slopes)), rel=1e-9)
    assert result.answer == "yes"


def test_shares_use_wilson_intervals():
    result = line(claim(**{"as": "mean", "compare": {}, "rows": {"arm": "a"}, "direction": "above", "unit": "share"}),
                 table(a=(1, 1, 1, 0, 1), b=(0,) * 5))  # fmt: skip
    wilson = stats.binomtest(4, 5).proportion_ci(0.95, "wilson")
    assert [result.effect, result.low, result.high] == pytest.approx([0.8, wilson.low, wilson.high], rel=1e-9)


# Answers


@pytest.mark.parametrize(
    ("direction", "bar", "value", "answer"),
    [
        ("below", 0.1, 0, "yes"),
        ("above", 0.1, 0, "no"),
        ("below", 3, 0, "no"),
        ("below", 1.0, 0, "unclear"),
        ("within", 0.2, -1, "yes"),
        ("within", 0.2, 1, "no"),
        ("not above", 0.1, 0, "yes"),
        ("not below", 0.1, 0, "no"),
    ],
)
def test_answer_by_direction_and_bar(direction, bar, value, answer):
    assert line(claim(direction=direction, bar=bar, value=value), table()).answer == answer


def test_interval_ending_at_the_threshold_is_unclear_except_for_within():
    part = claim(measure="", compare={}, direction="above", bar=1.0).parts[0]
    assert claims.verdict(part, statistics.Interval(2.0, 1.0, 3.0, 5))["answer"] == "unclear"
    within = claim(measure="", compare={}, direction="within", bar=1.0).parts[0]
    assert claims.verdict(within, statistics.Interval(0.0, -1.0, 1.0, 5))["answer"] == "yes"


def test_unclear_answer_suggests_a_number_of_runs():
    wide = line(claim(bar=0.1), table(a=(1.0, 2.2, 1.1, 2.0), b=(2.0, 2.1, 2.1, 1.9)))
    assert wide.answer == "unclear" and wide.why.endswith("runs would suffice")
    near = line(claim(bar=1.05), table())
    assert (near.answer, near.why) == ("unclear", "the effect is about as large as the threshold")
    alone = line(claim(), table(a=(1.0,), b=(2.0,)))
    assert (alone.answer, alone.why) == ("unclear", "a single run has no interval")


@pytest.mark.parametrize("direction", ["above", "below", "within"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_numbers_are_unclear(direction, bad):
    result = line(claim(direction=direction), table(a=(1.0, bad, 1.0, 1.0)))
    assert (result.answer, result.why) == ("unclear", "some numbers are not finite") and math.isnan(result.effect)
    part = claim(measure="", compare={}, direction=direction).parts[0]
    fit = statistics.Interval(0.0, math.nan, math.nan, 3)  # as of a perfect fit
    assert claims.verdict(part, fit)["answer"] == "unclear"


def test_identical_runs_have_a_zero_width_interval():
    result = line(claim(), table(a=(1.0,) * 4, b=(2.0,) * 4))
    assert (result.answer, result.low, result.high) == ("yes", -1.0, -1.0)


def test_every_condition_has_its_own_line():
    both = pd.concat([table(family="x"), table(a=(3.0, 3.1, 3.2, 2.9), family="y")])
    result = judge(claim(by={"family": ["x", "y", "z"]}, main={"family": "y"}), both)
    assert result["where"].tolist() == ["family x", "family y", "family z"]
    assert result.answer.tolist() == ["yes", "no", "not run at these values"]
    assert result.main.tolist() == [False, True, False] and result.why[2] == "without arm a"
    three = pd.concat([table(), table()[:4].assign(arm="c")])
    pairs = judge(claim(compare={"arm": [["a", "c"], "b"]}), three)
    assert pairs["where"].tolist() == ["arm a / b", "arm c / b"]


def test_too_few_learned_runs_are_unclear():
    entry = claim(learned=["loss < mark"])
    eight = table(a=[1.0 + 0.01 * i for i in range(8)], b=[2.0 + 0.02 * i for i in range(8)])
    result = line(entry, eight.assign(mark=[9.0] * 15 + [0.0]))
    assert result.learned == "arm a 8/8, arm b 7/8" and result.answer == "yes"
    result = line(entry, eight.assign(mark=[9.0] * 14 + [0.0] * 2))
    assert (result.answer, result.why) == ("unclear", "only 6 of 8 runs of arm b learned") and result.effect < -0.9


def test_reference_must_have_learned():
    more = pd.concat([table(), table(a=(5.0,) * 4)[:4].assign(arm="c")])
    entry = claim(learned=["loss < 4"], reference={"arm": "c"})
    result = line(entry, more)
    assert result.learned == "arm a 4/4, arm b 4/4, arm c 0/4" and result.answer == "unclear"
    assert line(claim(needs=["loss > 4"], reference={"arm": "c"}), more).answer == "yes"
    result = line(claim(needs=["loss < 4"], reference={"arm": "c"}), more)
    assert (result.answer, result.why) == ("unclear", "`loss < 4` is false")


def test_answer_is_unclear_if_a_column_listed_under_same_differs_between_arms():
    result = line(claim(same=["steps"]), table(steps=[1] * 4 + [2] * 4))
    assert (result.answer, result.why) == ("unclear", "steps is not equal in all arms")


def test_question_has_an_effect_but_no_verdict():
    result = line(claim(kind="question"), table())
    assert result.answer == "answered" and result.bar == "" and result.effect == pytest.approx(-1.0)


def test_exact_statements():
    exact = {"measure": "", "compare": {}, "direction": "within", "value": 2.0, "bar": 0.0}
    assert line(claim("exact", **exact), 2).answer == "checked"
    assert line(claim("exact", **exact), sympy.Integer(2)).answer == "proved"
    assert line(claim("exact", **exact), 2.1).answer == "disproved"
    with pytest.raises(ValueError, match="the number is NaN"):
        judge(claim("exact", **exact), math.nan)
    with pytest.raises(TypeError, match="needs an Interval, not the number"):
        judge(claim(**exact), 2)


def test_control_question_uses_the_table_of_its_question():
    parts = [{"name": "it", "question": "it?"}, {"name": "control of it", "question": "control: the same?"}]
    result = judge(claim(parts=parts), {"it": table()})
    assert result.part.tolist() == ["it", "control of it"] and set(result.answer) == {"yes"}


@pytest.mark.parametrize(
    ("measured", "error", "words"),
    [
        (table().drop(columns="loss"), ValueError, "no column loss; columns: arm, seed"),
        (pd.concat([table(), table()]), ValueError, "seed 0 has several rows of loss"),
        (3.0, TypeError, "needs a table, not float"),
    ],
)
def test_invalid_tables(measured, error, words):
    with pytest.raises(error, match=words):
        judge(claim(), measured)


# Files


WRONG = {
    "mesure: loss": "mesure Extra inputs are not permitted",
    "direction: up": "direction",
    "compare: {arm: [a]}": "expected one column with two arms",
    "bar: -1": "bar",
    "id: A": "id",
    "says: [{place: here}]": "en",
    "kind: hunch": "kind",
    "parts: [{name: x}, {name: x}]": "needs a unique `name`",
    "open: soon": "or `open`",
}


@pytest.mark.parametrize("text", WRONG)
def test_invalid_field_is_named_in_the_error(tmp_path, text):
    name = text.partition(":")[0]
    fields = {"id": "one", "question": "'lower?'", "measure": "loss", "compare": "{arm: [a, b]}"}
    fields |= {"direction": "below", "bar": "0.1"}
    lines = [f"{field}: {value}" for field, value in fields.items() if field != name]
    path = tmp_path / "mine.yaml"
    path.write_text("- " + "\n  ".join([*lines, text]))
    with pytest.raises(ValueError, match=r"mine.yaml: claim \w+: ") as error:
        claims.read(path)
    assert WRONG[text] in str(error.value)


def test_invalid_files_and_duplicate_ids(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("id: one\n")
    with pytest.raises(ValueError, match="expected a list"):
        claims.read(path)
    path.write_text("- {id: one, open: later}\n- {id: one, open: later}\n")
    with pytest.raises(ValueError, match="duplicate id one"):
        claims.read(path)
    path.write_text("- {id: one")
    with pytest.raises(ValueError, match="mine.yaml"):
        claims.read(path)


def test_measure_requires_a_bar(tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_PROJECT", str(tmp_path))
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "bars.yaml").write_text("loss: {difference: {bar: 0.25}}\n")
    entry = Claim(**{"id": "one"} | {name: value for name, value in LOSS.items() if name != "bar"})
    assert entry.parts[0].band == (-math.inf, -0.25)
    with pytest.raises(ValueError, match="bars.yaml has no bar for 'loss' as change"):
        Claim(**{"id": "one", "as": "change"} | {name: value for name, value in LOSS.items() if name != "bar"})


def test_answers_round_trip(tmp_path):
    words = ["None", "NA", "01"]
    both = pd.concat([table(family=word) for word in words])
    lines = judge(claim(by={"family": words}), both, figure="curve")
    claims.write_answers(tmp_path, "1.10", lines)
    again = claims.read_answers(tmp_path)
    assert again["where"].tolist() == [f"family {word}" for word in words] and set(again.exercise) == {"1.10"}
    assert again.effect.tolist() == lines.effect.tolist() and again.n.tolist() == [4, 4, 4]
    assert claims.read_answers(tmp_path / "none").empty


# Formats


def test_number_formats():
    result = line(claim(**{"as": "change"}), table())
    assert claims.format_effect(result).startswith("-0.4")
    percent = line(claim(**{"as": "change", "unit": "relative change"}), table())
    assert claims.format_effect(percent).startswith("-49 % [-55.1 %")
    points = line(claim(**{"as": "difference", "unit": "difference of shares"}), table())
    assert claims.format_effect(points) == "-100 points [-113, -87]"
    assert claims.format_numbers("relative change", 0.111497, -1e-9) == ["+11.1 %", "+0 %"]
    assert claims.format_bar(claim(unit="share", bar=0.2, direction="above").parts[0]) == "> 20 %"
    assert claims.format_bar(claim(value=1.0, direction="within").parts[0]) == "1 ± 0.1"


def test_card_quotes_the_book_and_escapes_markdown():
    says = [{"place": "chapter §1", "en": "A is lower.", "zh": "甲更低。"}]
    entry = claim(says=says, by={"family": ["a|b"]}, because="a tenth is seen")
    card = claims.card(entry, judge(entry, table(family="a|b")))
    assert card.startswith("**A is lower.**") and "甲更低。" in card and "§1" in card
    assert "family a\\|b" in card and "**yes**" in card and "a tenth is seen" in card


def test_scorecard_text_starts_with_main_lines():
    parts = [{"name": "one", "question": "one?"}, {"name": "two", "question": "two?", "main": {}}]
    lines = judge(claim(parts=parts), {"one": table(), "two": table()})
    text = claims.scorecard_text(lines)
    assert text.startswith("  two?\n      -") and text.endswith("; yes") and "  one?" in text


def test_lesson_card_has_a_row_per_condition_with_the_main_one_first():
    entry = claim(by={"size": [1, 2]}, main={"size": 2})
    both = pd.concat([table(size=1), table(size=2)])
    head, _, *rows = claims.lesson_card(judge(entry, both)).splitlines()
    assert head == "| question | where | measured [95 % interval] | n | answer |"
    question, where = ([row.split("|")[i].strip() for row in rows] for i in (1, 2))
    assert where == ["size 2", "size 1"] and question == [entry.parts[0].question, ""]


def test_lesson_card_says_in_words_what_a_line_means():
    lines = judge(claim(by={"size": [1]}), table(size=1))
    head, _, row = claims.lesson_card(lines, lambda line: f"so {line.answer}").splitlines()
    assert head == "| question | where | in words | measured [95 % interval] | n | answer |"
    assert f"| so {lines.answer[0]} |" in row and row.endswith(f"| **{lines.answer[0]}** |")


def test_effect_above_zero_but_below_the_bar_is_no_with_a_reason():
    part = claim(measure="", compare={}, direction="above", bar=0.01, unit="relative change").parts[0]
    answer = claims.verdict(part, statistics.Interval(0.005, 0.001, 0.009, 8))
    assert answer == {"answer": "no", "why": "above 0, by less than 1 %"}
    assert claims.verdict(part, statistics.Interval(0.002, -0.005, 0.009, 8))["why"] == ""


@pytest.mark.parametrize(
    ("value", "words", "agrees"),
    [
        (0.0349, "3.5 %", True),
        (0.034, "3.5 %", False),
        (-0.0249, "-0.02", True),
        (0.12345, "0.12", True),
        (1234.4, "1,234", True),
        (-0.035, "−3.5 %", True),
        (7.0, "7", True),
        (7.6, "7", False),
    ],
)
def test_value_rounds_to_words_at_their_number_of_decimals(value, words, agrees):
    assert claims.rounds_to(value, words) == agrees
