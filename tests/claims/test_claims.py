"""A ledger is read by file, claim and field; committed verdicts follow from the ledger that they name."""

import json
import math
import subprocess
from pathlib import Path

import made
import pandas as pd
import pytest
from made import ABOVE, EXACTLY, LEDGER, entry, write_ledger

from lab.claims import claims, report
from lab.claims.claims import EXACT, NOT_RUN, OUT_OF_REACH, UNGATED, VERDICTS, Claim, Verdict, find, ledger
from lab.claims.judge import decided, judge
from lab.measure.statistics import Interval
from lab.trials import parameters, runs
from lab.trials.runs import project_root


@pytest.fixture
def project(tmp_path, monkeypatch):
    return made.project(tmp_path, monkeypatch)


# The ledger


def test_the_ledger_of_the_lab_can_be_read():
    """What its claims have to be stands in `Claim`: reading them checks it."""
    assert {claim.exercise for claim in ledger().values()} >= {parameters.exercise_of(parameters.notebooks()[0])}


def test_claims_stand_in_the_order_of_the_files_and_in_each_as_written(project):
    assert list(ledger()) == [each["id"] for stem in ("01_first", "02_second", "beyond") for each in LEDGER[stem]]


def test_a_file_is_read_anew_once_it_has_changed(project):
    first, again = ledger(), ledger()
    assert all(again[name] is claim for name, claim in first.items())
    write_ledger(project, {"02_second": [entry("one-is-new", exercise="1.2")]})
    assert [name for name in ledger() if name.startswith("one-")] == ["one-is-new"]
    assert ledger()["four-win"] is first["four-win"], "other files are as they were"


def test_a_claim_in_another_notebooks_file_is_told_where_it_belongs(project):
    wrong = {"01_first": entry("x", exercise="1.2"), "02_second": entry("x", exercise="1.7"), "beyond": entry("x")}
    homes = {"01_first": "02_second", "02_second": "beyond", "beyond": "01_first"}
    for stem, misplaced in wrong.items():
        write_ledger(project, LEDGER | {stem: [misplaced]})
        with pytest.raises(ValueError, match=rf"{stem}.yaml: claim x: exercise: .* belongs in {homes[stem]}.yaml"):
            ledger()


BROKEN = {
    "unknown field": ("expcted", {"expcted": "more"}),
    "bad id": ("id", {"id": "Two Words"}),
    "bad exercise": ("exercise", {"exercise": "1.04"}),
    "bad kind": ("kind", {"kind": "guess"}),
    "no source": ("sources", {"sources": []}),
    "no sentence": ("claim", {"claim": ""}),
    "no metric": ("metric", {"metric": ""}),
    "tolerance without equal": ("prediction", {"prediction": ABOVE | {"tolerance": 0.1}}),
    "negative tolerance": ("prediction.tolerance", {"prediction": EXACTLY | {"tolerance": -0.1}}),
    "equality of measured numbers without room": ("prediction", {"prediction": EXACTLY | {"tolerance": 0}}),
    "compares nothing": ("prediction.compares", {"prediction": ABOVE | {"compares": ""}}),
    "unknown direction": ("prediction.direction", {"prediction": ABOVE | {"direction": "more"}}),
    "open though predicted": ("open", {"open": "a larger machine"}),
    "nothing expected": ("expected", {"prediction": None}),
    "expected in words where it is judged": ("prediction", {"prediction": None, "expected": "more"}),
}  # fmt: skip


@pytest.mark.parametrize("field, change", BROKEN.values(), ids=BROKEN)
def test_what_is_wrong_is_told_by_file_claim_and_field(field, change, project):
    write_ledger(project, {"01_first": [entry("right"), entry("wrong") | change]})
    with pytest.raises(
        ValueError, match=rf"experiments/claims/01_first.yaml: claim {change.get('id', 'wrong')}: {field}"
    ):
        ledger()


