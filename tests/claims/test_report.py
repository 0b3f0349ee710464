"""What people read about the results is what the results say: labels choose the sentence, of lessons alone."""

import os
import re

import made
import pandas as pd
import pytest
import yaml

from lab.claims import claims, report
from lab.language import using
from lab.tools.batch import under_test
from lab.trials import runs


@pytest.fixture
def project(tmp_path, monkeypatch):
    return made.project(tmp_path, monkeypatch)


def lines(**by_claim):
    """A table of lines: {claim: (label, effect)}."""
    rows = [made.line(name.replace("_", "-"), *said) for name, said in by_claim.items()]
    return pd.DataFrame([row.model_dump() for row in rows])


def test_the_label_chooses_the_direction(project):
    line = report.findings_list(lines(four_win=("supported", 5.0)))
    assert "Four heads gain 5.0, 6.0 times." in line and "results/quick/01_dice/figures/drawn.png" in line
    assert "Four heads gain nothing: -0.9." in report.findings_list(lines(four_win=("refuted", 0.1)))
    with using("zh"):
        assert "四个头多得 5.0，为 6.0 倍。" in report.findings_list(lines(four_win=("supported", 5.0)))


def test_an_interval_without_width_is_told_as_a_number(project, monkeypatch):
    monkeypatch.setitem(made.FINDING, "undecided", "It is {effect:.1f} [{low:.1f}, {high:.1f}].")
    made.write_ledger(project, made.LEDGER)
    row = made.line("four-win", "undecided", effect=2.0, low=2.0, high=2.0)
    assert report.sentence(pd.DataFrame([row.model_dump()])) == "It is 2.0."


def test_of_several_lines_the_one_that_speaks_least_for_the_label_is_told(project):
    def told(label):
        rows = [made.line("four-win", label, effect, where=str(effect)) for effect in (2.0, 1.5, 3.0)]
        return report.sentence(pd.DataFrame([row.model_dump() for row in rows]))

    assert told("supported") == "Four heads gain 1.5, 2.5 times."
    assert told("refuted") == "Four heads gain nothing: 2.0."


def test_a_label_that_rests_on_a_no_is_told_with_a_line_that_says_no(project):
    found = {"no, too small to matter": 1.5, "undecided": 0.5, "yes": 3.0}
    rows = [made.line("four-win", "refuted", effect).model_dump() | {"answer": a} for a, effect in found.items()]
    assert report.decisive(claims.ledger()["four-win"], pd.DataFrame(rows)).effect == 1.5


def test_a_lesson_without_sentences_tells_its_claim_and_an_appendix_nothing(project):
    line = report.findings_list(lines(four_win_early=("supported", 2.0)))
    assert claims.find("four-win-early").claim in line and "[+100 %, +300 %]" in line
    assert report.findings_list(lines(four_win_early=("out of reach", 2.0))) == ""
    assert report.findings_list(lines(one_is_faster=("supported", 2.0))) == ""


def test_each_lesson_tells_one_finding_the_first_that_has_a_sentence(project):
    told = {"finding": made.FINDING, "finding_zh": made.FOUND}
    second = [made.entry("two-a", exercise="1.2"), made.entry("two-b", exercise="1.2", **told)]
    made.write_ledger(project, made.LEDGER | {"02_coins": second})
    table = lines(**dict.fromkeys(("four_win", "two_a", "two_b"), ("refuted", 0.1)))
    assert {exercise: told.id.iloc[0] for exercise, told in report.findings(table).items()} == {
        "1.1": "four-win",
        "1.2": "two-b",
    }


def test_a_sentence_for_readers_makes_no_run_stale(project):
    assert "four-win" in str(under_test("1.1")) and "finding" not in str(under_test("1.1"))


def test_a_notebook_opens_in_the_language_that_it_has(project):
    notebook = project / "notebooks" / "01_dice.ipynb"
    assert report.opening(notebook) == ("1.1 What do dice show?", "How many?")
    with using("zh"):
        assert report.opening(notebook) == ("1.1 骰子掷出多少？", "多少个？")


