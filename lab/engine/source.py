"""Source: statements as text that is the same on all Pythons, the names they use, and modules found without import.

A tree is hashed without docstrings, comments, layout, empty fields and module paths: equal on Python 3.11 to 3.13.
"""

import ast
import functools
import hashlib
import os
import symtable
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path

RUNS = ("lab.engine", "lab.trace")  # how trials run, not what
DEFINING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def normal(node):
    """A syntax tree as text, the same on every version of Python; docstrings and module paths are left out."""
    if isinstance(node, list):
        return f"[{','.join(map(normal, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    if isinstance(node, ast.Constant):
        return f"Constant({node.value!r})"
    fields = dict(ast.iter_fields(node))
    if isinstance(node, ast.ImportFrom):
        fields = {"names": node.names}
    if isinstance(node, (ast.Module, *DEFINING)) and node.body and _is_text(node.body[0]):
        fields["body"] = node.body[1:]
    shown = (f"{name}={normal(value)}" for name, value in fields.items() if value not in (None, []) and name != "ctx")
    return f"{type(node).__name__}({','.join(shown)})"


def _is_text(node):
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def outside_names(tree):
    """The names that a definition takes from outside itself, defaults and decorators included."""

    def names(table):
        for symbol in table.get_symbols():
            if symbol.is_global() if table.get_type() != "module" else symbol.is_referenced():
                yield symbol.get_name()
        for child in table.get_children():
            yield from names(child)

    return set(names(symtable.symtable(ast.unparse(tree), "<definition>", "exec")))


def chains(tree):
    """The pairs (name, attributes) in a tree: lab.models.Transformer is ("lab", ("models", "Transformer"))."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)) and id(node) not in inner:
            attributes = ()
            while isinstance(node, ast.Attribute):
                node, attributes = node.value, (node.attr, *attributes)
            if isinstance(node, ast.Name):
                yield node.id, attributes


def imported(node, package=""):
    """{name: (module, name there or None)} of an import statement in a package."""
    if isinstance(node, ast.Import):
        return {
            a.asname or a.name.split(".")[0]: (a.name if a.asname else a.name.split(".")[0], None) for a in node.names
        }
    above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
    base = ".".join([*above, *([node.module] if node.module else [])])
    return {a.asname or a.name: (base, a.name) for a in node.names}


def modules_imported(tree, package=""):
    """Names of all modules that a tree may import anywhere, and of some that are none but names in one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for base, name in imported(node, package).values():
                yield from (base, f"{base}.{name}")


class Reading:
    """What is read off one statement: the names it uses and imports, what it calls, whether it makes a list or dict."""

    def __init__(self, tree, package):
        self.chains, self.outside, self.inside, self.calls = set(chains(tree)), outside_names(tree), {}, []
        self.assigns = isinstance(tree, (ast.Assign, ast.AnnAssign))
        self.displays = any(isinstance(node, (ast.List, ast.Dict, ast.Set)) for node in ast.walk(tree))
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.inside |= imported(node, package)
            elif isinstance(node, ast.Call) and not isinstance((node.args or [None])[0], ast.Constant):
                self.calls.append(getattr(node.func, "id", None) or getattr(node.func, "attr", "").replace("eval", ""))


class Definition:
    """The statements that define a name: their hash, and a `Reading` of each."""

    def __init__(self, trees, package):
        self.hash = digest(";".join(map(normal, trees)))
        self.readings = [Reading(tree, package) for tree in trees]


class Module:
    """A file of source as {name: the statements that define it} and {name: (module, name there) that it imports}.

    Under "" stand statements that bind no name: they run whenever the module does.
    """

    def __init__(self, tree, package):
        self.package, self.definitions, self.imports, self._read = package, {}, {}, {}
        for statement in tree.body:
            bound = set()
            for node in [statement] if isinstance(statement, DEFINING) else ast.walk(statement):
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    self.imports |= imported(node, package)
                    bound.add(None)
                elif isinstance(node, DEFINING) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
                    bound.add(node.name if isinstance(node, DEFINING) else node.id)
            for name in (bound - {None}) or ({""} - bound if not bound and not _is_text(statement) else ()):
                self.definitions.setdefault(name, []).append(statement)

    def definition(self, name):
        """The `Definition` of a name, read once."""
        if name not in self._read:
            self._read[name] = Definition(self.definitions[name], self.package)
        return self._read[name]


def module(name, ours=()):
    """The module of that name where it is ours or the user's, else None; packages named in `ours` count as such."""
    path = source_file(name)
    if path is None or name.startswith(RUNS) or (name.split(".")[0] not in ("lab", *ours) and is_installed(path)):
        return None
    state = os.stat(path)
    return _module(name, path, state.st_mtime_ns, state.st_size)


def source_file(name):
    """The Python file of a module, found without importing it; None for what has none."""
    path = loaded = spec = None
    for n, _ in enumerate(parts := name.split("."), 1):
        if n > 1 and path is None:
            return None  # inside a module
        if (loaded := sys.modules.get(part := ".".join(parts[:n]))) is None:
            spec = PathFinder.find_spec(part, path)
        else:
            spec = getattr(loaded, "__spec__", None)
        path = getattr(spec, "submodule_search_locations", None)
    file = getattr(spec, "origin", None) or getattr(loaded, "__file__", None)
    return file if file and file.endswith(".py") and os.path.isfile(file) else None


@functools.cache
def is_installed(path):
    """Whether a file belongs to the standard library or to an installed package."""
    library = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib"))
    return path.startswith(library) or not {"site-packages", "dist-packages"}.isdisjoint(Path(path).parts)


_in_use = {}  # path -> (spec, text) of modules that this process runs, as they were when first seen


@functools.lru_cache(maxsize=1024)
def _module(name, path, changed, size):
    text, loaded = Path(path).read_text("utf-8"), getattr(sys.modules.get(name), "__spec__", None)
    if loaded is not None:
        spec, before = _in_use.setdefault(path, (loaded, text))
        if spec is not loaded:  # reloaded
            _in_use[path] = loaded, text
        elif before != text and normal(ast.parse(before)) != normal(ast.parse(text)):
            _module.cache_clear()
            raise RuntimeError(f"{path} was edited after it was imported: restart the kernel, or reload {name}")
    return Module(ast.parse(text), name if Path(path).name == "__init__.py" else name.rpartition(".")[0])
