"""`lab` imports in one direction, and nothing happens at import."""

import ast
from pathlib import Path

import pytest

import lab

ROOT = Path(lab.__file__).parent
# What the files of each part may import of lab besides themselves and `lab.trace`, to which everyone reports.
ALLOWED = {
    "models": set(),
    "tasks": set(),
    "measure": set(),
    "training": set(),
    "engine": set(),
    "ledger": {"engine"},
    "figures": set(),
    "charts": {"figures", "measure"},
    "pretrained": {"models"},
    "recipes": {"models", "tasks", "training", "measure", "engine"},
}
FILES = sorted(path for path in ROOT.rglob("*.py") if path.relative_to(ROOT).parts[0].removesuffix(".py") in ALLOWED)


def imported(path):
    """The parts of lab that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("lab."))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_point_one_way(path):
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert set(imported(path)) <= ALLOWED[part] | {part, "trace"}
