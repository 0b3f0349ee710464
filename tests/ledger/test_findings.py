"""Findings say what the verdicts say, of lessons alone; openings speak the reader's language.

Of `lab.ledger.findings` and `lab.ledger.openings`.
"""

import re
import string

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_markdown_cell, new_notebook

from lab.commands.arguments import under_test
from lab.engine import parameters
from lab.language import using
from lab.ledger import claims, findings, openings

TOLD = [claim for claim in claims.ledger().values() if claim.finding]
NUMBERS = set(findings.numbers(pd.Series({"effect": 0.5, "low": 0.25, "high": 0.75})))


def verdicts(**by_claim):
    """A table of verdicts, supported where nothing else is said: {claim: (verdict, effect)}."""
    rows = []
    for name, (verdict, effect) in by_claim.items():
        claim = claims.find(name.replace("_", "-"))
        rows.append({"id": claim.id, "exercise": claim.exercise, "verdict": verdict, "effect": effect,
                     "low": effect - 1, "high": effect + 1, "unit": claim.unit, "n": 5, "figure": "heads"})  # fmt: skip
    return pd.DataFrame(rows)


@pytest.mark.parametrize("claim", TOLD, ids=lambda claim: claim.id)
def test_a_finding_has_its_number_in_both_languages(claim):
    assert claim.place == "lesson"
    for verdict, english in claim.finding.items():
        filled = [
            {(name, spec) for _, name, spec, _ in string.Formatter().parse(text) if name}
            for text in (english, claim.finding_zh[verdict])
        ]
        assert filled[0] == filled[1] and filled[0], (claim.id, verdict)
        assert {name for name, _ in filled[0]} <= NUMBERS
        for text in (english, claim.finding_zh[verdict]):
            assert not re.search(r"\d[.]\d|\d ?%", re.sub(r"\{[^}]*\}", "", text)), "a result is typed"


def test_the_verdict_chooses_the_direction():
    line = findings.findings(verdicts(heads_parallel_retrieval=("supported", 5.0)))
    assert "6.0 times [5.0, 7.0]" in line and "at once" in line and "figures/heads.png" in line
    assert "hardly faster" in findings.findings(verdicts(heads_parallel_retrieval=("refuted", 0.1)))


def test_a_lesson_without_sentences_tells_its_claim_and_an_appendix_nothing():
    line = findings.findings(verdicts(heads_plateau_16=("supported", 2.0)))
    assert claims.find("heads-plateau-16").claim in line and "[+100 %, +300 %]" in line
    assert findings.findings(verdicts(heads_plateau_16=("out of reach", 2.0))) == ""
    assert findings.findings(verdicts(heads_throughput=("supported", 2.0))) == ""


def test_a_sentence_for_readers_makes_no_run_stale():
    assert "heads-redundancy" in under_test("1.4") and "finding" not in under_test("1.4")


def test_lessons_take_turns_until_there_are_enough(monkeypatch):
    four = ("heads_parallel_retrieval", "heads_few_are_worse", "heads_redundancy", "heads_natural_diversity")
    table = verdicts(**dict.fromkeys(four, ("refuted", 0.1)), attention_zero_after_softmax=("refuted", 0.1))
    monkeypatch.setattr(findings, "ENOUGH", 3)
    lines = findings.findings(table).splitlines()
    assert [re.search(r"\[(1\.\d)\]", line)[1] for line in lines] == ["1.3", "1.4", "1.4"]


def test_a_notebook_opens_in_the_language_that_it_has(tmp_path):
    cell = "# Heads\n\n*How many?*\n\n**中文摘要** 问题：多少个头？做法：训练。"
    nbformat.write(new_notebook(cells=[new_markdown_cell(cell)]), tmp_path / "mine.ipynb")
    assert (openings.title(tmp_path / "mine.ipynb"), openings.question(tmp_path / "mine.ipynb")) == (
        "Heads",
        "How many?",
    )
    with using("zh"):
        assert openings.question(tmp_path / "mine.ipynb") == "多少个头？"
        assert openings.title(parameters.notebook_of("1.4")) == "1.4 一层应当有多少个注意力头？"
