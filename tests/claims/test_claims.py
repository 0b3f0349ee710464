"""A ledger is read by file, claim and field; committed answers follow from the ledger that they name."""

import json
import subprocess
from pathlib import Path

import made
import pandas as pd
import pytest
from made import ABOVE, ARMS, EXACTLY, LEDGER, entry, write_ledger

from lab import files, parameters
from lab.claims import claims
from lab.claims.claims import EXACT, LABELS, Claim, ledger
from lab.claims.judge import NOT_RUN, OUT_OF_REACH, decided, judge, label_of
from lab.files import project_root
from lab.measure.statistics import Interval


@pytest.fixture
def project(tmp_path, monkeypatch):
    return made.project(tmp_path, monkeypatch)


# The ledger


def test_the_ledger_of_the_lab_can_be_read():
    """What its claims have to be stands in `Claim`: reading them checks it."""
    assert {claim.exercise for claim in ledger().values()} >= {files.exercise_of(files.notebooks()[0])}


def test_claims_stand_in_the_order_of_the_files_and_in_each_as_written(project):
    assert list(ledger()) == [each["id"] for stem in ("01_dice", "02_coins", "beyond") for each in LEDGER[stem]]


def test_a_file_is_read_anew_once_it_has_changed(project):
    first, again = ledger(), ledger()
    assert all(again[name] is claim for name, claim in first.items())
    write_ledger(project, {"02_coins": [entry("one-is-new", exercise="1.2")]})
    assert [name for name in ledger() if name.startswith("one-")] == ["one-is-new"]
    assert ledger()["four-win"] is first["four-win"], "other files are as they were"


def test_a_claim_in_another_notebooks_file_is_told_where_it_belongs(project):
    wrong = {"01_dice": entry("x", exercise="1.2"), "02_coins": entry("x", exercise="1.7"), "beyond": entry("x")}
    homes = {"01_dice": "02_coins", "02_coins": "beyond", "beyond": "01_dice"}
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
    "negative bar": ("parts.0.bar", {"bar": -0.1}),
    "equality of measured numbers without room": ("bar", EXACTLY | {"bar": 0}),
    "asks nothing": ("parts.0.question", {"question": ""}),
    "unknown direction": ("parts.0.direction", {"direction": "more"}),
    "unknown quantifier": ("parts.0.over", {"over": "most"}),
    "a measure without gates": ("needs", ARMS),
    "parts without names": ("parts", {"parts": [ABOVE, ABOVE]}),
    "open though compared": ("open", {"open": "a larger machine"}),
}  # fmt: skip


@pytest.mark.parametrize("field, change", BROKEN.values(), ids=BROKEN)
def test_what_is_wrong_is_told_by_file_claim_and_field(field, change, project):
    write_ledger(project, {"01_dice": [entry("right"), entry("wrong") | change]})
    with pytest.raises(
        ValueError, match=rf"experiments/claims/01_dice.yaml: claim {change.get('id', 'wrong')}: {field}"
    ):
        ledger()


def test_a_claim_of_a_notebook_is_compared_and_not_expected_in_words(project):
    write_ledger(project, {"01_dice": [entry("x", expected="more")]})
    with pytest.raises(ValueError, match="01_dice.yaml: claim x: question: a notebook judges"):
        ledger()


@pytest.mark.parametrize(
    "text, said", [("- id: [", "while parsing"), ("id: x", "must be a list of claims"), ("- x", "claim x")]
)
def test_a_file_that_is_no_list_of_claims_is_named(text, said, project):
    (project / "experiments" / "claims" / "01_dice.yaml").write_text(text)
    with pytest.raises(ValueError, match=f"01_dice.yaml: {said}"):
        ledger()


def test_two_claims_with_one_id_are_refused_whatever_files_they_stand_in(project):
    for ledgers in (
        {"01_dice": [entry("x")] * 2},
        {"01_dice": [entry("x")], "02_coins": [entry("x", exercise="1.2")]},
    ):
        write_ledger(project, LEDGER | ledgers)
        with pytest.raises(ValueError, match="two claims share an id: x, also in 01_dice.yaml"):
            ledger()


@pytest.mark.parametrize("change", [{"priority": "A"}, {"kind": "theorem"}], ids=str)
def test_only_what_is_neither_asked_nor_exact_may_stay_open(change, project):
    (unjudged,) = ledger()["some-day"].unjudged
    assert (unjudged.label, unjudged.note) == ("open", "a larger machine")
    write_ledger(project, LEDGER | {"02_coins": [LEDGER["02_coins"][-1] | change]})
    with pytest.raises(ValueError, match="claim some-day: .*open"):
        ledger()


def test_the_hash_of_a_ledger_is_that_of_its_notebooks_file(project):
    first, second, other = (project / "notebooks" / f"{stem}.ipynb" for stem in ("01_dice", "02_coins", "mine"))
    before = claims.ledger_hash(first), claims.ledger_hash(second)
    assert all(before) and claims.ledger_hash(other) == ""
    write_ledger(project, {"02_coins": [entry("one-is-new", exercise="1.2")]})
    assert claims.ledger_hash(first) == before[0] and claims.ledger_hash(second) != before[1]


