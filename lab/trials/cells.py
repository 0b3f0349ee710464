"""A notebook's definitions as a module: its trials can be followed, or run by themselves, while no
cell runs.
"""

import ast
import linecache
import re
import sys
from contextlib import contextmanager
from types import ModuleType

from lab import trace
from lab.trials.parameters import cells_of, parsed
from lab.trials.syntax import DEFINING, digest, is_kind, names_used, normal


@contextmanager
def as_module(notebook, names):
    """A module, there while the block runs, with all imports of a notebook, its kinds, and the
    functions and classes that `names` and what they use call for; of what is defined twice the last
    one, as after a run. `failed` of it tells {name: error} of what cannot be defined apart from the
    notebook.
    """
    imports, known = definitions(notebook)
    wanted = [name for name, node in known.items() if name in names or is_kind(node)]
    found = {}
    while wanted:
        name = wanted.pop()
        if name not in found:
            found[name] = known[name]
            wanted += names_used(known[name]) & known.keys()
    ordered = [node for name, node in known.items() if name in found]
    module = ModuleType(
        f"cells_{re.sub(r'[^A-Za-z0-9]', '_', notebook.stem)}"
    )  # one name: its kinds are the same again
    module.failed = {}
    text = "\n\n".join(map(ast.unparse, [*imports, *ordered]))
    file = f"<{module.__name__}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    sys.modules[module.__name__] = module
    try:
        for node in ast.parse(text).body:
            try:
                exec(compile(ast.Module([node], []), file, "exec"), vars(module))
            except Exception as error:  # it needs a value of the notebook's
                module.failed[getattr(node, "name", "")] = f"{type(error).__name__}: {error}"
        yield module
    finally:
        forget_kinds(module.__name__)
        del sys.modules[module.__name__]
        linecache.cache.pop(file, None)


def forget_kinds(home):
    """Unregister the kinds that the module of this name defines."""
    for seam in trace.SEAMS.values():
        for kind in [kind for kind, made in seam.kinds.items() if made.__module__ == home]:
            del seam.kinds[kind]


def definitions(notebook):
    """(imports, {name: function or class}) of a notebook's code cells, as syntax trees in their
    order.
    """
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
    return digest(
        ";".join(normal(parsed(source)) for kind, _, source in cells_of(notebook) if kind == "code")
    )
