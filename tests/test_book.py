"""The book: every page is whole without a network, every link leads somewhere, nothing that a run wrote is obeyed.

Of `lab.book.board`, `lab.book.charts`, `lab.book.conf`, `lab.book.glossary`, `lab.book.pages`, `lab.book.runs`,
`lab.book.seams` and `lab.book.tables`.
"""

import ast
import html
import inspect
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

import made
import matplotlib.pyplot as plt
import nbformat
import pandas as pd
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_output
from PIL import Image

import lab.charts
from lab import book, figures, language
from lab.book import board, charts, glossary, pages, runs, seams, tables
from lab.engine import parameters
from lab.ledger import claims

pytest.importorskip("myst_nb")
CAPTIONS = 'Loss "falls": [a](b) *x* <y> & {z}.', "一条线：第 1_000 步的 **损失**。"
ERRATUM = {"id": "one-head", "number": 1, "source": "chapter", "where": "§1", "says": "one", "says_zh": "一",
           "right": "it is {four-win.effect:.1f}", "right_zh": "为 {four-win.effect:.1f}",
           "claims": {"four-win": "holds"}, "evidence": ["01_first/drawn"]}  # fmt: skip
DOCUMENTED = ("lab.charts", "lab.models.config", "lab.study")
TERM = {"term": "mask", "term_zh": "掩码", "says": "What is hidden.", "says_zh": "遮住的部分。", "measured": ["1.1"]}


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
    """The book of a project with two runs; the first one's figure has words that are markup somewhere."""
    with pytest.MonkeyPatch.context() as patch:
        root = made.project(tmp_path_factory.mktemp("book"), patch)
        for name, entry in {"errata": ERRATUM, "glossary": TERM}.items():
            (root / "experiments" / f"{name}.yaml").write_text(yaml.safe_dump([entry]))
        made.finish(root, made.verdict("one-is-faster"), place="quick/02_second")
        folder = made.finish(root, made.verdict("four-win", effect=2.5), made.verdict("how-many", "answered"))
        shown = []
        patch.setattr("lab.figures.display", lambda data, raw: shown.append(data))
        figure = plt.figure()
        figures.show(figures.save(figure, folder / "figures" / "drawn", *CAPTIONS), *CAPTIONS)
        plt.close(figure)
        notebook = nbformat.read(folder / "notebook.ipynb", 4)
        notebook.cells[-1] = new_code_cell("study.figure(...)", outputs=[new_output("display_data", shown[0])])
        nbformat.write(notebook, folder / "notebook.ipynb")
        runs.runs.write_run(folder, runs.runs.read_run(folder))
        documented = [each for each in seams.modules() if each[0] in DOCUMENTED]
        patch.setattr(seams, "modules", lambda: documented)  # all of lab takes longer than the rest of the book
        return book.build(root / "html").parent


def read_from(built):
    return {path: Page(path) for path in built.rglob("*.html") if "_static" not in path.parts}


@pytest.fixture(scope="module")
def read(built):
    return read_from(built)


def test_there_is_a_page_for_everything_in_both_languages(built):
    names = ["index", "scoreboard", "errata", "gallery", "matters", "measured", "charts", "exercises"]
    names += ["reading", "glossary", "cluster", "seams", "api", "own", "probes", "teach"]
    names += [f"{part}/{stem}" for stem in ("01_first", "02_second") for part in ("exercises", "tables")]
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
    assert sum(path.stat().st_size for path in built.rglob("*") if path.is_file()) < 70e6, "small enough to hand on"


def test_no_page_asks_the_network_for_anything(read):
    for path, page in read.items():
        assert [load for load in page.loads if urlsplit(load).netloc] == [], path
        assert not re.search(r"@import url\(.?http|import .* from .http", page.text), path


def test_what_both_languages_have_is_not_twice_in_the_book(built):
    twins = {path: built / path.relative_to(built / "zh") for path in (built / "zh").rglob("*.*")}
    twice = [path for path, twin in twins.items() if twin.is_file() and path.suffix != ".html"
             and twin.read_bytes() == path.read_bytes()]  # fmt: skip
    assert sum(path.stat().st_size for path in twice) < 1e6


