"""Every catalogue holds every message, in Chinese; translations survive what notebooks and code become.

Of `lab.language`, `lab.commands.catalogues` and `lab.commands.translated`.
"""

import ast
import json
import warnings
from types import SimpleNamespace

import matplotlib.pyplot as plt
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from small_project import DICE, translate

from lab import figures, language
from lab.commands import catalogues, translated
from lab.engine import batch, parameters, runs
from lab.language import tr
from lab.study import Study

FOREIGN = [name for name in language.languages() if name != "en"]
NOTEBOOKS = parameters.notebooks()  # the lessons


# The lessons and the package

THERE = [(name, path) for name in FOREIGN for path in (None, *NOTEBOOKS) if language.catalogue(name, path).exists()]


@pytest.mark.parametrize("name, notebook", THERE, ids=lambda value: getattr(value, "stem", str(value)))
def test_a_catalogue_holds_all_that_is_said(name, notebook):
    found = catalogues.read(language.catalogue(name, notebook))
    assert catalogues.problems(found, catalogues.template(notebook)) == []


def test_every_catalogue_belongs_to_a_notebook():
    stems = {path.stem for path in NOTEBOOKS}
    for path in (runs.CHECKOUT / "notebooks" / "languages").rglob("*.po"):
        assert path.stem in stems and path.parent.name in FOREIGN, path


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_trial_of_a_notebook_says_anything(notebook):
    sources = [parameters.parsed(source) for kind, _, source in parameters.cells_of(notebook) if kind == "code"]
    nodes = [node for tree in sources for node in ast.walk(tree)]
    swept = {node.args[0].id for node in nodes if isinstance(node, ast.Call) and node.args
             and getattr(node.func, "attr", "") == "sweep" and isinstance(node.args[0], ast.Name)}  # fmt: skip
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and node.name in swept:
            assert "tr" not in {getattr(inner, "id", "") for inner in ast.walk(node)}, node.name


# What a catalogue is held to


@pytest.mark.parametrize("message, said, wrong", [
    ("A word", "一个词", ""),
    ("A word", "", "is not translated"),
    ("A word", "un mot", "is not in Chinese"),
    ("$d_{model}$ `code` 1.4", "$d_{model}$ `code` 1.4", ""),
    ("{n} heads", "{n} 个头", ""),
    ("{n} heads", "{m} 个头", "has other placeholders"),
    ("{n:.2f} heads", "{n} 个头", "has other placeholders"),
])  # fmt: skip
def test_what_is_wrong_with_a_translation_is_named(message, said, wrong):
    wanted, found = catalogues.Catalog(), catalogues.Catalog()
    wanted.add(message, flags=["python-brace-format"] if "heads" in message else [])
    found.add(message, said)
    problems = catalogues.problems(found, wanted)
    assert [wrong in problem for problem in problems] == [True] * bool(wrong)


def test_a_message_is_a_literal():
    code = 'tr("a")\nax.set(x=tr("{n} b", n=1))'
    assert catalogues.passed(code) == [("a", 1, False), ("{n} b", 2, True)]
    with pytest.raises(ValueError, match="line 1: tr.name.: a literal"):
        catalogues.passed("tr(name)")


# A notebook of the test's own

SOURCES = ["# Heads", "Nothing is measured here, and nothing is trained.", "Last words of this notebook."]


@pytest.fixture
def notebook(tmp_path):
    return write(
        tmp_path / "mine.ipynb", SOURCES, "import os\nfrom lab.language import tr\nprint(tr('{n} heads', n=4))"
    )


def write(path, sources, code):
    nbformat.write(new_notebook(cells=[*map(new_markdown_cell, sources), new_code_cell(code)]), path)
    return path


@pytest.fixture
def translations(notebook):
    return translate(notebook)


def test_a_catalogue_follows_its_notebook(notebook, translations):
    before = translations.read_bytes()
    assert catalogues.update("zh", notebook).read_bytes() == before, "nothing has changed"
    assert catalogues.problems(catalogues.read(translations), catalogues.template(notebook)) == []
    write(notebook, [SOURCES[0], SOURCES[1] + " Or is it?", "A new thought, unlike the others"], "print(1)")
    catalogues.update("zh", notebook)
    found = {m.id: (m.string, m.fuzzy) for m in catalogues.read(translations) if m.id}
    assert found == {
        "# Heads": ("译文 # He", False),
        SOURCES[1] + " Or is it?": ("译文 Noth", True),
        "A new thought, unlike the others": ("", False),
    }
    assert "#~" not in translations.read_text("utf-8"), "what is said no more is gone"
    assert len(catalogues.problems(catalogues.read(translations), catalogues.template(notebook))) == 2
    assert set(language.messages(translations)) == {"# Heads"}, "what is fuzzy is said in English"


