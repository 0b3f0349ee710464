"""The page of results and claims.csv hold what the finished runs found, and nothing else."""

import os
import re

import made
import pandas as pd
import pytest

from lab.claims import report
from lab.trials import runs


@pytest.fixture
def project(tmp_path, monkeypatch):
    return made.project(tmp_path, monkeypatch)


def test_the_opening_of_a_notebook_is_its_title_and_question(project):
    notebook = project / "notebooks" / "01_dice.ipynb"
    assert report.opening(notebook) == ("1.1 What do dice show?", "How many?")


@pytest.mark.parametrize("page", ["README.md", "README.zh.md", "CONTRIBUTING.md"])
def test_every_link_of_a_page_leads_somewhere(page):
    page = runs.project_root() / page
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")):
        assert "://" in link or (page.parent / link).exists(), link


def test_an_answer_to_another_comparison_is_left_out(project):
    made.finish(project, made.line("four-win", comparison="another"), made.line("two-parts"))
    found = report.collect(project / "results" / "quick").set_index("id").label
    assert (found["four-win"], found["two-parts"]) == ("pending", "supported")


def test_a_plain_reading_of_claims_csv_tells_exercises_apart(project):
    quick = project / "results" / "quick"
    report.summarise(quick)
    read, table = pd.read_csv(quick / "claims.csv"), report.collect(quick)
    assert set(read.label) == {"pending", "open"}, "nothing has run"
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


def test_the_page_shows_question_figure_answers_and_links_of_each_finished_lesson(project):
    made.finish(project, made.line("four-win"), made.line("four-win-early"))
    page = report.page(project / "results" / "quick")
    assert "### [1.1 What do dice show?](01_dice/notebook.ipynb)\n\nHow many?" in page
    assert "![drawn](01_dice/figures/drawn.png)" in page and "1.2" not in page, "coins have not run"
    assert "3 pending, 2 supported · 2.0 minutes without the record" in page
    for link in re.findall(r"\]\(([^)]+)\)", page):
        assert link == "claims.csv" or (project / "results" / "quick" / link).exists(), link
