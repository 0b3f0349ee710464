"""The package's catalogue holds every message, in Chinese; texts in two languages turn.

Of `lab.language` and `lab.tools.chinese`.
"""

import ast
import re
import warnings
from string import Formatter
from types import SimpleNamespace

import matplotlib.pyplot as plt
import nbformat
import pytest
from made import DICE
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from lab import figures, language
from lab.language import PACKAGE, tr
from lab.study import Study
from lab.tools import batch, chinese
from lab.trials import parameters, runs

FOREIGN = [name for name in language.languages() if name != "en"]
NOTEBOOKS = parameters.notebooks()  # the lessons


# The lessons and the package


def said_by_the_package():
    """Every literal that the package gives to `tr`, also inside f-strings, where Babel on Python 3.11 sees none."""
    found = set()
    for path in PACKAGE.parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "tr":
                found.add(ast.literal_eval(node.args[0]))
    return found


def placeholders(message):
    """The names between braces, each with its format."""
    return {(name, conversion, spec) for _, name, spec, conversion in Formatter().parse(message) if name}


# What is no prose: code blocks and spans, formulas, targets of links, HTML, placeholders, entities and addresses.
NO_PROSE = re.compile(
    r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|\]\([^)]*\)|<[^>]+>|\{[^}]*\}|&\w+;|https?://\S+", re.DOTALL
)


def prose(message):
    """Whether it has words, beside formulas, code and addresses."""
    return bool(re.search(r"[A-Za-z]{2,}", NO_PROSE.sub(" ", message)))


@pytest.mark.parametrize("name", FOREIGN)
def test_the_catalogue_holds_all_that_is_said(name):
    wanted, found = said_by_the_package(), language.messages(language.catalogue(name))
    assert len(wanted) > 100
    assert sorted(wanted - set(found)) == [], "`make translations`, then translate"
    for message in wanted:
        assert re.search("[\u4e00-\u9fff]", found[message]) or not prose(message), message
        assert placeholders(found[message]) == placeholders(message), message


def test_every_message_is_a_literal():
    for path in PACKAGE.parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "tr":
                assert isinstance(node.args[0], ast.Constant), f"{path}, line {node.lineno}"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_nothing_of_a_notebook_hangs_on_the_language(notebook):
    sources = [parameters.parsed(source) for kind, _, source in parameters.cells_of(notebook) if kind == "code"]
    named = {getattr(node, "id", getattr(node, "attr", "")) for tree in sources for node in ast.walk(tree)}
    assert "tr" not in named


def test_words_are_found_in_the_catalogue_then_in_english(monkeypatch):
    assert tr("supported") == "supported" and tr("{braces}") == "{braces}"
    monkeypatch.setenv("LAB_LANGUAGE", "zh")
    assert tr("supported") == "支持" and tr("{n} such heads", n=4) == "4 such heads" and tr("nonsuch") == "nonsuch"
    with language.using("en"):
        assert tr("supported") == "supported"
    with language.using("fr"):
        assert tr("supported") == "supported"


# Texts in two languages

ENGLISH = "# Heads\n\nOne $x$.\n\n```\n# no heading\n```\n\n## Two\n\nMore."
CHINESE = "# 头\n\n一 $x$。\n\n**要点**与\n\n## 二\n\n还有。"


def test_a_text_unfolds_and_turns():
    text = language.folded(ENGLISH, CHINESE)
    assert text.startswith(ENGLISH) and text.endswith("</details>") and "\n# 头" not in text and "**头**" in text
    assert language.sides(text) == (ENGLISH, CHINESE)
    turned = language.turned(text)
    assert turned.startswith(CHINESE) and "<summary>English</summary>" in turned and "**Two**" in turned
    assert "```\n# no heading\n```" in turned
    assert language.folded("Alone.", "") == language.turned("Alone.") == "Alone."


def headings(text):
    return re.findall(r"^#+ ", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)