def test_the_scoreboard_has_a_card_and_an_address_for_every_claim(built, read):
    known = [claim for claims in made.LEDGER.values() for claim in claims]
    for name in ("scoreboard", "zh/scoreboard"):
        page = read[built / f"{name}.html"]
        assert {claim["id"] for claim in known} <= page.ids
        assert page.text.count('<article class="claim"') == len(known)
        assert f">{len(known)} / {len(known)}</output>" in page.text
        assert "2.5 [1.5, 3.5]" in page.text
        assert "errata.html#one-head" in page.links, "a claim leads to what it corrects"
    assert "scoreboard.html#four-win" in read[built / "errata.html"].links


def test_chinese_is_found_by_pairs_of_characters(built):
    from lab.book import conf

    index = (built / "zh" / "searchindex.js").read_text("utf-8")
    assert '"掩码"' in index or "\\u63a9\\u7801" in index
    assert conf.Chinese({}).split("因果掩码 softmax 的") == ["因果", "果掩", "掩码", "softmax", "的"]


def test_what_a_term_names_is_measured_and_seams_are_those_registered():
    numbers = {parameters.exercise_of(notebook) for notebook in parameters.notebooks()}
    assert all(set(term.measured) <= numbers for term in glossary.glossary())
    names = [term.term for term in glossary.glossary()]
    assert len(set(names)) == len(names)
    found = {name: dict((kind, options) for kind, options, _ in kinds) for name, _, kinds in seams.listed()}
    assert "base" in found["Position"]["rotary"] and "causal" in found["Mask"]
    assert all(said for _, _, kinds in seams.listed() for _, _, said in kinds) and all(
        said for _, said in seams.modules()
    )


def test_the_api_page_says_what_docstrings_say_as_they_stand(built, read):
    page = read[built / "api.html"]
    assert {"lab.charts.forest", "lab.models.config.ModelConfig", "lab.study.Study.judge"} <= page.ids
    assert "problematic" not in page.text
    lines = ["The `x_y` of *args, |a| and a_", "    further in"]
    from lab.book import conf

    conf.as_written(None, "", "", None, None, lines)
    assert lines == [r"The ``x_y`` of \*args, \|a\| and a\_", "", "    further in"]


def test_the_words_by_which_a_card_is_folded_are_its_own():
    script = (Path(book.__file__).parent / "static" / "book.js").read_text("utf-8")
    kept = json.loads(re.search(r"const kept = (\[.*?\]);", script)[1])
    said = []
    for speak in ("en", "zh"):
        with language.using(speak):
            said += [language.tr(word) for word in ("measured", "predicted", "effect", "verdict")]
    assert kept == said


def test_an_exercise_stands_before_the_appendix_of_its_section():
    sections = {20: 1, 4: 2, 10: 1, 2: 1}
    found = [runs.Run(Path(f"{number:02}_a.ipynb"), "quick", Path(), {}) for number in sections]
    for run in found:
        run.__dict__["section"] = sections[run.number]
    assert [run.number for run in runs.in_order(found)] == [2, 10, 20, 4]


def test_what_both_languages_have_stands_once(tmp_path):
    for name, text in {"a.css": "x", "zh/a.css": "x", "b.js": "1", "zh/b.js": "2"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "zh" / "deep").mkdir()
    (tmp_path / "zh" / "deep" / "p.html").write_text('<link href="../a.css?v=1"><script src="../b.js"></script>')
    book.share(tmp_path, tmp_path / "zh")
    page = (tmp_path / "zh" / "deep" / "p.html").read_text()
    assert page == '<link href="../../a.css?v=1"><script src="../b.js"></script>'
    assert not (tmp_path / "zh" / "a.css").exists() and (tmp_path / "zh" / "b.js").exists()


def test_a_figure_has_its_words_on_every_page_that_shows_it(built, read):
    for name in ("exercises/01_first", "tables/01_first", "gallery", "index"):
        page = read[built / f"{name}.html"]
        assert CAPTIONS[0] in page.alts.values(), name
        assert [src for src, said in page.alts.items() if not said or said.endswith(".png")] == [], name
        if "/" in name:
            assert "[a](b) *x* <y> & {z}." in page.said, name


def test_a_page_is_in_its_own_language_alone(built, read):
    for page, mine, other in (
        ("exercises/01_first", "How many?", "多少个？"),
        ("zh/exercises/01_first", "多少个？", "How many?"),
    ):
        said = read[built / f"{page}.html"].said
        assert mine in said and other not in said and "details>" not in said, page


