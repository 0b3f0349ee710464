"""The ledger is complete; a verdict follows from interval and prediction alone, a committed one as well."""

import json
import math
import subprocess

import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lab.engine import parameters, runs
from lab.engine.parameters import notebooks
from lab.engine.runs import project_root
from lab.ledger import summary
from lab.ledger.claims import EXACT, VERDICTS, Claim, Prediction, Verdict, judge, ledger
from lab.measure.statistics import Interval

LEDGER = ledger()
BUILT = {parameters.exercise_of(notebook) for notebook in notebooks()}


def claim(direction="above", threshold=0.1, tolerance=0.0, kind="comparison"):
    prediction = Prediction(compares="a minus b", direction=direction, threshold=threshold, tolerance=tolerance)
    return Claim(id="some-claim", exercise="1.4", kind=kind, priority="A", sources=["chapter"], claim="a beats b",
                 claim_zh="甲胜乙", metric="m", unit="points", prediction=prediction)  # fmt: skip


# The ledger


def test_the_ledger_holds_every_claim_once():
    assert len(LEDGER) == 314
    text = (project_root() / "experiments" / "claims.yaml").read_text("utf-8")
    assert text.count("\n- id: ") == 314 and all(LEDGER[name].id == name for name in LEDGER)
    assert {c.exercise for c in LEDGER.values()} - {"beyond"} == BUILT


@pytest.mark.parametrize("name", [name for name, c in LEDGER.items() if c.exercise in BUILT])
def test_what_is_judged_was_predicted(name):
    entry = LEDGER[name]
    assert entry.open or entry.prediction, "its exercise has a notebook: say what is expected, as data"
    assert entry.open or entry.prediction.compares


@pytest.mark.parametrize("name", LEDGER)
def test_every_claim_says_what_is_expected_and_stands_in_both_languages(name):
    entry = LEDGER[name]
    assert entry.prediction or entry.expected or entry.open
    assert entry.claim and entry.claim_zh and entry.metric
    assert not any("\u4e00" <= character <= "\u9fff" for character in entry.claim)


def test_a_quotient_has_one_name():
    """The book measures how far an effect is from none by it: from one for a ratio, from zero for all else."""
    assert not {claim.unit for claim in LEDGER.values()} & {"factor", "quotient", "times", "x", "×"}


def test_an_equality_of_measured_numbers_has_room():
    for entry in LEDGER.values():
        if entry.prediction and entry.prediction.direction == "equal" and entry.kind not in EXACT:
            assert entry.prediction.tolerance > 0, f"{entry.id} can never be supported"


BROKEN = {
    "unknown field": {"expcted": "more"},
    "bad id": {"id": "Two Words"},
    "bad exercise": {"exercise": "1.04"},
    "bad kind": {"kind": "guess"},
    "no source": {"sources": []},
    "tolerance without equal": {"prediction": {"compares": "a", "direction": "above", "tolerance": 0.1}},
    "negative tolerance": {"prediction": {"compares": "a", "direction": "equal", "tolerance": -0.1}},
    "open though predicted": {"open": "a larger machine"},
    "unknown direction": {"prediction": {"compares": "a", "direction": "more"}},
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_a_broken_ledger_is_refused_by_field(change, tmp_path):
    entry = claim().model_dump()
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump([entry]), "utf-8")
    assert list(ledger(path)) == ["some-claim"]
    path.write_text(yaml.safe_dump([entry | change]), "utf-8")
    (field,) = change
    with pytest.raises(ValidationError, match=field):
        ledger(path)


def test_two_claims_with_one_id_are_refused(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump([claim().model_dump()] * 2), "utf-8")
    with pytest.raises(ValueError, match="share an id"):
        ledger(path)


@pytest.mark.parametrize("change", [{"priority": "A"}, {"kind": "theorem"}], ids=str)
def test_only_what_is_neither_asked_nor_exact_may_stay_open(change, tmp_path):
    entry = claim().model_dump() | {"prediction": None, "priority": "C", "open": "a human judge of samples"}
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump([entry]), "utf-8")
    unjudged = ledger(path)["some-claim"].unjudged
    assert (unjudged.verdict, unjudged.note) == ("open", "a human judge of samples")
    path.write_text(yaml.safe_dump([entry | change]), "utf-8")
    with pytest.raises(ValidationError, match="open"):
        ledger(path)


# Verdicts

