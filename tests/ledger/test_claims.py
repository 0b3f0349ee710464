"""The ledger is complete, and committed verdicts follow from their numbers and gates."""

import json
import math
import subprocess

import pandas as pd
import pytest
import yaml
from pydantic import ValidationError

from lab.engine import parameters, runs
from lab.engine.parameters import notebooks
from lab.engine.runs import project_root
from lab.ledger import summary
from lab.ledger.claims import EXACT, NOT_RUN, OUT_OF_REACH, UNGATED, VERDICTS, Claim, Prediction, Verdict, find, ledger
from lab.ledger.judge import decided, judge
from lab.measure.statistics import Interval

LEDGER = ledger()
BUILT = {parameters.exercise_of(notebook) for notebook in notebooks()}


def claim(direction="above", threshold=0.1, tolerance=0.0, kind="comparison"):
    prediction = Prediction(compares="a minus b", direction=direction, threshold=threshold, tolerance=tolerance)
    return Claim(id="some-claim", exercise="1.4", kind=kind, priority="A", sources=["chapter"], claim="a beats b",
                 claim_zh="甲胜乙", metric="m", unit="points", prediction=prediction)  # fmt: skip


# The ledger


def test_the_ledger_holds_every_claim_once():
    assert len(LEDGER) == 315
    text = (project_root() / "experiments" / "claims.yaml").read_text("utf-8")
    assert text.count("\n- id: ") == 315 and all(LEDGER[name].id == name for name in LEDGER)
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


def test_a_claim_is_found_by_its_earlier_ids_and_no_two_claim_one(tmp_path):
    renamed, other = claim().model_dump() | {"was": ["old-id"]}, claim().model_dump() | {"id": "other"}
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump([renamed, other]), "utf-8")
    assert [find(name, path).id for name in ("some-claim", "old-id", "other")] == ["some-claim", "some-claim", "other"]
    with pytest.raises(ValueError, match="no claim 'nobody'"):
        find("nobody", path)
    path.write_text(yaml.safe_dump([renamed, other | {"was": ["old-id"]}]), "utf-8")
    with pytest.raises(ValueError, match="share an id: old-id"):
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


# Results


@pytest.mark.parametrize("verdict, read", [("refuted", "answered"), ("open", "open"), ("not judged", "not judged")])
def test_questions_of_earlier_runs_read_as_answered(verdict, read, tmp_path):
    asked = next(c for c in LEDGER.values() if c.kind == "question" and c.prediction)
    rows = [Verdict(id=name, exercise="1.15", verdict=verdict) for name in (asked.id, "heads-reshape")]
    runs.write_table(tmp_path / "verdicts.csv", pd.DataFrame([row.model_dump() for row in rows]))
    assert list(summary.read_verdicts(tmp_path).verdict) == [read, verdict]


def test_collecting_keeps_every_digit_and_lists_the_rest_as_pending(tmp_path):
    folder = tmp_path / "quick" / "04_head_count"
    chosen = [name for name, c in LEDGER.items() if c.exercise == "1.4"][:4]
    verdicts = [
        Verdict(id=chosen[0], exercise="1.4", verdict="supported", effect=0.1 + 0.2, low=1 / 3, high=math.inf, n=5),
        Verdict(id=chosen[1], exercise="1.4", verdict="proved", effect=2.6645352591003757e-15, note="NA, none, nan"),
        Verdict(id=chosen[2], exercise="1.4", verdict="inconclusive", effect=-7.0, low=0.7071067811865476e-7, high=1e22,
                n=3, unit="null", note='a "quoted", text\nin lines', gates="not yet gated"),
    ]  # fmt: skip
    runs.write_table(folder / "verdicts.csv", pd.DataFrame([v.model_dump() for v in verdicts]))
    assert set(summary.collect(tmp_path / "quick").verdict) <= {"pending", "open"}, (
        "without run.json a run is unfinished"
    )
    runs.write_run(folder, {})
    table = summary.collect(tmp_path / "quick")
    assert list(table.id) == list(LEDGER) and list(table.columns) == [*Verdict.model_fields, "confirmed"]
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
    assert "no machine yet" in (tmp_path / "README.md").read_text("utf-8")


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
    table = summary.read_verdicts(path.parent)
    assert set(table.id) == {name for name, c in LEDGER.items() if c.exercise == run["exercise"]}
    for row in table.itertuples():
        assert row.verdict in VERDICTS
        if LEDGER[row.id].open:
            assert (row.verdict, row.note) == ("open", LEDGER[row.id].open)
            continue
        if run["profile"] == "smoke":
            assert row.verdict == "not judged"
            continue
        about = LEDGER[row.id]
        if row.verdict == NOT_RUN:
            assert row.note.startswith("without ") and row.threshold == about.compared, row.id
            continue
        if about.arms:
            assert row.gates and row.threshold == about.compared, row.id
            said = decided(about, Interval(row.effect, row.low, row.high, int(row.n)))
            assert row.verdict == (OUT_OF_REACH if "✗" in row.gates else said), row.id
        else:
            exact = pd.isna(row.low)
            judged = judge(about, row.effect if exact else Interval(row.effect, row.low, row.high, int(row.n)))
            assert (row.verdict, row.threshold) == (judged.verdict, judged.threshold), row.id
            assert row.gates == ("" if about.gated else UNGATED), row.id
        if row.figure:
            assert (path.parent / "figures" / f"{row.figure}.png").exists(), row.id
        if row.table:
            assert (path.parent / "tables" / f"{row.table}.csv").exists(), row.id


def test_an_id_is_for_ever():
    judged = {name for path in committed("results/*/*/verdicts.csv") for name in pd.read_csv(path).id}
    assert judged and [name for name in judged if find(name) is None] == []


# Values


def test_values_are_those_of_quick_and_full():
    for about in LEDGER.values():
        if about.values:
            notebook = parameters.notebook_of(about.exercise)
            for profile in ("quick", "full"):
                here = parameters.of_profile(notebook, profile)
                assert set(about.values) <= set(here) and about.absent(here) == "", (about.id, profile)


def test_absent_values_are_named_by_parameter_and_value():
    two = claim().model_copy(update={"values": {"heads": [8, 32], "rates": [0.1]}})
    assert two.absent({"heads": [8, 32, 64], "rates": [0.1]}) == ""
    assert two.absent({"heads": [1], "rates": [0.1]}) == "heads 8, heads 32"
    assert two.absent({"heads": [8, 32], "rates": []}) == "rates 0.1"
    assert two.absent({"heads": [8, 32]}) == "", "a notebook without the parameter has not left it out"
