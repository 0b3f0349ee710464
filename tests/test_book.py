"""The book: every page is whole without a network, every link leads somewhere, nothing that a run wrote is obeyed.

Of `lab.book.conf`, `lab.book.pages`, `lab.book.runs` and `lab.book.tables`.
"""

import re
from html.parser import HTMLParser
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import pandas as pd
import pytest

from lab import book
from lab.book import pages, runs, tables
from lab.ledger import claims

pytest.importorskip("myst_nb")
pytestmark = pytest.mark.slow
FINISHED = runs.finished_runs()


class Page(HTMLParser):
    """Ids, links and loaded files of one page."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loads, self.text = set(), [], [], path.read_text("utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.add(attributes.get("id"))
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        elif tag in ("script", "link", "img", "iframe"):
            self.loads.append(attributes.get("src") or attributes.get("href") or "")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    if not FINISHED:
        pytest.skip("no results to make a book of")
    return book.build(tmp_path_factory.mktemp("book") / "html").parent


@pytest.fixture(scope="module")
def read(built):
    return {path: Page(path) for path in built.rglob("*.html") if "_static" not in path.parts}


def test_there_is_a_page_for_everything(built):
    names = ["index", "scoreboard", "errata", "gallery", "matters", "measured", "exercises"]
    names += [f"zh/{name}" for name in ("index", "scoreboard", "errata")]
    names += [f"{part}/{run.stem}" for run in FINISHED for part in ("exercises", "tables")]
    assert [name for name in names if not (built / f"{name}.html").exists()] == []


def test_every_link_leads_somewhere(built, read):
    broken = []
    for path, page in read.items():
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchored = not parts.fragment or target.suffix != ".html" or parts.fragment in read[target].ids
            if not target.exists() or not anchored:
                broken.append((path.relative_to(built).as_posix(), link))
    assert broken == []


def test_no_page_asks_the_network_for_anything(read):
    for path, page in read.items():
        assert [load for load in page.loads if urlsplit(load).netloc] == [], path
        assert not re.search(r"@import url\(.?http|import .* from .http", page.text), path


def test_the_book_is_small_enough_to_hand_on(built):
    assert sum(path.stat().st_size for path in built.rglob("*") if path.is_file()) < 40e6


def test_the_scoreboard_holds_every_claim_with_its_interval_in_both_languages(built, read):
    for name, zh in (("scoreboard", False), ("zh/scoreboard", True)):
        text = read[built / f"{name}.html"].text
        for claim in claims.ledger().values():
            assert claim.id in text
        board = tables.score_table(tables.scoreboard(FINISHED), zh)
        assert len(board) >= len(claims.ledger())
    judged = FINISHED[0].verdicts.dropna(subset="low").iloc[0]
    row = board[board.iloc[:, 2].str.contains(f">{judged.id}<")].iloc[0]
    assert f"[{judged.low:.3g}, {judged.high:.3g}]" in row.iloc[3]


HOSTILE = '<script>alert("1")</script> `x` [a](javascript:b) {{ c }} | $d$'


def test_what_a_run_wrote_is_text():
    about = {"profile": "quick", "size": HOSTILE, "device": HOSTILE, "stem": "04_head_count"}
    verdict = claims.Verdict(id="heads-params-independent", exercise="1.4", verdict="disproved", note=HOSTILE)
    verdict = verdict.model_copy(update={"unit": HOSTILE, "threshold": HOSTILE, "figure": HOSTILE})
    cells = tables.score_table(pd.DataFrame([verdict.model_dump() | about]), zh=False).iloc[0]
    assert "<script" not in "".join(cells) and '"1"' not in "".join(cells)
    assert "<script" not in tables.plain_table(pd.DataFrame({HOSTILE: [HOSTILE]}))
    assert re.fullmatch(r"[\w ,&#;]*", pages.plain(HOSTILE)) and "<" not in pages.plain(HOSTILE)


def test_effects_are_ranked_by_their_distance_from_none():
    """Known means and spreads: 2 sd above zero, a ratio half an sd above one, another a quarter below."""
    spread = 2 * 2.7764451  # of a t-interval over five runs with sd sqrt(5)
    rows = [("heads-parallel-retrieval", "points", 2 * 5**0.5), ("heads-throughput", "ratio", 1 + 5**0.5 / 2)]
    rows.append(("ffn-fused", "ratio", 1 - 5**0.5 / 4))
    verdicts = pd.DataFrame(
        [{"id": name, "verdict": "supported", "effect": effect, "low": effect - spread / 2, "high": effect + spread / 2,
          "unit": unit, "n": 5} for name, unit, effect in rows]
    )  # fmt: skip
    table = tables.matters([SimpleNamespace(verdicts=verdicts, exercise="1.4", minutes=4.0)])
    assert list(table["effect in sd"]) == pytest.approx([2, 0.5, 0.25], rel=1e-6)
    assert list(table["sd per minute"]) == pytest.approx([0.5, 0.125, 0.0625], rel=1e-6)


def test_without_results_there_is_no_book(monkeypatch, tmp_path):
    monkeypatch.setattr(runs, "finished_runs", list)
    with pytest.raises(FileNotFoundError, match="lab run"):
        book.build(tmp_path / "book")
    assert not (tmp_path / "book").exists()
