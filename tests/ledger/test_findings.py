"""Findings say what the verdicts say, of lessons alone; openings speak the reader's language.

Of `lab.ledger.findings` and `lab.ledger.openings`.
"""

import re

import made
import pandas as pd
import pytest
from made import FINDING, FOUND, LEDGER, entry, write_ledger

from lab.commands.arguments import under_test
from lab.language import using
from lab.ledger import claims, findings, openings


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    return made.project(tmp_path, monkeypatch)


def verdicts(**by_claim):
    """A table of verdicts: {claim: (verdict, effect)}."""
    rows = [made.verdict(name.replace("_", "-"), *said) for name, said in by_claim.items()]
    return pd.DataFrame([row.model_dump() for row in rows])


def test_the_verdict_chooses_the_direction():
    line = findings.findings(verdicts(four_win=("supported", 5.0)), "results/")
    assert "Four heads gain 5.0, 6.0 times." in line and "results/01_first/figures/drawn.png" in line
    assert "Four heads gain nothing: -0.9." in findings.findings(verdicts(four_win=("refuted", 0.1)))
    with using("zh"):
        assert "四个头多得 5.0，为 6.0 倍。" in findings.findings(verdicts(four_win=("supported", 5.0)))


def test_a_lesson_without_sentences_tells_its_claim_and_an_appendix_nothing():
    line = findings.findings(verdicts(four_win_early=("supported", 2.0)))
    assert claims.find("four-win-early").claim in line and "[+100 %, +300 %]" in line
    assert findings.findings(verdicts(four_win_early=("out of reach", 2.0))) == ""
    assert findings.findings(verdicts(one_is_faster=("supported", 2.0))) == ""


def test_a_sentence_for_readers_makes_no_run_stale():
    assert "four-win" in under_test("1.1") and "finding" not in under_test("1.1")


def test_lessons_take_turns_until_there_are_enough(project, monkeypatch):
    told = {"finding": FINDING, "finding_zh": FOUND}
    second = [entry(name, exercise="1.2", **told) for name in ("two-a", "two-b", "two-c")]
    write_ledger(project, LEDGER | {"02_second": second})
    table = verdicts(**dict.fromkeys(("two_a", "two_b", "two_c", "four_win"), ("refuted", 0.1)))
    monkeypatch.setattr(findings, "ENOUGH", 3)
    lines = findings.findings(table).splitlines()
    assert [re.search(r"\[(1\.\d)\]", line)[1] for line in lines] == ["1.1", "1.2", "1.2"]


def test_a_notebook_opens_in_the_language_that_it_has(project):
    notebook = project / "notebooks" / "01_first.ipynb"
    assert (openings.title(notebook), openings.question(notebook)) == ("1.1 First", "How many?")
    with using("zh"):
        assert (openings.title(notebook), openings.question(notebook)) == ("第一", "多少个？")
