"""Errata are well formed, the tests that they cite are there, and what committed results deny is told."""

import ast

import made
import pytest
import yaml
from lab.claims.errata import Erratum, check, contradictions, errata, page

from lab.claims.claims import ledger
from lab.trials.parameters import notebooks
from lab.trials.runs import project_root

ERRATA = errata()
ROOT = project_root()
EVIDENCE = sorted({evidence for entry in ERRATA.values() for evidence in entry.evidence})


def functions_of(path):
    return {node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)}


# Those of the lab


def test_numbers_have_no_gap():
    numbers = sorted({number for entry in ERRATA.values() for number in (entry.number, *entry.was.values())})
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("evidence", [e for e in EVIDENCE if e.startswith("tests/")])
def test_the_test_exists(evidence):
    path, name = evidence.split("::")
    assert name in functions_of(ROOT / path)


def test_the_notebooks_exist():
    cited = {evidence.partition("/")[0] for evidence in EVIDENCE if evidence[0].isdigit()}
    assert cited <= {notebook.stem for notebook in notebooks()}


def test_every_computation_is_cited():
    files = set((ROOT / "tests" / "claims").glob("test_errata*.py")) - {ROOT / "tests/claims/test_errata_ledger.py"}
    written = {
        f"tests/claims/{path.name}::{name}" for path in files for name in functions_of(path) if name.startswith("test_")
    }
    assert written == {evidence for evidence in EVIDENCE if evidence.startswith("tests/claims/test_errata")}


# Beside the labels


GOOD = {
    "id": "some-error", "number": 1, "source": "note 1", "where": "§2", "says": "one", "says_zh": "一",
    "right": "two", "right_zh": "二", "claims": "none is there", "evidence": ["01_dice"],
}  # fmt: skip
ROWS = [
    ("refuted", 0),
    ("disproved", 0),
    ("supported", 1),
    ("proved", 1),
    ("checked", 1),
    ("not everywhere", 0),
    ("undecided", 0),
    ("pending", 0),
]


@pytest.fixture
def project(tmp_path, monkeypatch):
    return made.project(tmp_path, monkeypatch)


@pytest.mark.parametrize("label, found", ROWS)
def test_a_contradiction_is_told_in_both_sentences(label, found, project):
    right = {"right": "it is {four-win.effect:.1f}", "right_zh": "为 {four-win.effect:.1f}"}
    entry = Erratum(**GOOD | right | {"claims": {"four-win": "fails"}})
    told = contradictions([entry], {"four-win": {"label": label, "effect": 4.0}})
    assert len(told) == found
    assert all("it is 4.0" in text and ledger()["four-win"].claim in text for text in told)
    against = int(label in ("refuted", "disproved", "not everywhere"))
    struck = entry.model_copy(update={"claims": {"four-win": "holds"}})
    assert len(contradictions([struck], {"four-win": {"label": label, "effect": 4.0}})) == against
    of_part = entry.model_copy(update={"claims": {"four-win/one part": "fails"}})
    assert len(contradictions([of_part], {"four-win/one part": {"label": label, "effect": 4.0}})) == found


def test_what_results_do_not_bear_out_is_told_before_they_are_published(project):
    """A label that is another, a claim and a number that are none, a figure that was not drawn."""
    made.finish(project, made.line("four-win"), made.line("how-many", "answered"))
    number = "{how-many.effect:.1f} of {four-win-early.low:.1f}"
    entries = [
        GOOD | {"id": "fine", "claims": {"four-win": "holds"}, "evidence": ["01_dice", "01_dice/drawn"]},
        GOOD | {"id": "denied", "number": 2, "claims": {"four-win": "fails"}},
        GOOD | {"id": "gone", "number": 3, "claims": {"four-wins": "fails"}, "evidence": ["01_dice/seen", "02_coins"]},
        GOOD | {"id": "counted", "number": 4, "right": number, "right_zh": f"为 {number}"},
    ]
    written(project / "experiments", *entries)
    denied, *gone = sorted(check(), key=lambda text: "(denied)" not in text)
    assert denied == (
        "erratum 2 (denied) says: two So claim four-win fails. The ledger says: supported: It is said that four win."
    )
    assert gone == [
        "erratum 3 (gone): there is no 01_dice/seen",
        "erratum 3 (gone): there is no 02_coins",
        "erratum 3 (gone): there is no claim four-wins",
        "erratum 4 (counted): there is no low of four-win-early",
    ]
    assert "1.5 of –" in page(), "the page is made all the same"


# What they have to be


BROKEN = {
    "source": GOOD | {"source": "note 5"},
    "evidence": GOOD | {"evidence": []},
    "struck": GOOD | {"struck": "", "struck_zh": "无误"},
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
    "cited", ["tests/claims/test_other.py::test_x", "4_head_count", "literature: somebody", "the notebook"]
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
    with pytest.raises(ValueError, match=f"{field} is used twice"):
        errata(written(tmp_path, GOOD, GOOD | other))
