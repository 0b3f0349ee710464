"""Lessons 1.1 to 1.14: complete in English and Chinese; `told` checks the results in their text."""

import ast
import json
import re

import pytest

from lab import files

CELLS = {path: json.loads(path.read_text("utf-8"))["cells"] for path in files.notebooks()}
LESSONS = [path for path in CELLS if int(path.stem[:2]) <= 14]
each_lesson = pytest.mark.parametrize("notebook", LESSONS, ids=lambda path: path.stem)
FOLDED = re.compile(r"\n*<details><summary>中文</summary>\n\n(.*?)\n\n</details>\s*$", re.DOTALL)


def sides(text):
    """(English, Chinese) parts of a text; Chinese is "" if missing."""
    match = FOLDED.search(text)
    return (text[: match.start()], match[1]) if match else (text, "")


def sources(notebook, kind):
    return ["".join(cell["source"]) for cell in CELLS[notebook] if cell["cell_type"] == kind]


def test_fourteen_exercise_notebooks_exist():
    assert len(LESSONS) == 14


@each_lesson
def test_numbers_with_two_or_more_decimals_in_the_text_are_checked_by_told(notebook):
    answer = files.answer_of(notebook)  # which `study.told` checks against the run
    texts = [sides(text)[0] for text in sources(notebook, "markdown")]
    text = "\n".join(text for text in texts if answer not in text)
    text = re.sub(r"\$[^$]*\$|`[^`]*`|\([^)]*https?:[^)]*\)", " x ", text)  # formulas, code, URLs
    prose = re.sub(r"(^#|exercise) 1\.[12]\d\b", "", text)  # exercise numbers
    numbers = re.findall(r"(?<![\w.§$\\-])\d*\.\d{2,}", prose)
    told = " ".join(numbers_told(notebook))
    assert [number for number in numbers if number not in told] == []


def numbers_told(notebook):
    """The numbers that `study.told` compares with the run, as words."""
    for cell in sources(notebook, "code"):
        for node in ast.walk(ast.parse(cell)):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "told":
                yield from (c.value for c in ast.walk(node) if isinstance(getattr(c, "value", 0), str))


# Parts that are not prose: code, formulas, link targets, HTML and URLs
NOT_PROSE = re.compile(r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|\]\([^)]*\)|<[^>]+>|https?://\S+", re.DOTALL)


def exact(text):
    """Formulas without \\text, code spans and link targets of a text."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    parts = re.findall(r"\$\$.*?\$\$|\$[^$]+\$|`[^`]+`|\]\([^)]+\)", text, re.DOTALL)
    return {re.sub(r"\\text\{[^}]*\}|\s", "", each) for each in parts}


@each_lesson
def test_every_text_has_both_languages_with_equal_formulas_code_and_links(notebook):
    for text in sources(notebook, "markdown"):
        english, chinese = sides(text)
        assert not re.search("[\u4e00-\u9fff]{4}", english), text
        has_prose = re.search(r"[A-Za-z]{2,}", NOT_PROSE.sub(" ", english))
        assert re.search("[\u4e00-\u9fff]", chinese) or not has_prose, text
        assert exact(english) == exact(chinese), text


@each_lesson
def test_every_figure_has_an_english_caption(notebook):
    """The docstring of the plot function is the English caption."""
    nodes = [node for cell in sources(notebook, "code") for node in ast.walk(ast.parse(cell))]
    docstrings = {node.name: ast.get_docstring(node) or "" for node in nodes if isinstance(node, ast.FunctionDef)}
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "figure":
            caption = docstrings.get(getattr(node.args[2], "id", ""), "")
            assert caption and not re.search("[\u4e00-\u9fff]", caption), ast.unparse(node)


@each_lesson
def test_answer_cells_are_tagged(notebook):
    """The tag lets nbconvert's TagRemovePreprocessor remove the answers."""
    for cell in CELLS[notebook]:
        source, tags = "".join(cell["source"]), cell["metadata"].get("tags", [])
        has_answer = any(f"study.{verb}(" in source for verb in ("judge", "scorecard", "say", "finish"))
        if cell["cell_type"] == "code":
            assert has_answer == ("answer" in tags), source