@pytest.mark.parametrize("page", report.READMES)
def test_every_address_of_a_readme_that_is_typed_is_there(page):
    page = runs.project_root() / page
    typed = re.sub(r"<!-- \w+ -->.*?<!-- end -->", "", page.read_text("utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", typed):
        assert "://" in link or (page.parent / link).exists(), link


def test_an_overview_counts_what_was_judged(project):
    quick = project / "results" / "quick"
    assert report.overview_table(quick).count("\n") == 1, "the head alone: nothing has run"
    made.finish(project, made.line("four-win", gates="✓ size"), made.line("four-win-early", gates="not yet gated"))
    (row,) = report.overview_table(quick).splitlines()[2:]
    assert row == (
        "| [1.1 What do dice show?](results/quick/01_dice/notebook.ipynb) | [1](results/quick/01_dice/figures) "
        "| 3 pending, 2 supported; 1 not yet gated | 2.0 |"
    )


def test_an_answer_to_another_comparison_is_none(project):
    made.finish(project, made.line("four-win", comparison="another"), made.line("two-parts"))
    found = report.collect(project / "results" / "quick").set_index("id").label
    assert (found["four-win"], found["two-parts"]) == ("pending", "supported")


def test_a_profile_without_any_finished_run_is_summarised_all_the_same(project):
    report.summarise(project / "results" / "quick")
    assert set(pd.read_csv(project / "results" / "quick" / "claims.csv").label) == {"pending", "open"}
    assert "no machine yet" in (project / "results" / "quick" / "README.md").read_text("utf-8")


def test_a_plain_reading_of_the_table_tells_exercises_apart(project):
    quick = project / "results" / "quick"
    report.summarise(quick)
    read, table = pd.read_csv(quick / "claims.csv"), report.collect(quick)
    assert read.id.tolist() == table.id.tolist() and read.exercise.nunique() == table.exercise.nunique()
    assert {"01_dice", "02_coins"} <= set(read.exercise)


def test_a_summary_is_outdated_once_a_run_or_a_file_of_the_ledger_is_newer(project):
    quick = project / "results" / "quick"
    made.finish(project, made.line("four-win"))
    assert report.outdated(quick)
    report.summarise(quick)
    newest = (quick / "claims.csv").stat().st_mtime_ns
    for path in (quick / "01_dice" / "run.json", project / "experiments" / "claims" / "02_coins.yaml"):
        for seconds, stale in ((1, True), (-1, False)):
            os.utime(path, ns=(newest + seconds * 10**9,) * 2)
            assert report.outdated(quick) is stale, path


def test_what_is_published_is_made_of_the_results(project):
    """The generated parts of both READMEs, the errata and the page of quick."""
    marks = [f"<!-- {mark} -->earlier words<!-- end -->\n" for mark in ("findings", "about", "overview")]
    for name in report.READMES:
        (project / name).write_text("".join(["typed\n", *marks, "typed too\n"]))
    (project / "experiments" / "errata.yaml").write_text(yaml.safe_dump([made.ERRATUM]))
    made.finish(project, made.line("four-win", effect=2.5))
    report.publish()
    english, chinese = ((project / name).read_text("utf-8") for name in report.READMES)
    for text in (english, chinese):
        assert text.startswith("typed\n") and text.endswith("\ntyped too\n") and "earlier words" not in text
        assert "(results/quick/01_dice/notebook.ipynb)" in text
        assert all((project / link).exists() for link in re.findall(r"\]\((results/quick/[^)]*)\)", text))
    assert "* Four heads gain 2.5, 3.5 times. (supported," in english and "四个头多得 2.5，为 3.5 倍。" in chinese
    assert "one [ledger](experiments/claims), each with its prediction" in english
    assert "it is 2.5" in (project / "results" / "errata.md").read_text("utf-8")
    assert "为 2.5" in (project / "results" / "errata.zh.md").read_text("utf-8")
    assert "four-win,01_dice,,,2.5," in (project / "results" / "quick" / "claims.csv").read_text("utf-8")
    report.publish()
    assert (project / "README.md").read_text("utf-8") == english, "publishing twice changes nothing"
