"""Imports in `lab`: between its parts only as allowed, and only declared packages."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import lab

ROOT = Path(lab.__file__).parent
# {part of lab: other parts that its files may import}; all parts may import `lab.uses`
ALLOWED = {
    "__init__": set(),
    "uses": set(),
    "names": set(),
    "device": set(),
    "files": set(),
    "workers": set(),
    "arithmetic": set(),
    "state": {"arithmetic"},
    "models": {"names"},
    "tasks": set(),
    "measure": {"arithmetic"},
    "training": {"names"},
    "pretrained": {"models"},
    "reference": {"models", "recipes", "training", "arithmetic"},
    "recipes": {"models", "tasks", "training", "measure", "device", "state"},
    "key": {"STARTED", "tasks", "reference"},
    "trials": {"arithmetic", "device", "key", "state", "workers"},
    "claims": {"files", "measure"},
    "charts": {"measure"},
    "interact": {"charts", "trials"},
    "parameters": {"files", "names"},
    "study": {"charts", "claims", "device", "files", "interact", "measure", "parameters"} | {"trials", "workers"},
    "browse": {"claims", "files"},
    "run": {"browse", "check", "device", "files", "parameters", "publish", "runs"},
    "runs": {"files", "parameters"},
    "check": {"files", "runs", "trials"},
    "publish": {"charts", "claims", "files", "runs", "trials"},
}
FILES = sorted(ROOT.rglob("*.py"))


def imported(path):
    """Yield the parts of lab that a file imports, also inside functions."""
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
def test_files_import_only_the_allowed_parts_of_lab(path):
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert set(imported(path)) <= ALLOWED[part] | {part, "uses"}


def from_elsewhere(path):
    """Yield (package, whether the import is inside a function) for every third-party import of a file."""
    tree = ast.parse(path.read_text("utf-8"))
    inside = {node for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for node in ast.walk(f)}
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        for name in {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"lab"}:
            yield name, node in inside


def plain(requirement):
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def test_imported_packages_are_declared_dependencies():
    """Required packages may be imported anywhere, packages of an extra only inside functions."""
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    always = {plain(each) for each in project["dependencies"]} | {"distributed"}  # dask[distributed]
    bought = always | {plain(each) for name in ("pretrained",) for each in extras[name]}
    owners = packages_distributions()
    for path in FILES:
        for name, guarded in from_elsewhere(path):
            declared = bought if guarded else always
            assert {plain(owner) for owner in owners.get(name, [name])} & declared, f"{path}: {name} is not declared"