def exact(text):
    """Its formulas without the words in them, its code words and the targets of its links."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found = re.findall(r"\$\$.*?\$\$|\$[^$]+\$|`[^`]+`|\]\([^)]+\)", text, re.DOTALL)
    return {re.sub(r"\\text\{[^}]*\}|\s", "", each) for each in found}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_lesson_says_all_in_both_languages(notebook):
    opening, *texts = [source for kind, _, source in parameters.cells_of(notebook) if kind == "markdown"]
    assert re.search("[\u4e00-\u9fff]", language.sides(opening)[1])
    if not any(language.sides(text)[1] for text in texts):
        return  # no lesson yet: its opening alone has both
    for text in (opening, *texts):
        english, chinese = language.sides(text)
        assert not re.search("[\u4e00-\u9fff]{4}", english), text
        assert re.search("[\u4e00-\u9fff]", chinese) or not prose(english), text
        assert headings(english) == headings(chinese), text
        assert exact(english) == exact(chinese), text
        assert language.folded(english, chinese) == text


# Runs


def test_a_run_in_another_language_has_a_folder_of_its_own(project, tmp_path):
    def places(*names, **options):
        return [job.folder.relative_to(tmp_path).as_posix() for job in batch.plan(["1.1"], *names, tmp_path, **options)]

    assert places("quick") == [f"runs/quick/{DICE}"]
    assert places("quick", speak="zh") == [f"runs/quick/{DICE}-zh"]
    assert places("smoke", speak="zh") == [f"runs/smoke/{DICE}-zh"]
    assert places("quick", overrides={"seeds": 9}, speak="zh") == [f"runs/quick/{DICE}-zh-seeds-9"]
    with pytest.raises(parameters.Refused, match="--language 'fr': one of en, zh"):
        places("quick", speak="fr")


@pytest.mark.slow
def test_an_executed_notebook_has_turned_cells_and_the_same_code(tmp_path):
    code = "import lab\nlab.study(globals()).say('{n} heads', '{n} 个头', n=4)"
    notebook = tmp_path / "mine.ipynb"
    cells = [new_markdown_cell(language.folded(ENGLISH, CHINESE)), new_code_cell(code)]
    nbformat.write(new_notebook(cells=cells), notebook)
    (job,) = batch.plan([notebook], "quick", tmp_path / "results", speak="zh")
    job.run(runs.Options(store=tmp_path / "store"))
    *_, text, ran = nbformat.read(job.folder / "notebook.ipynb", 4).cells
    assert text.source.startswith(CHINESE) and ran.source == code
    assert ran.outputs[0].data["text/markdown"].startswith("4 个头\n\n<details><summary>English</summary>")
    assert runs.read_run(job.folder)["language"] == "zh"


def squared(seed):
    return {"value": seed**2}


def test_no_trial_is_keyed_by_its_language(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.trials.runs.project_root", lambda: tmp_path)
    for name in ("en", "zh"):
        monkeypatch.setenv("LAB_LANGUAGE", name)
        mine = Study("mine", {"profile": "smoke"})
        assert mine.sweep(squared, {"seed": [1, 2]}).value.tolist() == [1, 4]
        assert [each.origin for each in mine.used] == ["run" if name == "en" else "store"] * 2


# Figures


def test_a_chinese_title_has_all_its_glyphs():
    if figures.chinese_font() is None:
        pytest.skip("no font with Chinese characters is installed")

    def plot(_):
        _, ax = plt.subplots()
        ax.plot([-1, 0], [-0.001, 0.001])
        ax.set(title="头数与验证损失：−0.5 纳特", xlabel="步数 $d_{model}$")
        ax.text(-0.5, 0, "词元", family=figures.monospace())

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib warns of a glyph that is missing
        figure = figures.draw(plot, None)
        assert len(figures.png(figure)) > 1000
    plt.close(figure)


def drawn(_):
    _, ax = plt.subplots()
    ax.set(title="头数与验证损失", xlabel="步数", xlim=(0, 8))
    ax.plot([0, 8], [0, 1], label="两个头")
    ax.legend()


def test_without_a_font_one_warning_says_what_to_install_and_the_figure_is_drawn(monkeypatch):
    monkeypatch.setattr(figures, "chinese_font", lambda: None)
    figures.warn_about_missing_font.cache_clear()
    assert figures.style() == figures.STYLE and figures.monospace() == ["monospace"]
    with language.using("zh"), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")  # matplotlib warns of every glyph that is missing, of every draw
        for _ in range(2):
            assert len(figures.png(figures.draw(drawn, None))) > 1000
    (only,) = (str(warning.message) for warning in said)
    assert "fonts-noto-cjk" in only and "请安装" in only
    with pytest.warns(UserWarning, match="missing from"):  # what is Chinese in an English figure is told by its glyphs
        figures.png(figures.draw(drawn, None))
    plt.close("all")
    figures.warn_about_missing_font.cache_clear()


@pytest.mark.parametrize("there, chosen", [
    ({"DejaVu Sans", "SimHei", "PingFang SC"}, "PingFang SC"),
    ({"DejaVu Sans"}, None),
])  # fmt: skip
def test_the_first_font_with_chinese_characters_is_chosen(monkeypatch, there, chosen):
    fonts = [SimpleNamespace(name=name, fname=f"{name}.ttf") for name in there]
    monkeypatch.setattr(figures.font_manager, "fontManager", SimpleNamespace(ttflist=fonts))
    monkeypatch.setattr(figures.font_manager, "findSystemFonts", lambda: ["DejaVu Sans.ttf"])
    assert figures.chinese_font.__wrapped__() == chosen


def test_a_font_that_came_after_matplotlib_made_its_list_is_found(monkeypatch):
    listed = [SimpleNamespace(name="DejaVu Sans", fname="old.ttf")]

    def addfont(path):
        assert path in ("new.ttc", "broken.ttf"), "those alone that are not listed"
        if path == "broken.ttf":
            raise RuntimeError("no font")
        listed.append(SimpleNamespace(name="SimHei", fname=path))

    monkeypatch.setattr(figures.font_manager, "fontManager", SimpleNamespace(ttflist=listed, addfont=addfont))
    monkeypatch.setattr(figures.font_manager, "findSystemFonts", lambda: ["old.ttf", "broken.ttf", "new.ttc"])
    assert figures.chinese_font.__wrapped__() == "SimHei"


def test_chinese_notebooks_are_made_for_jupyterlab_and_what_a_reader_edits_stays(project, tmp_path):
    notebook = parameters.notebook_of("1.1")
    assert chinese.write(parameters.notebooks(), tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == [notebook.name], "the other is in English alone"
    path = tmp_path / notebook.name
    book, source = nbformat.read(path, 4), nbformat.read(notebook, 4)
    assert re.match("# .*[\u4e00-\u9fff]", book.cells[0].source)
    assert [c.source for c in book.cells if c.cell_type == "code"] == [
        c.source for c in source.cells if c.cell_type == "code"
    ]
    book.cells[0].source = "mine"
    nbformat.write(book, path)
    assert chinese.write([notebook], tmp_path) == [path] and nbformat.read(path, 4).cells[0].source == "mine"