INTERVALS = [  # prediction; low, high; verdict
    ("above", 0.1, 0, 0.2, 0.3, "supported"),
    ("above", 0.1, 0, 0.1, 0.3, "supported"),  # the boundary agrees
    ("above", 0.1, 0, 0.0999, 0.3, "inconclusive"),
    ("above", 0.1, 0, -0.2, 0.1, "inconclusive"),
    ("above", 0.1, 0, -0.2, 0.0999, "refuted"),  # some effect may be there, but none that matters
    ("above", 0.1, 0, -0.3, -0.2, "refuted"),
    ("above", 0.1, 0, -math.inf, math.inf, "inconclusive"),
    ("below", -0.1, 0, -0.3, -0.2, "supported"),
    ("below", -0.1, 0, -0.3, -0.1, "supported"),
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


@given(direction=st.sampled_from(["above", "below", "equal"]), threshold=numbers, tolerance=st.floats(0, 2),
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


# Results


def test_collecting_keeps_every_digit_and_lists_the_rest_as_pending(tmp_path):
    folder = tmp_path / "quick" / "04_head_count"
    chosen = [name for name, c in LEDGER.items() if c.exercise == "1.4"][:4]
    verdicts = [
        Verdict(id=chosen[0], exercise="1.4", verdict="supported", effect=0.1 + 0.2, low=1 / 3, high=math.inf, n=5),
        Verdict(id=chosen[1], exercise="1.4", verdict="proved", effect=2.6645352591003757e-15, note="NA, none, nan"),
        Verdict(id=chosen[2], exercise="1.4", verdict="inconclusive", effect=-7.0, low=0.7071067811865476e-7, high=1e22,
                n=3, unit="null", note='a "quoted", text\nin lines'),
    ]  # fmt: skip
    runs.write_table(folder / "verdicts.csv", pd.DataFrame([v.model_dump() for v in verdicts]))
    assert set(summary.collect(tmp_path / "quick").verdict) <= {"pending", "open"}, (
        "without run.json a run is unfinished"
    )
    runs.write_run(folder, {})
    table = summary.collect(tmp_path / "quick")
    assert list(table.id) == list(LEDGER) and list(table.columns) == list(Verdict.model_fields)
    rows = table.set_index("id")
    for verdict in verdicts:
        for field, value in verdict.model_dump().items():
            got = rows.loc[verdict.id].get(field, verdict.id)
            missing = value is None or value != value
            assert pd.isna(got) if missing else got == value, field
    assert rows.verdict[chosen[3]] == "pending" and rows.exercise[chosen[3]] == "1.4"
    runs.write_table(tmp_path / "claims.csv", table)
    assert f"{chosen[0]},1.4,supported,{0.1 + 0.2!r},{1 / 3!r},inf,,5," in (tmp_path / "claims.csv").read_text()


def test_a_profile_without_any_finished_run_is_summarised_all_the_same(tmp_path):
    summary.summarise(tmp_path)
    assert set(pd.read_csv(tmp_path / "claims.csv").verdict) <= {"pending", "open"}
    assert "| exercise |" in (tmp_path / "README.md").read_text("utf-8")


def committed(pattern):
    files = subprocess.run(["git", "-C", project_root(), "ls-files", pattern], capture_output=True, text=True).stdout
    return [project_root() / name for name in files.splitlines() if (project_root() / name).exists()]


@pytest.mark.parametrize(
    "path", committed("results/*/claims.csv") or [None], ids=lambda p: p and p.parent.name or "none"
)
def test_committed_claims_are_those_of_the_committed_runs(path, tmp_path):
    if path is None:
        pytest.skip("no results are committed")
    runs.write_table(tmp_path / "claims.csv", summary.collect(path.parent))
    assert (tmp_path / "claims.csv").read_text("utf-8") == path.read_text("utf-8"), (
        "run `lab run` and commit what it wrote"
    )


@pytest.mark.parametrize(
    "path", committed("results/*/*/verdicts.csv") or [None], ids=lambda p: p and p.parent.name or "none"
)
def test_committed_verdicts_follow_from_their_numbers(path):
    if path is None:
        pytest.skip("no results are committed")
    run = json.loads((path.parent / "run.json").read_text("utf-8"))
    assert run["status"] == "done" and run["profile"] == path.parents[1].name
    assert run["files"] == runs.file_hashes(path.parent), "files are not what the run left"
    table = pd.read_csv(path, dtype={"exercise": str}, keep_default_na=False, float_precision="round_trip",
                        na_values={c: [""] for c in ("effect", "low", "high", "n")})  # fmt: skip
    assert set(table.id) == {name for name, c in LEDGER.items() if c.exercise == run["exercise"]}
    for row in table.itertuples():
        assert row.verdict in VERDICTS
        if LEDGER[row.id].open:
            assert (row.verdict, row.note) == ("open", LEDGER[row.id].open)
            continue
        if run["profile"] == "smoke":
            assert row.verdict == "not judged"
            continue
        exact = pd.isna(row.low)
        measured = row.effect if exact else Interval(row.effect, row.low, row.high, int(row.n))
        judged = judge(LEDGER[row.id], measured)
        assert (row.verdict, row.threshold) == (judged.verdict, judged.threshold), row.id
        if row.figure:
            assert (path.parent / "figures" / f"{row.figure}.png").exists(), row.id
        if row.table:
            assert (path.parent / "tables" / f"{row.table}.csv").exists(), row.id


# Arms


def test_arms_are_values_that_quick_and_full_have():
    for about in LEDGER.values():
        if about.arms:
            notebook = parameters.notebook_of(about.exercise)
            for profile in ("quick", "full"):
                values = parameters.of_profile(notebook, profile)
                assert set(about.arms) <= set(values) and about.absent(values) == "", (about.id, profile)


def test_absent_arms_are_named_by_parameter_and_value():
    two = claim().model_copy(update={"arms": {"heads": [8, 32], "rates": [0.1]}})
    assert two.absent({"heads": [8, 32, 64], "rates": [0.1]}) == ""
    assert two.absent({"heads": [1], "rates": [0.1]}) == "heads 8, heads 32"
    assert two.absent({"heads": [8, 32], "rates": []}) == "rates 0.1"
    assert two.absent({"heads": [8, 32]}) == "", "a notebook without the parameter has not left it out"
