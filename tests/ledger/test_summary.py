"""What people read about the results is what the results say."""

import os
import re

import made
import pandas as pd
import pytest
import yaml

from lab.engine import runs
from lab.language import using
from lab.ledger import summary


@pytest.fixture
def project(tmp_path, monkeypatch):
    return made.project(tmp_path, monkeypatch)


@pytest.mark.parametrize("page", summary.READMES)
def test_every_address_of_a_readme_that_is_typed_is_there(page):
    page = runs.project_root() / page
    typed = re.sub(r"<!-- \w+ -->.*?<!-- end -->", "", page.read_text("utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", typed):
        assert "://" in link or (page.parent / link).exists(), link


def test_an_overview_counts_what_was_judged(project):
    quick = project / "results" / "quick"
    assert summary.overview(quick).count("\n") == 1, "the head alone: nothing has run"
    made.finish(
        project, made.verdict("four-win", gates="✓ regime"), made.verdict("four-win-early", gates="not yet gated")
    )
    (row,) = summary.overview(quick, "there/").splitlines()[2:]
    assert row == (
        "| [1.1 First](there/01_first/notebook.ipynb) | [1](there/01_first/figures) "
        "| 3 pending, 2 supported; 1 not yet gated | 2.0 |"
    )


@pytest.mark.parametrize("threshold, word", [("", "supported"), ("four over two > 0.1", "pending")])
def test_a_verdict_on_another_comparison_is_none(project, threshold, word):
    made.finish(project, made.verdict("four-win", threshold=threshold), made.verdict("two-parts"))
    for language in ("en", "zh"):
        with using(language):
            found = summary.collect(project / "results" / "quick").set_index("id").verdict
        assert (found["four-win"], found["two-parts"]) == (word, "supported")


def test_a_profile_without_any_finished_run_is_summarised_all_the_same(project):
    summary.summarise(project / "results" / "quick")
    assert set(pd.read_csv(project / "results" / "quick" / "claims.csv").verdict) == {"pending", "open"}
    assert "no machine yet" in (project / "results" / "quick" / "README.md").read_text("utf-8")


def test_a_plain_reading_of_the_table_tells_exercises_apart(project):
    summary.write_claims(project)
    read, claims = pd.read_csv(project / "claims.csv"), summary.collect(project / "results" / "quick")
    assert read.id.tolist() == claims.id.tolist() and read.exercise.nunique() == claims.exercise.nunique()
    assert {"01_first", "02_second"} <= set(read.exercise)


def test_a_summary_is_outdated_once_a_run_or_a_file_of_the_ledger_is_newer(project):
    quick = project / "results" / "quick"
    made.finish(project, made.verdict("four-win"))
    assert summary.outdated(quick)
    summary.summarise(quick)
    newest = (quick / "claims.csv").stat().st_mtime_ns
    for path in (quick / "01_first" / "run.json", project / "experiments" / "claims" / "02_second.yaml"):
        for seconds, stale in ((1, True), (-1, False)):
            os.utime(path, ns=(newest + seconds * 10**9,) * 2)
            assert summary.outdated(quick) is stale, path


def test_what_is_published_is_made_of_the_results(project):
    """The generated parts of both READMEs, the errata, the summary of quick and the table of benchmarks."""
    marks = [f"<!-- {mark} -->earlier words<!-- end -->\n" for mark in ("findings", "about", "overview")]
    for name in summary.READMES:
        (project / name).write_text("".join(["typed\n", *marks, "typed too\n"]))
    row = {"benchmark": "decoding", "case": "cache", "measured": 1.5, "low": 1, "high": 2, "target": 1, "met": "yes"}
    runs.write_table(project / "results" / "benchmarks" / "summary.csv", pd.DataFrame([row]))
    erratum = {"id": "one", "number": 1, "source": "chapter", "where": "§1", "says": "one", "says_zh": "一",
               "right": "it is {four-win.effect:.1f}", "right_zh": "为 {four-win.effect:.1f}",
               "claims": {"four-win": "holds"}, "evidence": ["01_first/drawn"]}  # fmt: skip
    (project / "experiments" / "errata.yaml").write_text(yaml.safe_dump([erratum]))
    made.finish(project, made.verdict("four-win", effect=2.5))
    summary.publish()
    english, chinese = ((project / name).read_text("utf-8") for name in summary.READMES)
    for text in (english, chinese):
        assert text.startswith("typed\n") and text.endswith("\ntyped too\n") and "earlier words" not in text
        assert "(results/quick/01_first/notebook.ipynb)" in text
        assert all((project / link).exists() for link in re.findall(r"\]\((results/quick/[^)]*)\)", text))
    assert "* Four heads gain 2.5, 3.5 times. (supported," in english and "四个头多得 2.5，为 3.5 倍。" in chinese
    assert "one [ledger](experiments/claims), each with its prediction" in english
    assert "it is 2.5" in (project / "results" / "errata.md").read_text("utf-8")
    assert "为 2.5" in (project / "results" / "errata.zh.md").read_text("utf-8")
    assert "decoding: cache" in (project / "results" / "benchmarks" / "README.md").read_text("utf-8")
    assert "four-win,01_first,supported,2.5" in (project / "results" / "quick" / "claims.csv").read_text("utf-8")
    before = english
    summary.publish()
    assert (project / "README.md").read_text("utf-8") == before, "publishing twice changes nothing"
