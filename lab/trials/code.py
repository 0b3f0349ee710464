"""The code behind a trial, as parts with a hash each.

The parts are the trial and the functions and classes of its notebook that it uses, and every module
of `lab` or of the user that these import, directly or through another, each as a whole. Installed
packages count by their versions.

A registered kind (`class Alibi(Position, kind="alibi")`) is left out of its module: it counts where
code uses its Python name or inherits from it, and, when it is chosen by a word, where a trial looks
that word up (`lab.trace`). So a new kind makes no other trial stale.
"""

import ast
import functools
import inspect
import itertools
import json
import linecache
import os
import sys
import sysconfig
import textwrap
import typing
from importlib.machinery import PathFinder
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType

from lab import trace
from lab.trials.syntax import Part, digest, is_kind, names_used, normal

RUN = "lab.trials.run"  # part of every trial
OUTSIDE = (  # how trials are found, kept, judged and drawn: no number depends on it
    "lab.book",
    "lab.charts",
    "lab.claims",
    "lab.device",
    "lab.figures",
    "lab.guesses",
    "lab.language",
    "lab.names",
    "lab.shown",
    "lab.states",
    "lab.study",
    "lab.tools",
    "lab.trace",
    "lab.trials",
    "lab.turn",
)


class ImpureTrial(ValueError):
    """A trial depends on something that is neither a parameter nor code whose source can be read."""


class Code:
    """Parts {name: hash} gathered from functions, classes and modules."""

    def __init__(self):
        self.parts = {}
        self.modules = set()
        self._cached = []  # functions of a notebook that have a cache
        self._seen = set()

    @property
    def digest(self):
        """Of the hashes alone: a module that is only renamed changes nothing."""
        return digest(json.dumps(sorted(self.parts.values())))

    def clear_caches(self):
        """Empty the caches of the user's functions, which may hold what a file said before."""
        for name in self.modules:
            if not name.startswith("lab."):
                values = vars(sys.modules[name]).values() if name in sys.modules else ()
                self._cached += [value for value in values if hasattr(value, "cache_clear")]
        for function in self._cached:
            function.cache_clear()

    def add(self, value, user, name, attributes=()):
        """Count what `name`, or `name.attributes` of a module, means in the code of `user`.

        ImpureTrial for data.
        """
        if isinstance(value, ModuleType):
            self.add_module(value.__name__)
            there = getattr(value, attributes[0], None) if attributes else None
            if isinstance(there, (ModuleType, FunctionType, type)):
                self.add(there, user, name, attributes[1:])
        elif isinstance(value, (FunctionType, type)) or hasattr(value, "__wrapped__"):
            self.add_object(value)
        elif home := home_of(value):
            self.add_module(home)
        else:
            raise ImpureTrial(
                f"{user} reads the variable {name!r} ({type(value).__name__}) from outside itself, so its result would "
                f"not follow from its parameters: pass {name!r} as a parameter, or set it inside the function"
            )

    def add_object(self, item):
        """Count a function or class."""
        if hasattr(item, "cache_clear") and not item.__module__.startswith("lab."):
            self._cached.append(item)
        while hasattr(item, "__wrapped__") and not is_typed_in(home_of_code(item)):
            item = item.__wrapped__  # what a package's decorator made of a function
        if is_typed_in(item.__module__):
            self._add_typed_in(item)
            return
        self.add_module(item.__module__)
        self._add_kind_named(item.__module__, item.__qualname__)
        for name, value in closed_over(item).items():
            self.add(value, item.__qualname__, name)

    def _add_typed_in(self, item):
        """Count a function or class that was typed into a notebook, and what its names mean there."""
        if item in self._seen:
            return
        self._seen.add(item)
        tree = tree_of(item)
        part = Part([tree])
        refuse_computed(part, item.__qualname__)
        self.parts[item.__qualname__] = part.hash
        for home, name in part.imports:
            self._add_imported(home, name)
        scope = vars(sys.modules[item.__module__])
        if isinstance(item, FunctionType):
            scope = item.__globals__ | closed_over(item)
        used = names_used(tree)
        for name, attributes in part.chains:
            if name in used and name in scope and not name.startswith("__"):
                self.add(scope[name], item.__qualname__, name, attributes)

    def add_module(self, name):
        """Count a module of `lab` or of the user without its registered kinds, and all that it
        imports.
        """
        if name in self.modules or self._is_outside(name):
            return
        found = module(name)
        if found is None:
            return
        self.modules.add(name)
        if "." in name:
            self.add_module(name.rpartition(".")[0])
        self.parts[name] = found.rest.hash
        self._follow(found, found.rest)

    def add_kind(self, home, name):
        """Count a registered kind by the module that defines it and its Python name there."""
        if (home, name) in self._seen:
            return
        self._seen.add((home, name))
        found = module(home)
        self.parts[f"{home}.{name}"] = found.kinds[name].hash
        self.add_module(home)
        self._follow(found, found.kinds[name])

    def _is_outside(self, name):
        return name == "lab" or any(name == each or name.startswith(f"{each}.") for each in OUTSIDE)

    def _follow(self, found, part):
        """Count what a part of a module imports, and the registered kinds that it names."""
        for home, name in part.imports:
            self._add_imported(home, name)
        known = found.rest.bound | part.bound
        for name, attributes in part.chains:
            if name in found.kinds:
                self.add_kind(found.name, name)
            elif name in known and attributes:
                home, there = known[name]
                self._add_kind_named(f"{home}.{there}" if there else home, attributes[0])

    def _add_imported(self, home, name):
        """Count what `import home` or `from home import name` leads to."""
        self.add_module(home)
        if name == "*" and module(home):
            raise ImpureTrial(
                f"from {home} import *: import the names that are used, so that they can be followed"
            )
        if name:
            self.add_module(f"{home}.{name}")
            self._add_kind_named(home, name)

    def _add_kind_named(self, home, name):
        """Count what a module calls by this name, where it is a registered kind."""
        found = None if self._is_outside(home) else module(home)
        if found and name in found.kinds:
            self.add_kind(home, name)
        elif found and name in found.rest.bound:  # a package hands it on
            there, original = found.rest.bound[name]
            if original and (there, original) != (home, name):
                self._add_kind_named(there, original)


