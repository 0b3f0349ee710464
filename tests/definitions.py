"""Import functions and classes of a notebook as a module, without running its other cells."""

import ast
import contextlib
import json
import linecache
import sys
from pathlib import Path
from types import ModuleType

from lab import key, uses

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
DEFINING = (ast.FunctionDef, ast.ClassDef)


@contextlib.contextmanager
def definitions(stem, *names):
    """Yield a module with a notebook's imports and kinds, the definitions `names`, and all they use.

    `stem` is the beginning of the notebook's file name. The kinds are unregistered when the block ends.
    """
    (path,) = NOTEBOOKS.glob(f"{stem}*.ipynb")
    imports, known = statements(path)
    wanted = [name for name, node in known.items() if name in names or is_kind(node)]
    found = set()
    while wanted:
        name = wanted.pop()
        if name not in found:
            found.add(name)
            wanted += key.globals_of(compile(ast.unparse(known[name]), "<cell>", "exec")) & known.keys()
    nodes = [*imports, *(node for name, node in known.items() if name in found)]
    text = "\n\n".join(map(ast.unparse, nodes))
    module = ModuleType(f"cells_of_{path.stem}")
    file = f"<{module.__name__}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    sys.modules[module.__name__] = module
    try:
        exec(compile(text, file, "exec"), vars(module))
        yield module
    finally:
        forget_kinds(module.__name__)
        del sys.modules[module.__name__]


def statements(path):
    """(imports, {name: definition}) of the code cells of a notebook, as syntax trees; later definitions win."""
    imports, known = [], {}
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        for node in ast.parse(source).body if cell["cell_type"] == "code" and source[:1] != "%" else ():
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports.append(node)
            elif name := node.name if isinstance(node, DEFINING) else constant(node):
                known.pop(name, None)
                known[name] = node
    return imports, known


def constant(node):
    """The name of a constant, such as SIGNS = ("=", "."); "" for any other statement."""
    name = node.targets[0] if isinstance(node, ast.Assign) else None
    if not isinstance(name, ast.Name) or not name.id.isupper():
        return ""
    try:
        ast.literal_eval(node.value)
    except ValueError:
        return ""
    return name.id


def is_kind(node):
    return isinstance(node, ast.ClassDef) and any(keyword.arg == "kind" for keyword in node.keywords)


def forget_kinds(home):
    """Unregister the kinds that the module named `home` defines."""
    for seam in uses.SEAMS.values():
        for kind in [kind for kind, made in seam.kinds.items() if made.__module__ == home]:
            del seam.kinds[kind]
