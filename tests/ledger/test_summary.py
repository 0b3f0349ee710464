"""What people read about the results is what the results say."""

import pytest

from lab.engine.runs import project_root, read_run
from lab.ledger import summary

QUICK = project_root() / "results" / "quick"


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_readme_shows_what_is_committed(name):
    if not any(read_run(folder) for folder in QUICK.glob("*")):
        pytest.skip("no results of the quick profile here")
    text = (project_root() / name).read_text("utf-8")
    assert summary.overview(QUICK, "results/quick/") in text
    assert summary.ratios(project_root() / "results" / "benchmarks" / "summary.csv") in text


def test_an_overview_counts_what_was_judged(tmp_path):
    table = summary.collect(tmp_path)
    assert set(table.verdict) <= {"pending", "open"} and len(table) == 314
    assert summary.overview(tmp_path).count("\n") == 1, "the head alone: nothing has run"
