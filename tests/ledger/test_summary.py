"""What people read about the results is what the results say."""

import re

import pytest

from lab.engine.runs import project_root, read_run
from lab.language import using
from lab.ledger import summary

QUICK = project_root() / "results" / "quick"


@pytest.mark.parametrize("name, speak", summary.READMES.items())
def test_the_readme_shows_what_is_committed(name, speak):
    if not any(read_run(folder) for folder in QUICK.glob("*")):
        pytest.skip("no results of the quick profile here")
    text = (project_root() / name).read_text("utf-8")
    with using(speak):
        for mark, made in summary.made(QUICK, project_root() / "results" / "benchmarks" / "summary.csv").items():
            assert f"<!-- {mark} -->\n\n{made}\n\n<!-- end -->" in text, mark
        assert (QUICK / name).read_text("utf-8") == summary.page(QUICK)


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
    assert set(table.verdict) <= {"pending", "open"} and len(table) == 315
    assert summary.overview(tmp_path).count("\n") == 1, "the head alone: nothing has run"