def test_words_are_found_in_the_notebook_then_in_the_package_then_in_english(notebook, translations, monkeypatch):
    assert tr("{n} heads", n=4) == "4 heads" and tr("query") == "query" and tr("{braces}") == "{braces}"
    monkeypatch.setenv("LAB_LANGUAGE", "zh")
    assert tr("query") == "查询" and tr("{n} heads", n=4) == "4 heads"
    with language.using("zh", notebook):
        assert tr("{n} heads", n=4) == "译文 4" and tr("query") == "查询" and tr("nonsuch") == "nonsuch"
    with language.using("en"):
        assert tr("query") == "query"
    with language.using("fr", notebook):
        assert tr("query") == "query"


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


def test_a_named_run_of_one_language_stays_when_another_is_asked_for(project, tmp_path):
    (job,) = batch.plan(["1.1"], "quick", tmp_path, name="x")
    job.folder.mkdir(parents=True)
    runs.write_run(job.folder, {"profile": "quick", "own_parameters": {}, "language": "en"})
    batch.plan(["1.1"], "quick", tmp_path, name="x")
    with pytest.raises(parameters.Refused, match="choose another --name"):
        batch.plan(["1.1"], "quick", tmp_path, name="x", speak="zh")


@pytest.mark.slow
def test_an_executed_notebook_has_translated_cells_and_the_same_code(notebook, translations, tmp_path):
    code = notebook_code = "import lab\nfrom lab.language import tr\nlab.study(globals())\nprint(tr('{n} heads', n=4))"
    write(notebook, SOURCES, notebook_code)
    (job,) = batch.plan([notebook], "quick", tmp_path / "results", speak="zh")
    before = job.fingerprint
    job.run(runs.Options(store=tmp_path / "store"))
    book = nbformat.read(job.folder / "notebook.ipynb", 4)
    assert [c.source for c in book.cells if c.cell_type == "markdown"] == ["译文 # He", "译文 Noth", "译文 Last"]
    assert book.cells[-1].source == code and "译文 4" in json.dumps(book.cells[-1].outputs, ensure_ascii=False)
    assert runs.read_run(job.folder)["language"] == "zh"
    translations.write_text(translations.read_text("utf-8").replace("译文 Last", "最后"), "utf-8")
    assert job.fingerprint != before, "another translation is another run"


def squared(seed):
    return {"value": seed**2}


def test_no_trial_is_keyed_by_its_language(tmp_path, monkeypatch):
    monkeypatch.setattr("lab.engine.runs.project_root", lambda: tmp_path)
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
    figures.say_what_to_install.cache_clear()
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
    figures.say_what_to_install.cache_clear()


@pytest.mark.parametrize("there, chosen", [
    ({"DejaVu Sans", "SimHei", "PingFang SC"}, "PingFang SC"),
    ({"DejaVu Sans"}, None),
])  # fmt: skip
def test_the_first_font_with_chinese_characters_is_chosen(monkeypatch, there, chosen):
    fonts = [SimpleNamespace(name=name) for name in there]
    monkeypatch.setattr(figures.font_manager, "fontManager", SimpleNamespace(ttflist=fonts))
    assert figures.chinese_font.__wrapped__() == chosen


def test_chinese_notebooks_are_made_for_jupyterlab_and_what_a_reader_edits_stays(project, tmp_path):
    notebook = parameters.notebook_of("1.1")
    translate(notebook)
    assert translated.write("zh", tmp_path) == []
    assert [path.name for path in tmp_path.iterdir()] == [notebook.name], "the other is not translated"
    path = tmp_path / notebook.name
    book, source = nbformat.read(path, 4), nbformat.read(notebook, 4)
    assert book.cells[0].source.startswith("译文")
    assert [c.source for c in book.cells if c.cell_type == "code"] == [
        c.source for c in source.cells if c.cell_type == "code"
    ]
    book.cells[0].source = "mine"
    nbformat.write(book, path)
    assert translated.write("zh", tmp_path) == [path] and nbformat.read(path, 4).cells[0].source == "mine"