def test_values_are_of_parameters_that_the_notebook_has():
    for about in ledger().values():
        if about.values:
            assert set(about.values) <= set(parameters.read_parameters(files.notebook_of(about.exercise))), about.id


def test_absent_values_are_named_by_parameter_and_value():
    two = Claim(**entry("x", values={"heads": [8, 32], "rates": [0.1]}))
    assert two.absent({"heads": [8, 32, 64], "rates": [0.1]}) == ""
    assert two.absent({"heads": [1], "rates": [0.1]}) == "heads 8, heads 32"
    assert two.absent({"heads": [8, 32], "rates": []}) == "rates 0.1"
    assert two.absent({"heads": [8, 32]}) == "", "a notebook without the parameter has not left it out"


# Results


def test_parts_share_the_fields_of_their_claim():
    parts = [{"name": "one"}, {"name": "two", "bar": 0.2, "over": "some"}]
    about = Claim(**entry("x", parts=parts, **ABOVE))
    assert [(part.name, part.bar, part.over) for part in about.parts] == [("one", 0.1, "all"), ("two", 0.2, "some")]
    assert [line.part for line in about.without_answer("not judged")] == ["one", "two"]


def committed(pattern):
    listed = subprocess.run(["git", "-C", project_root(), "ls-files", pattern], capture_output=True, text=True).stdout
    return [project_root() / name for name in listed.splitlines() if (project_root() / name).exists()]


@pytest.mark.parametrize("path", committed("results/*/*/verdicts.csv"), ids=lambda path: path.parent.name)
def test_a_committed_run_is_well_formed(path):
    """Its files are as the run left them; answers follow from their numbers where the ledger is the one it names."""
    folder, run = path.parent, json.loads((path.parent / "run.json").read_text("utf-8"))
    assert run["status"] == "done" and run["profile"] == path.parents[1].name
    assert files.read_run(folder), "the run is not complete"
    table = claims.read_verdicts(folder)
    assert set(table.label) <= set(LABELS) and set(table.exercise) == {f"1.{int(folder.name[:2])}"}
    assert not table.duplicated(["id", "part", "where"]).any()
    assert table.id.str.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*").all()
    for row in table.itertuples():
        assert not row.figure or (folder / "figures" / f"{row.figure}.png").exists(), row.id
        assert not row.table or (folder / "tables" / f"{row.table}.csv").exists(), row.id
    if run.get("ledger") and run["ledger"] == claims.ledger_hash(Path(f"{folder.name}.ipynb")):
        known = {name: claim for name, claim in ledger().items() if claim.exercise == f"1.{int(folder.name[:2])}"}
        assert set(table.id) == set(known)
        for (name, part), lines in table.groupby(["id", "part"]):
            if not (run["profile"] == "smoke" and set(lines.label) == {"not judged"}):
                follows(known[name], part, list(lines.itertuples()))


def follows(about, name, lines):
    """Answers and label follow from the claim and the numbers beside them."""
    if about.open:
        assert [(line.label, line.note) for line in lines] == [("open", about.open)], about.id
        return
    part = next(part for part in about.parts if part.name == name)
    for line in lines:
        assert (line.comparison, line.bar) == (part.digest, about.row(part)["bar"]), about.id
        if line.answer == NOT_RUN:
            assert line.note.startswith("without "), about.id
        elif about.kind in EXACT:
            (judged,) = judge(about.model_copy(update={"parts": [part]}), line.effect)
            assert {line.answer, judged.answer} <= {"proved", "checked"} or line.answer == judged.answer, about.id
        elif "✗" in line.gates:
            assert line.answer == OUT_OF_REACH, about.id
        else:
            assert line.gates or about.kind == "question", about.id
            found = Interval(line.effect, line.low, line.high, None if pd.isna(line.n) else int(line.n))
            assert line.answer in (decided(about, part, found), "undecided"), about.id
    labels = {label_of(part.over, [line.answer for line in lines]), "undecided"}
    assert {line.label for line in lines} <= labels, about.id


def test_the_rule_for_committed_answers_lets_through_what_a_run_writes_and_nothing_else(project):
    arms, question = ledger()["four-win"], ledger()["how-many"]
    right = made.line("four-win", gates="✓ size", effect=3)
    follows(arms, "", [right])
    follows(question, "", [made.line("how-many", "answered")])
    follows(ledger()["two-parts"], "", [made.line("two-parts", "checked", 2, n=None)])
    for about, wrong in (
        (arms, {"label": "refuted"}),
        (arms, {"answer": "no"}),
        (arms, {"gates": "✗ size"}),
        (arms, {"comparison": "another"}),
    ):
        with pytest.raises(AssertionError):
            follows(about, "", [right.model_copy(update=wrong)])
    with pytest.raises(AssertionError):
        follows(ledger()["two-parts"], "", [made.line("two-parts", "checked", 3)])