@pytest.mark.parametrize(
    "text, said", [("- id: [", "while parsing"), ("id: x", "a list of claims"), ("- x", "claim x")]
)
def test_a_file_that_is_no_list_of_claims_is_named(text, said, project):
    (project / "experiments" / "claims" / "01_first.yaml").write_text(text)
    with pytest.raises(ValueError, match=f"01_first.yaml: {said}"):
        ledger()


def test_two_claims_with_one_id_are_refused_whatever_files_they_stand_in(project):
    for ledgers in (
        {"01_first": [entry("x")] * 2},
        {"01_first": [entry("x")], "02_second": [entry("x", exercise="1.2")]},
    ):
        write_ledger(project, LEDGER | ledgers)
        with pytest.raises(ValueError, match="two claims share an id: x, also in 01_first.yaml"):
            ledger()


def test_a_claim_is_found_by_its_id_and_a_misspelt_one_is_guessed(project):
    assert find("four-win-early").id == "four-win-early"
    with pytest.raises(ValueError, match="no claim 'four-wins'; there are four-win"):
        find("four-wins")


@pytest.mark.parametrize("change", [{"priority": "A"}, {"kind": "theorem"}], ids=str)
def test_only_what_is_neither_asked_nor_exact_may_stay_open(change, project):
    unjudged = ledger()["some-day"].unjudged
    assert (unjudged.verdict, unjudged.note) == ("open", "a larger machine")
    write_ledger(project, LEDGER | {"02_second": [LEDGER["02_second"][-1] | change]})
    with pytest.raises(ValueError, match="claim some-day: .*open"):
        ledger()


def test_the_hash_of_a_ledger_is_that_of_its_notebooks_file(project):
    first, second, other = (project / "notebooks" / f"{stem}.ipynb" for stem in ("01_first", "02_second", "mine"))
    before = claims.ledger_hash(first), claims.ledger_hash(second)
    assert all(before) and claims.ledger_hash(other) == ""
    write_ledger(project, {"02_second": [entry("one-is-new", exercise="1.2")]})
    assert claims.ledger_hash(first) == before[0] and claims.ledger_hash(second) != before[1]


def test_values_are_of_parameters_that_the_notebook_has():
    for about in ledger().values():
        if about.values:
            assert set(about.values) <= set(parameters.read_declared(parameters.notebook_of(about.exercise))), about.id


def test_absent_values_are_named_by_parameter_and_value():
    two = Claim(**entry("x", values={"heads": [8, 32], "rates": [0.1]}))
    assert two.absent({"heads": [8, 32, 64], "rates": [0.1]}) == ""
    assert two.absent({"heads": [1], "rates": [0.1]}) == "heads 8, heads 32"
    assert two.absent({"heads": [8, 32], "rates": []}) == "rates 0.1"
    assert two.absent({"heads": [8, 32]}) == "", "a notebook without the parameter has not left it out"


# Results


@pytest.mark.parametrize("word, read", [("refuted", "answered"), ("open", "open"), ("not judged", "not judged")])
def test_questions_of_earlier_runs_read_as_answered(word, read, project):
    folder = made.finish(project, made.verdict("how-many", word), made.verdict("four-win", word))
    assert list(claims.read_verdicts(folder).verdict) == [read, word]


def test_collecting_keeps_every_digit_and_lists_the_rest_as_pending(project):
    verdicts = [
        Verdict(id="four-win", exercise="1.1", verdict="supported", effect=0.1 + 0.2, low=1 / 3, high=math.inf, n=5),
        Verdict(id="two-parts", exercise="1.1", verdict="proved", effect=2.6645352591003757e-15, note="NA, none, nan"),
        Verdict(id="four-win-early", exercise="1.1", verdict="inconclusive", effect=-7.0, low=0.7071067811865476e-7,
                high=1e22, n=3, unit="null", note='a "quoted", text\nin lines', gates="not yet gated"),
    ]  # fmt: skip
    folder = made.finish(project, *verdicts)
    (run := folder / "run.json").rename(aside := folder.parent / "run.json")
    assert set(report.collect(folder.parent).verdict) == {"pending", "open"}, "without run.json a run is unfinished"
    aside.rename(run)
    table = report.collect(folder.parent)
    assert list(table.id) == list(ledger()) and list(table.columns) == list(Verdict.model_fields)
    rows = table.set_index("id")
    for verdict in verdicts:
        for field, value in verdict.model_dump().items():
            got = rows.loc[verdict.id].get(field, verdict.id)
            missing = value is None or value != value
            assert pd.isna(got) if missing else got == value, field
    assert rows.verdict["how-many"] == "pending" and rows.exercise["how-many"] == "1.1"
    runs.write_table(project / "claims.csv", table)
    assert f"four-win,1.1,supported,{0.1 + 0.2!r},{1 / 3!r},inf,,5," in (project / "claims.csv").read_text()


