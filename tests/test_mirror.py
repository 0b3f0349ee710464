"""Tests stand where a reader looks for them: in the place that mirrors `lab`, or where a docstring names the file."""

import ast
import re
from pathlib import Path

import pytest

import lab

ROOT, TESTS = Path(lab.__file__).parent, Path(__file__).parent
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py") if path.name != "__init__.py")
TREES = {path: ast.parse(path.read_text("utf-8")) for path in sorted(TESTS.rglob("test_*.py"))}
NAMED = " ".join(ast.get_docstring(tree) or "" for tree in TREES.values())


@pytest.mark.parametrize("path", FILES, ids=Path.as_posix)
def test_a_file_of_lab_has_its_tests(path):
    name = ".".join(("lab", *path.with_suffix("").parts))
    assert (TESTS / path.with_name(f"test_{path.name}")).exists() or re.search(rf"`{re.escape(name)}`", NAMED)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(lab\.[\w.]+)`", NAMED))))
def test_what_a_docstring_names_is_there(name):
    assert (ROOT.parent / Path(*name.split("."))).with_suffix(".py").exists()


def test_what_tests_share_stands_in_no_test():
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            taken = [node.module] if isinstance(node, ast.ImportFrom) else []
            taken += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not [name for name in taken if (name or "").split(".")[-1].startswith("test_")], path


def test_no_two_test_files_have_one_name():
    """Pytest imports each by its name alone."""
    names = [path.name for path in TREES]
    assert sorted(names) == sorted(set(names))