def code_of(item):
    """The `Code` of a trial or of a class.

    ImpureTrial where it reads data from outside, or cannot be followed; RuntimeError where a module
    was edited after this process imported it.
    """
    found = Code()
    found.parts[RUN] = module(RUN).rest.hash
    found.add_object(item)
    if isinstance(item, FunctionType):
        refuse_computed(Part([tree_of(item)]), item.__qualname__)
    return found


def refuse_computed(part, user):
    """ImpureTrial where code imports or evaluates what it computes, which nobody can follow."""
    if part.computed:
        raise ImpureTrial(
            f"{user} calls {part.computed[0]}() with what is computed, which nobody can follow: "
            "write the import, or the code, out"
        )


def kind_hash(name):
    """The hash of a registered kind, such as "Position.rotary"; None where there is no such kind."""
    seam, _, kind = name.partition(".")
    variant = dict.get(trace.SEAMS[seam].kinds, kind) if seam in trace.SEAMS else None
    if variant is None:
        return None
    found = Code()
    found.add_object(variant)
    return found.digest


# Functions and classes


def is_typed_in(name):
    """Whether a module is a notebook, a script or what was typed into Python: only what is named of
    it counts.
    """
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return name == "__main__" or (
        source_file(name) is None and getattr(spec, "origin", None) is None
    )


def home_of_code(item):
    """The module in which the code of a function or class stands, which a decorator may say is
    another.
    """
    return item.__globals__["__name__"] if isinstance(item, FunctionType) else type(item).__module__


def closed_over(function):
    """{name: value} of what a function takes from the function around it, as far as it is set."""
    found = {}
    names = function.__code__.co_freevars if isinstance(function, FunctionType) else ()
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not set yet
            continue
    return found


def home_of(value):
    """The module that binds a value, such as a constant that a notebook imported; None for data
    made while running.
    """
    if isinstance(value, BuiltinFunctionType) or typing.get_origin(value):
        return getattr(value, "__module__", None) or "builtins"
    if isinstance(
        value, (int, str, bytes, type(None))
    ):  # shared between modules by the interpreter
        return None
    for name, found in list(sys.modules.items()):
        if isinstance(found, ModuleType) and not is_typed_in(name):
            if any(held is value for held in list(vars(found).values())):
                return name
    return None


def tree_of(item):
    """The syntax tree of one function or class. ImpureTrial where its source cannot be read."""
    try:
        source = (
            inspect.getsource(item.__code__)
            if isinstance(item, FunctionType)
            else _class_source(item)
        )
        return ast.parse(textwrap.dedent(source)).body[0]
    except (OSError, SyntaxError, IndexError):
        raise ImpureTrial(
            f"the source of {item.__qualname__} cannot be read, so a change of it would go unseen: "
            "write it as a def or class in a notebook cell or file"
        ) from None


def _class_source(cls):
    """The source of a class. In a notebook before Python 3.13 it is looked up among the cells.

    A class with methods knows its cell. Of another one it is the cell that ran last, since cells
    may run again in any order.
    """
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        methods = [value for value in vars(cls).values() if isinstance(value, FunctionType)]
        own = ["".join(linecache.getlines(method.__code__.co_filename)) for method in methods]
        ran = vars(sys.modules[cls.__module__]).get("In", [])  # IPython's list of cells
        known = ("".join(linecache.getlines(name)) for name in reversed(linecache.cache))
        for text in itertools.chain(own, reversed(ran), known):
            if source := _class_in(text, cls.__name__):
                return source
        raise OSError from None


def _class_in(text, name):
    """The source of a class that a cell defines; None where it does not, or is no Python."""
    if f"class {name}" not in text:
        return None
    try:
        nodes = ast.parse(text).body
    except SyntaxError:
        return None
    found = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name]
    return ast.unparse(found[-1]) if found else None


# Modules


class Module:
    """A file of source: its registered kinds {class name: Part}, and the rest, a Part too."""

    def __init__(self, name, package, tree):
        self.name = name
        self.kinds = {node.name: Part([node], package) for node in tree.body if is_kind(node)}
        self.rest = Part([node for node in tree.body if not is_kind(node)], package)


def module(name):
    """The `Module` of that name where it is of `lab` or the user's, else None."""
    path = source_file(name)
    if path is None or (not name.startswith("lab.") and is_installed(path)):
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
    return path.startswith(library) or not {"site-packages", "dist-packages"}.isdisjoint(
        Path(path).parts
    )


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
            raise RuntimeError(
                f"{path} was edited after it was imported: restart the kernel, or reload {name}"
            )
    return Module(
        name, name if Path(path).name == "__init__.py" else name.rpartition(".")[0], ast.parse(text)
    )