def committed(pattern):
    files = subprocess.run(["git", "-C", project_root(), "ls-files", pattern], capture_output=True, text=True).stdout
    return [project_root() / name for name in files.splitlines() if (project_root() / name).exists()]


@pytest.mark.parametrize("path", committed("results/*/*/verdicts.csv"), ids=lambda path: path.parent.name)
def test_a_committed_run_is_well_formed(path):
    """Its files are as the run left them; verdicts follow from their numbers where the ledger is the one it names."""
    folder, run = path.parent, json.loads((path.parent / "run.json").read_text("utf-8"))
    assert run["status"] == "done" and run["profile"] == path.parents[1].name
    assert runs.read_run(folder), "the run is not complete"
    table = claims.read_verdicts(folder)
    assert set(table.verdict) <= set(VERDICTS) and set(table.exercise) == {run["exercise"]} and table.id.is_unique
    assert table.id.str.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*").all()
    for row in table.itertuples():
        assert not row.figure or (folder / "figures" / f"{row.figure}.png").exists(), row.id
        assert not row.table or (folder / "tables" / f"{row.table}.csv").exists(), row.id
    if run.get("ledger") and run["ledger"] == claims.ledger_hash(Path(f"{folder.name}.ipynb")):
        known = {name: claim for name, claim in ledger().items() if claim.exercise == run["exercise"]}
        assert set(table.id) == set(known)
        for row in table.itertuples():
            if not (run["profile"] == "smoke" and row.verdict == "not judged"):
                follows(known[row.id], row)


def follows(about, row):
    """A verdict follows from the claim and the numbers beside it."""
    if about.open:
        assert (row.verdict, row.note) == ("open", about.open), row.id
    elif row.verdict == NOT_RUN:
        assert row.note.startswith("without ") and row.threshold == about.compared, row.id
    else:
        found = Interval(row.effect, row.low, row.high, None if pd.isna(row.n) else int(row.n))
        if about.arms:
            verdict = OUT_OF_REACH if "✗" in row.gates else decided(about, found)
            assert row.gates and (row.verdict, row.threshold) == (verdict, about.compared), row.id
        else:
            judged = judge(about, row.effect if about.kind in EXACT else found)
            assert (row.verdict, row.threshold) == (judged.verdict, judged.threshold), row.id
            assert row.gates == ("" if about.gated else UNGATED), row.id


def test_the_rule_for_committed_verdicts_lets_through_what_a_run_writes_and_nothing_else(project):
    arms, question = ledger()["four-win"], ledger()["how-many"]
    right = made.verdict("four-win", gates="✓ regime")
    follows(arms, right)
    follows(question, made.verdict("how-many", "answered"))
    follows(ledger()["two-parts"], made.verdict("two-parts", "proved", 2, low=math.nan, high=math.nan, n=None))
    for about, wrong in (
        (arms, right.model_copy(update={"verdict": "refuted"})),
        (arms, right.model_copy(update={"gates": "✗ regime"})),
        (arms, right.model_copy(update={"threshold": "another"})),
        (ledger()["two-parts"], made.verdict("two-parts", "proved", 3)),
    ):
        with pytest.raises(AssertionError):
            follows(about, wrong)
