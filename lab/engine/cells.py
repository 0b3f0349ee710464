"""A notebook's definitions as a module: its trials can be followed, or run by themselves, while no cell runs."""

import ast
import re
import sys
import tempfile
from contextlib import contextmanager
from importlib import invalidate_caches
from pathlib import Path

from lab.engine.parameters import cells_of, parsed
from lab.engine.source import DEFINING, digest, normal, outside_names


@contextmanager
def as_module(notebook, names):
    """The name of a module, there while the block runs, with all imports of a notebook and the functions and classes
    that `names` and what they use call for; of what is defined twice the last one, as after a run.
    """
    imports, known = definitions(notebook)
    wanted, found = [name for name in names if name in known], {}
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = known[name]
            wanted += outside_names(known[name]) & known.keys()
    ordered = [each for name, each in known.items() if name in found]
    with tempfile.TemporaryDirectory(prefix="lab-cells-") as folder:
        module = f"cells_{re.sub(r'[^A-Za-z0-9]', '_', notebook.stem)}_{Path(folder).name[-8:].replace('-', '_')}"
        (Path(folder) / f"{module}.py").write_text("\n\n".join(map(ast.unparse, [*imports, *ordered])), "utf-8")
        sys.path.insert(0, folder)
        invalidate_caches()
        try:
            yield module
        finally:
            sys.path.remove(folder)
            sys.modules.pop(module, None)


def definitions(notebook):
    """(imports, {name: function or class}) of a notebook's code cells, as syntax trees in their order."""
    imports, known = [], {}
    for kind, _, source in cells_of(notebook):
        for node in parsed(source).body if kind == "code" else ():
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                imports.append(node)
            elif isinstance(node, DEFINING):
                known.pop(node.name, None)
                known[node.name] = node
    return imports, known


def hash_of(notebook):
    """The hash of a notebook's code cells as they run: without comments and layout."""
    return digest(";".join(normal(parsed(source)) for kind, _, source in cells_of(notebook) if kind == "code"))


def own_kinds(notebook):
    """The names of the classes by which a notebook registers kinds."""
    classes = (node for node in definitions(notebook)[1].values() if isinstance(node, ast.ClassDef))
    return [node.name for node in classes if any(keyword.arg == "kind" for keyword in node.keywords)]
