"""The errata are complete and well formed, and every piece of evidence they name exists."""

import ast

import pandas as pd
import pytest
import yaml

from lab.engine.parameters import notebooks
from lab.engine.runs import project_root
from lab.ledger.claims import ledger
from lab.ledger.errata import NUMBER, Erratum, contradictions, errata, filled, verdicts

ERRATA = errata()
ROOT = project_root()
NOTEBOOKS = {notebook.stem for notebook in notebooks()}
EVIDENCE = sorted({evidence for entry in ERRATA.values() for evidence in entry.evidence})


def functions_of(path):
    return {node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)}


def test_every_suspected_error_has_its_entry():
    assert sorted({n for e in ERRATA.values() for n in (e.number, *e.was.values())}) == list(range(1, 101))


def test_errata_and_verdicts_agree():
    """Of the committed runs; where this fails, one of the two sentences has to change."""
    assert contradictions(ERRATA.values(), verdicts()) == []


def test_every_claim_and_number_that_an_entry_names_is_there():
    rows = verdicts()
    for entry in ERRATA.values():
        assert isinstance(entry.claims, str) or (entry.claims and set(entry.claims) <= set(ledger())), entry.id
        for text in filter(
            None, (entry.says, entry.right, entry.struck, entry.says_zh, entry.right_zh, entry.struck_zh)
        ):
            assert "{" not in filled(text, rows).replace("^{", "^").replace("_{", "_") and "–" not in filled(text, rows)
        assert set(NUMBER.findall(entry.right)) == set(NUMBER.findall(entry.right_zh)), entry.id


ROWS = [("refuted", 0), ("disproved", 0), ("supported", 1), ("proved", 1), ("inconclusive", 0), ("pending", 0)]


@pytest.mark.parametrize("verdict, found", ROWS)
def test_a_contradiction_is_told_in_both_sentences(verdict, found):
    entry = Erratum(**GOOD | {"claims": {"heads-reshape": "fails"}, "right": "it is {heads-reshape.effect:.1f}"})
    told = contradictions([entry], {"heads-reshape": {"verdict": verdict, "effect": 4.0}})
    assert len(told) == found
    assert all("it is 4.0" in text and ledger()["heads-reshape"].claim in text for text in told)
    against = {"refuted": 1, "disproved": 1}.get(verdict, 0)
    struck = entry.model_copy(update={"claims": {"heads-reshape": "holds"}})
    assert len(contradictions([struck], {"heads-reshape": {"verdict": verdict, "effect": 4.0}})) == against


def test_what_entries_say_of_tables_is_in_them():
    tables = ROOT / "results" / "quick"
    sums = pd.read_csv(tables / "07_position_encodings/tables/lengths.csv").query("asked == 'sums' and length > 2")
    beyond = sums.groupby("encoding").accuracy.mean()
    assert beyond[["sinusoidal", "learned"]].mean() < beyond[["t5", "rotary", "alibi"]].mean(), "entry 30"


@pytest.mark.parametrize("evidence", [e for e in EVIDENCE if e.startswith("tests/")])
def test_the_test_exists(evidence):
    path, name = evidence.split("::")
    assert name in functions_of(ROOT / path)


@pytest.mark.parametrize("evidence", [e for e in EVIDENCE if e[0].isdigit()])
def test_the_notebook_exists_and_what_is_cited_of_it(evidence):
    notebook, _, stem = evidence.partition("/")
    assert notebook in NOTEBOOKS
    if stem:
        results = ROOT / "results" / "quick" / notebook
        assert (results / "figures" / f"{stem}.png").exists() or (results / "tables" / f"{stem}.csv").exists()


def test_every_computation_is_cited():
    files = sorted((ROOT / "tests").glob("ledger/test_errata*.py"))
    written = {
        f"tests/ledger/{path.name}::{name}" for path in files for name in functions_of(path) if name.startswith("test_")
    }
    own = {evidence for evidence in written if "test_errata_ledger" in evidence}
    assert written - own == {evidence for evidence in EVIDENCE if evidence.startswith("tests/")}


def test_literature_alone_is_the_exception():
    alone = [
        entry.number
        for entry in ERRATA.values()
        if entry.struck is None and all(evidence.startswith("literature") for evidence in entry.evidence)
    ]
    assert alone == [51], "only what the lab cannot compute"


GOOD = {
    "id": "some-error", "number": 1, "source": "note 1", "where": "§2", "says": "one", "says_zh": "一",
    "right": "two", "right_zh": "二", "claims": "none is there", "evidence": ["04_head_count"],
}  # fmt: skip
BROKEN = {
    "source": GOOD | {"source": "note 5"},
    "evidence": GOOD | {"evidence": []},
    "says_zh": GOOD | {"says_zh": "one"},
    "right": GOOD | {"right": "二"},
    "struck": GOOD | {"struck": "", "struck_zh": "无误"},
    "struck_zh": GOOD | {"struck": "it is right"},
    "struck_zh must hold Chinese": GOOD | {"struck": "it is right", "struck_zh": "it is right"},
    "claims": {key: value for key, value in GOOD.items() if key != "claims"},
    "id": GOOD | {"id": "Some error"},
    "reason": GOOD | {"reason": "none"},
    "where": {key: value for key, value in GOOD.items() if key != "where"},
}


def written(tmp_path, *entries):
    path = tmp_path / "errata.yaml"
    path.write_text(yaml.safe_dump(list(entries), allow_unicode=True), "utf-8")
    return path


def test_a_struck_entry_needs_no_evidence(tmp_path):
    entry = GOOD | {"evidence": [], "struck": "it is right", "struck_zh": "无误"}
    assert errata(written(tmp_path, entry))["some-error"].struck == "it is right"


@pytest.mark.parametrize("field", BROKEN)
def test_what_breaks_the_schema_is_named(tmp_path, field):
    with pytest.raises(ValueError, match=field):
        errata(written(tmp_path, BROKEN[field]))


@pytest.mark.parametrize(
    "cited", ["tests/ledger/test_other.py::test_x", "4_head_count", "literature: somebody", "the notebook"]
)
def test_evidence_has_one_of_three_forms(tmp_path, cited):
    with pytest.raises(ValueError, match="evidence"):
        errata(written(tmp_path, GOOD | {"evidence": [cited]}))


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"number": 2}, "id some-error"),
        ({"id": "other"}, "number 1"),
        ({"id": "other", "number": 3, "was": {"some-error": 2}}, "id some-error"),
        ({"id": "other", "number": 3, "was": {"earlier": 1}}, "number 1"),
    ],
)
def test_nothing_stands_twice(tmp_path, other, field):
    with pytest.raises(ValueError, match=f"{field} stands twice"):
        errata(written(tmp_path, GOOD, GOOD | other))
