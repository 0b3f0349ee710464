"""What people read about the results is what the results say."""

import pytest

from lab import summary
from lab.results import project_root, read_run

QUICK = project_root() / "results" / "quick"


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_readme_shows_the_committed_verdicts(name):
    if not any(read_run(folder) for folder in QUICK.glob("*")):
        pytest.skip("no results of the quick profile here")
    assert summary.overview(QUICK, "results/quick/") in (project_root() / name).read_text("utf-8")


def test_an_overview_counts_what_was_judged(tmp_path):
    table = summary.collect(tmp_path)
    assert set(table.verdict) <= {"pending", "open"} and len(table) == 314
    assert summary.overview(tmp_path).count("\n") == 1, "the head alone: nothing has run"
