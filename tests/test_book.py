"""The book: every page is whole without a network, every link leads somewhere, nothing that a run wrote is obeyed.

Of `lab.book.conf`, `lab.book.glossary`, `lab.book.pages` and `lab.book.runs`.
"""

import html
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import made
import pytest

from lab import book
from lab.book import conf, glossary, pages, runs
from lab.trials import parameters

pytest.importorskip("myst_nb")


class Page(HTMLParser):
    """Ids, links and loaded files of one page."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loads, self.text = set(), [], [], path.read_text("utf-8")
        self.alts = {}
        self.feed(self.text)

    @property
    def said(self):
        return html.unescape(re.sub("<[^>]*>", "", self.text))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.add(attributes.get("id"))
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        elif tag in ("script", "link", "img", "iframe"):
            self.loads.append(attributes.get("src") or attributes.get("href") or "")
            if tag == "img":
                self.alts[self.loads[-1]] = attributes.get("alt")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        return made.book(tmp_path_factory.mktemp("book"), patch)


def read_from(built):
    return {path: Page(path) for path in built.rglob("*.html") if "_static" not in path.parts}


@pytest.fixture(scope="module")
def read(built):
    return read_from(built)


def test_there_is_a_page_for_everything_in_both_languages(built):
    names = ["index", "claims", "errata", "measured", "exercises", "reading", "glossary", "cluster", "api", "own"]
    names += ["probes", "teach", "search", "exercises/01_dice", "exercises/02_coins"]
    assert [name for name in names for place in (built, built / "zh") if not (place / f"{name}.html").exists()] == []


def test_the_switch_of_the_language_stays_on_the_page(built, read):
    for path, page in read.items():
        name = path.relative_to(built / "zh" if "zh" in path.relative_to(built).parts else built)
        other = built / name if "zh" in path.relative_to(built).parts else built / "zh" / name
        assert other in [(path.parent / link).resolve() for link in page.links if link.endswith(".html")], path


def broken(built, read):
    """[(page, link)] of what leads nowhere."""
    found = []
    for path, page in read.items():
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme in ("http", "https", "mailto", "data"):
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchored = not parts.fragment or target.suffix != ".html" or parts.fragment in read[target].ids
            if not target.exists() or not anchored:
                found.append((path.relative_to(built).as_posix(), link))
    return found


def test_every_link_leads_somewhere(built, read):
    lessons = [link for page, link in broken(built, read) if page.endswith("reading.html")]
    assert [link for page, link in broken(built, read) if link not in lessons] == []
    there = {f"#exercises/{notebook.name}" for notebook in parameters.notebooks()}
    assert set(lessons) <= there, "the order in which to read is that of the lab's own lessons"


@pytest.mark.slow
def test_the_book_of_the_lab_is_whole(tmp_path):
    built = book.build(tmp_path / "html").parent
    read = read_from(built)
    assert broken(built, read) == []
    assert "problematic" not in read[built / "api.html"].text


def test_no_page_asks_the_network_for_anything(read):
    for path, page in read.items():
        assert [load for load in page.loads if urlsplit(load).netloc] == [], path
        assert not re.search(r"@import url\(.?http|import .* from .http", page.text), path


def test_every_claim_has_a_row_and_an_address(built, read):
    known = [claim["id"] for claims in made.LEDGER.values() for claim in claims]
    for name in ("claims", "zh/claims"):
        page = read[built / f"{name}.html"]
        assert set(known) <= page.ids and page.text.count("<tr id=") == len(known)
        assert "2.5 [1.5, 3.5]" in page.text and "exercises/01_dice.html" in page.links
    assert "it is 2.5" in read[built / "errata.html"].said and "为 2.5" in read[built / "zh" / "errata.html"].said
    assert "exercises/01_dice.html" in read[built / "errata.html"].links


def test_a_figure_with_controls_has_its_states(built, read):
    page = read[built / "exercises" / "01_dice.html"]
    states = [src for src in page.loads if "turns/" in src]
    assert len(states) == len(set(states)) == 6 and page.text.count('type="range"') == 2
    assert {page.alts[src] for src in states} >= {"n 1, base 10", "n 3, base 500"}
    visible = re.findall(r'<img src="[^"]*turns/[^>]*?lazy">', page.text)
    assert len(visible) == 1 and "n 2, base 10" in visible[0]


def test_chinese_is_found_by_pairs_of_characters(built):
    index = (built / "zh" / "searchindex.js").read_text("utf-8")
    assert '"掩码"' in index or "\\u63a9\\u7801" in index
    assert conf.Chinese({}).split("因果掩码 softmax 的") == ["因果", "果掩", "掩码", "softmax", "的"]


def test_what_a_term_names_is_measured():
    numbers = {parameters.exercise_of(notebook) for notebook in parameters.notebooks()}
    assert all(set(term.measured) <= numbers for term in glossary.glossary())
    names = [term.term for term in glossary.glossary()]
    assert len(set(names)) == len(names)


def test_the_api_page_says_what_docstrings_say_as_they_stand(built, read):
    page = read[built / "api.html"]
    assert {"lab.charts.forest", "lab.models.gpt.ModelConfig", "lab.study.Study.judge"} <= page.ids
    assert "problematic" not in page.text
    lines = ["The `x_y` of *args, |a| and a_", "    further in"]
    conf.as_written(None, "", "", None, None, lines)
    assert lines == [r"The ``x_y`` of \*args, \|a\| and a\_", "", "    further in"]


def test_an_exercise_stands_before_the_appendix_of_its_section():
    sections = {20: 1, 4: 2, 10: 1, 2: 1}
    found = [runs.Run(Path(f"{number:02}_a.ipynb"), "quick", Path(), {}) for number in sections]
    for run in found:
        run.__dict__["section"] = sections[run.number]
    assert [run.number for run in runs.in_order(found)] == [2, 10, 20, 4]


def test_a_figure_has_its_words_on_every_page_that_shows_it(built, read):
    for name in ("exercises/01_dice", "index"):
        page = read[built / f"{name}.html"]
        assert made.CAPTIONS[0] in page.alts.values(), name
        assert [src for src, said in page.alts.items() if not said or said.endswith(".png")] == [], name
    assert "[a](b) *x* <y> & {z}." in read[built / "exercises" / "01_dice.html"].said


def test_a_page_is_in_its_own_language_alone(built, read):
    for page, mine, other in (
        ("exercises/01_dice", "How many?", "多少个？"),
        ("zh/exercises/01_dice", "多少个？", "How many?"),
    ):
        said = read[built / f"{page}.html"].said
        assert mine in said and other not in said and "details>" not in said, page


HOSTILE = '<script>alert("1")</script> `x` [a](javascript:b) {{ c }} | $d$'


def test_what_a_run_wrote_is_text(tmp_path):
    controls = [{"name": HOSTILE, "values": [HOSTILE, "2"], "at": 0}]
    found = {"controls": controls, "states": [{"error": HOSTILE}, {"png": ""}]}
    assert "<script" not in pages.turn_html(found, tmp_path / "turns" / "one")
    assert re.fullmatch(r"[\w ,&#;]*", pages.plain(HOSTILE)) and "<" not in pages.plain(HOSTILE)


def test_without_results_there_is_no_book(monkeypatch, tmp_path):
    monkeypatch.setattr(runs, "finished_runs", list)
    with pytest.raises(FileNotFoundError, match="lab run"):
        book.build(tmp_path / "book")
    assert not (tmp_path / "book").exists()