def test_every_chart_verb_is_drawn_once_with_its_call(tmp_path):
    public = {name for name, verb in vars(lab.charts).items() if inspect.isfunction(verb)
              and verb.__module__ == "lab.charts" and not name.startswith("_")}  # fmt: skip
    shown = charts.drawn(tmp_path)
    assert sorted(name for name, *_ in shown) == sorted(public)
    for name, arguments, said, code in shown:
        calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)}
        assert f"charts.{name}" in calls and arguments and said, name
        colours = Image.open(tmp_path / f"{name}.png").convert("RGB").getcolors(1 << 24)
        assert len(colours) > 2, f"{name}: nothing is drawn"


HOSTILE = '<script>alert("1")</script> `x` [a](javascript:b) {{ c }} | $d$'


def test_what_a_run_wrote_is_text():
    claim = claims.Claim(**made.entry("x", "theorem"))
    verdict = claims.Verdict(id="x", exercise="1.1", verdict="disproved", note=HOSTILE, effect=1)
    verdict = verdict.model_copy(update={"unit": HOSTILE, "threshold": HOSTILE, "figure": HOSTILE, "gates": HOSTILE})
    card = board.Card(claim, verdict, HOSTILE, [HOSTILE], [], ["recorded"], board.notes(claim, verdict))
    told = pages.claims_html([card])
    assert "<script" not in told and told.count("&lt;script&gt;") >= 6 and '"1"' not in told
    assert "<script" not in tables.plain_table(pd.DataFrame({HOSTILE: [HOSTILE]}))
    assert re.fullmatch(r"[\w ,&#;]*", pages.plain(HOSTILE)) and "<" not in pages.plain(HOSTILE)


def test_a_claim_says_where_it_was_measured():
    claim = claims.Claim(**made.entry("x"))
    verdict = claims.Verdict(id=claim.id, exercise="1.1", verdict="supported")

    def signs(**origin):
        run = SimpleNamespace(about={"record": origin}, profile="quick")
        return set(board.signed([(run, verdict)]))

    assert signs() == set()
    assert signs(recorded=3, ran_here=0, checks=["as recorded"]) == {"recorded", "checked"}
    assert signs(recorded=0, ran_here=2, checks=[]) == {"run"}
    assert set(board.measured_where()) == {"recorded", "run", "checked"}


def test_a_prediction_is_told_in_the_readers_language_if_it_is_that_of_the_ledger():
    claim = claims.Claim(**made.entry("x"))
    verdict = claims.Verdict(id=claim.id, exercise="1.1", verdict="inconclusive", threshold=str(claim.prediction))
    earlier = verdict.model_copy(update={"threshold": "another > 1"})
    with language.using("zh"):
        assert claim.prediction.compares_zh in board.Card(claim, verdict, "", [], []).predicted
        assert board.Card(claim, earlier, "", [], []).predicted == "another > 1"


def test_effects_are_ranked_by_their_distance_from_none(tmp_path, monkeypatch):
    """Known means and spreads: 2 sd above zero, a ratio half an sd above one, another a quarter below."""
    made.project(tmp_path, monkeypatch)
    spread = 2 * 2.7764451  # of a t-interval over five runs with sd sqrt(5)
    rows = [("four-win", "points", 2 * 5**0.5), ("one-is-faster", "ratio", 1 + 5**0.5 / 2)]
    rows.append(("one-is-smaller", "ratio", 1 - 5**0.5 / 4))
    verdicts = pd.DataFrame(
        [{"id": name, "verdict": "supported", "effect": effect, "low": effect - spread / 2, "high": effect + spread / 2,
          "unit": unit, "n": 5, "gates": ""} for name, unit, effect in rows]
    )  # fmt: skip
    table = tables.matters([SimpleNamespace(verdicts=verdicts, exercise="1.1", minutes=4.0)])
    assert list(table["effect in sd"]) == pytest.approx([2, 0.5, 0.25], rel=1e-6)
    assert list(table["sd per minute"]) == pytest.approx([0.5, 0.125, 0.0625], rel=1e-6)


def test_without_results_there_is_no_book(monkeypatch, tmp_path):
    monkeypatch.setattr(runs, "finished_runs", list)
    with pytest.raises(FileNotFoundError, match="lab run"):
        book.build(tmp_path / "book")
    assert not (tmp_path / "book").exists()
