"""What the page on the package lists: every kind that is registered, with its options, and the modules of the lab."""

import ast
import inspect
from pathlib import Path

import lab.models  # noqa: F401  registers the kinds
from lab import trace

PACKAGE = Path(lab.__file__).parent


def listed():
    """[(seam, its docstring, [(kind, options, docstring)])] of all that the lab registers."""
    found = []
    for name, seam in sorted(trace.SEAMS.items()):
        own = {kind: variant for kind, variant in seam.kinds.items() if variant.__module__.startswith("lab.")}
        kinds = [(kind, options(variant), inspect.getdoc(variant) or "") for kind, variant in sorted(own.items())]
        found.append((name, inspect.getdoc(seam) or "", kinds))
    return found


def options(variant):
    """The options of a kind with their defaults, as they are written."""
    taken = inspect.signature(variant.__init__).parameters.values()
    return ", ".join(str(each) for each in taken if each.kind is each.KEYWORD_ONLY)


def modules():
    """[(name, first line of its docstring)] of every module of the lab."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        said = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        found.append((name, said.partition("\n")[0]))
    return found
