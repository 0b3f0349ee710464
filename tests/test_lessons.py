"""Lessons that are written: their shape, and that no prose of theirs types what a table might deny."""

import ast
import json
import re

import pytest

from lab.claims import claims
from lab.language import sides
from lab.trials import parameters

LEDGER = claims.ledger()
CELLS = {path: json.loads(path.read_text("utf-8"))["cells"] for path in parameters.notebooks()}


def mine(notebook):
    return [c for c in LEDGER.values() if c.exercise == parameters.exercise_of(notebook)]


def written(notebook):
    return bool(mine(notebook)) and all(c.place == "lesson" for c in mine(notebook))


LESSONS = [notebook for notebook in CELLS if written(notebook)]
each_lesson = pytest.mark.parametrize("notebook", LESSONS, ids=lambda path: path.stem)


def code_of(notebook):
    return ["".join(cell["source"]) for cell in CELLS[notebook] if cell["cell_type"] == "code"]


def prose_of(notebook):
    """Its English Markdown without formulas, code spans and addresses."""
    texts = ["".join(cell["source"]) for cell in CELLS[notebook] if cell["cell_type"] == "markdown"]
    text = "\n".join(sides(text)[0] for text in texts)
    return re.sub(r"\$[^$]*\$|`[^`]*`|\([^)]*https?:[^)]*\)", " x ", text)


def test_there_is_a_lesson():
    assert LESSONS


@each_lesson
def test_no_result_is_typed_into_prose(notebook):
    prose = re.sub(r"(^#|exercise) 1\.[12]\d\b", "", prose_of(notebook))  # numbers of exercises
    assert re.findall(r"(?<![\w.§$\\-])\d*\.\d{2,}", prose) == []


@each_lesson
def test_every_figure_says_what_it_shows(notebook):
    """By the docstring of its drawing function."""
    nodes = [node for cell in code_of(notebook) for node in ast.walk(parameters.parsed(cell))]
    told = {node.name: ast.get_docstring(node) or "" for node in nodes if isinstance(node, ast.FunctionDef)}
    for node in nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "figure":
            assert told.get(getattr(node.args[2], "id", "")), ast.unparse(node)


@each_lesson
def test_cells_that_give_an_answer_are_tagged(notebook):
    """So that nbconvert's TagRemovePreprocessor leaves a lesson without its answers."""
    for cell in CELLS[notebook]:
        source, tags = "".join(cell["source"]), cell["metadata"].get("tags", [])
        gives = any(f"study.{verb}(" in source for verb in ("judge", "say", "finish"))
        assert (cell["cell_type"] == "code" and gives) == ("answer" in tags), source
