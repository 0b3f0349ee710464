"""A notebook's definitions as a module, to hash or run its trials without its cells."""

import ast
import linecache
import re
import sys
from contextlib import contextmanager
from types import ModuleType

from lab import trace
from lab.files import cells_of
from lab.trials.syntax import DEFINING, digest, is_kind, names_used, normal


def parsed(source):
    """The syntax tree of the source of one cell or of several; magics are allowed."""
    try:
        return ast.parse(source)
    except SyntaxError:
        from IPython.core.inputtransformer2 import TransformerManager

        return ast.parse(TransformerManager().transform_cell(source))


@contextmanager
def as_module(notebook, names):
    """Yield a module of a notebook's definitions; it exists while the block runs.

    The module holds all imports of the notebook, its registered kinds, the functions and classes
    called `names`, and all that these use. Where a name is defined twice, the last definition is
    taken, as after a run. The module's attribute `failed` maps the name of each definition that
    does not work outside the notebook to its error.
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
    # One name per notebook, so that the same kinds are registered each time.
    module = ModuleType(f"cells_{re.sub(r'[^A-Za-z0-9]', '_', notebook.stem)}")
    module.failed = {}
    text = "\n\n".join(map(ast.unparse, [*imports, *ordered]))
    file = f"<{module.__name__}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    sys.modules[module.__name__] = module
    try:
        for node in ast.parse(text).body:
            try:
                exec(compile(ast.Module([node], []), file, "exec"), vars(module))
            except Exception as error:  # it needs a variable of the notebook
                module.failed[getattr(node, "name", "")] = f"{type(error).__name__}: {error}"
        yield module
    finally:
        forget_kinds(module.__name__)
        del sys.modules[module.__name__]
        linecache.cache.pop(file, None)


def forget_kinds(home):
    """Unregister the kinds that the module named `home` defines."""
    for seam in trace.SEAMS.values():
        for kind in [kind for kind, made in seam.kinds.items() if made.__module__ == home]:
            del seam.kinds[kind]


def definitions(notebook):
    """(imports, {name: function or class}) of a notebook's code cells: syntax trees in order."""
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
    """The hash of a notebook's code cells, without comments and layout."""
    return digest(
        ";".join(normal(parsed(source)) for kind, _, source in cells_of(notebook) if kind == "code")
    )
