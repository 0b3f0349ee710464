"""What people read about the results is what the results say."""

import re

import pytest

from lab.engine.runs import project_root
from lab.ledger import summary


@pytest.mark.parametrize(
    "path",
    [
        *summary.READMES,
        *(f"results/quick/{name}" for name in summary.READMES),
        "results/errata.md",
        "results/errata.zh.md",
    ],
)
def test_every_address_of_a_readme_is_there(path):
    page = project_root() / path
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")):
        assert "://" in link or (page.parent / link).exists(), link


def test_an_overview_counts_what_was_judged(tmp_path):
    table = summary.collect(tmp_path)
    assert set(table.verdict) <= {"pending", "open"}
    assert summary.overview(tmp_path).count("\n") == 1, "the head alone: nothing has run"
