"""Lessons say all in both languages, and type no result that a table might deny."""

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
    """(English, Chinese) of a text; Chinese is "" where there is none."""
    found = FOLDED.search(text)
    return (text[: found.start()], found[1]) if found else (text, "")


def sources(notebook, kind):
    return ["".join(cell["source"]) for cell in CELLS[notebook] if cell["cell_type"] == kind]


def test_there_are_fourteen_lessons():
    assert len(LESSONS) == 14


@each_lesson
def test_no_result_is_typed_into_prose(notebook):
    answer = files.answer_of(notebook)  # which `study.told` compares with the run
    texts = [sides(text)[0] for text in sources(notebook, "markdown")]
    text = "\n".join(text for text in texts if answer not in text)
    text = re.sub(r"\$[^$]*\$|`[^`]*`|\([^)]*https?:[^)]*\)", " x ", text)  # formulas, code, addresses
    prose = re.sub(r"(^#|exercise) 1\.[12]\d\b", "", text)  # numbers of exercises
    assert re.findall(r"(?<![\w.§$\\-])\d*\.\d{2,}", prose) == []


# What is no prose: code, formulas, targets of links, HTML and addresses.
NO_PROSE = re.compile(r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|\]\([^)]*\)|<[^>]+>|https?://\S+", re.DOTALL)


def exact(text):
    """Its formulas without the words in them, its code words and the targets of its links."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found = re.findall(r"\$\$.*?\$\$|\$[^$]+\$|`[^`]+`|\]\([^)]+\)", text, re.DOTALL)
    return {re.sub(r"\\text\{[^}]*\}|\s", "", each) for each in found}


@each_lesson
def test_a_lesson_says_all_in_both_languages(notebook):
    for text in sources(notebook, "markdown"):
        english, chinese = sides(text)
        assert not re.search("[\u4e00-\u9fff]{4}", english), text
        has_prose = re.search(r"[A-Za-z]{2,}", NO_PROSE.sub(" ", english))
        assert re.search("[\u4e00-\u9fff]", chinese) or not has_prose, text
        assert exact(english) == exact(chinese), text


@each_lesson
def test_every_figure_says_what_it_shows(notebook):
    """By the docstring of its drawing function, in English."""
    nodes = [node for cell in sources(notebook, "code") for node in ast.walk(ast.parse(cell))]
    told = {node.name: ast.get_docstring(node) or "" for node in nodes if isinstance(node, ast.FunctionDef)}
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "figure":
            caption = told.get(getattr(node.args[2], "id", ""), "")
            assert caption and not re.search("[\u4e00-\u9fff]", caption), ast.unparse(node)


@each_lesson
def test_cells_that_give_an_answer_are_tagged(notebook):
    """So that nbconvert's TagRemovePreprocessor leaves a lesson without its answers."""
    for cell in CELLS[notebook]:
        source, tags = "".join(cell["source"]), cell["metadata"].get("tags", [])
        gives = any(f"study.{verb}(" in source for verb in ("judge", "say", "finish"))
        if cell["cell_type"] == "code":
            assert gives == ("answer" in tags), source
