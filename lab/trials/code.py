"""The code behind a trial, split into parts that each have a hash.

The parts are the trial, the functions and classes of its notebook that it uses, and every module of
`lab` or of the user that these import, directly or indirectly. A module is one part. Installed
packages are not hashed.

A registered kind (`class Alibi(Position, kind="alibi")`) is not in the part of its module. It is a
part of its own where code uses its Python name or inherits from it. A kind that a trial looks up by
its registered name is recorded by `lab.trace`. So a new kind makes no other trial stale.
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
OUTSIDE = (  # modules that find, store, judge and plot trials: no number depends on them
    "lab.browse",
    "lab.charts",
    "lab.claims",
    "lab.device",
    "lab.figures",
    "lab.files",
    "lab.interact",
    "lab.names",
    "lab.parameters",
    "lab.publish",
    "lab.record_command",
    "lab.run",
    "lab.shown",
    "lab.study",
    "lab.trace",
    "lab.trials",
)


class ImpureTrial(ValueError):
    """Raised where a trial depends on data that is no parameter, or on code that cannot be read."""


class Code:
    """The parts {name: hash} of functions, classes and modules that are added."""

    def __init__(self):
        self.parts = {}
        self.modules = set()
        self._cached = []  # functions with a cache, outside lab
        self._seen = set()

    @property
    def digest(self):
        """The hash of all parts without their names: renaming a module does not change it."""
        return digest(json.dumps(sorted(self.parts.values())))

    def clear_caches(self):
        """Empty the caches of the user's functions, which may hold old contents of a file."""
        for name in self.modules:
            if not name.startswith("lab."):
                values = vars(sys.modules[name]).values() if name in sys.modules else ()
                self._cached += [value for value in values if hasattr(value, "cache_clear")]
        for function in self._cached:
            function.cache_clear()

    def add(self, value, user, name, attributes=()):
        """Add the code that `name`, bound to `value`, refers to in the code of `user`.

        Where `value` is a module, the name with its attributes, such as nn.functional.relu, is
        followed. Raises ImpureTrial where the name refers to data.
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
                f"{user} reads the variable {name!r} ({type(value).__name__}) from outside itself, "
                "so its result would not follow from its parameters: "
                f"pass {name!r} as a parameter, or set it inside the function"
            )

    def add_object(self, item):
        """Add the code of a function or class and of all that it uses."""
        if hasattr(item, "cache_clear") and not item.__module__.startswith("lab."):
            self._cached.append(item)
        while hasattr(item, "__wrapped__") and not is_typed_in(home_of_code(item)):
            item = item.__wrapped__  # the function inside a package's decorator
        if is_typed_in(item.__module__):
            self._add_typed_in(item)
            return
        self.add_module(item.__module__)
        self._add_kind_named(item.__module__, item.__qualname__)
        for name, value in closed_over(item).items():
            self.add(value, item.__qualname__, name)

    def _add_typed_in(self, item):
        """Add a function or class of a notebook, and all code that its names refer to."""
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
        """Add a module of `lab` or of the user, without its registered kinds, and its imports."""
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
        """Add the registered kind whose class is called `name` in the module `home`."""
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
        """Add the modules that a part of a module imports, and the kinds that it names."""
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
        """Add the module or kind that `import home` or `from home import name` refers to."""
        self.add_module(home)
        if name == "*" and module(home):
            raise ImpureTrial(
                f"from {home} import *: import each name that is used, so that its code is found"
            )
        if name:
            self.add_module(f"{home}.{name}")
            self._add_kind_named(home, name)

    def _add_kind_named(self, home, name):
        """Add the registered kind that the module `home` calls `name`, if it is one."""
        found = None if self._is_outside(home) else module(home)
        if found and name in found.kinds:
            self.add_kind(home, name)
        elif found and name in found.rest.bound:  # a package re-exports it
            there, original = found.rest.bound[name]
            if original and (there, original) != (home, name):
                self._add_kind_named(there, original)


def code_of(item):
    """The `Code` of a trial or of a class.

    Raises ImpureTrial where it reads data from outside itself or its source cannot be found, and
    RuntimeError where a module was edited after this process imported it.
    """
    found = Code()
    found.parts[RUN] = module(RUN).rest.hash
    found.add_object(item)
    if isinstance(item, FunctionType):
        refuse_computed(Part([tree_of(item)]), item.__qualname__)
    return found


def refuse_computed(part, user):
    """Raise ImpureTrial where code imports a computed name or evaluates a computed text."""
    if part.computed:
        raise ImpureTrial(
            f"{user} calls {part.computed[0]}() with a computed argument, so the code that it runs "
            "cannot be found: write the import or the code itself"
        )


def kind_hash(name):
    """The hash of a registered kind, such as "Position.rotary"; None if there is no such kind."""
    seam, _, kind = name.partition(".")
    variant = dict.get(trace.SEAMS[seam].kinds, kind) if seam in trace.SEAMS else None
    if variant is None:
        return None
    found = Code()
    found.add_object(variant)
    return found.digest


# Functions and classes


def is_typed_in(name):
    """Whether a module is a notebook, a script or an interactive session.

    Of such a module only the definitions that a trial uses are parts of its code.
    """
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return name == "__main__" or (
        source_file(name) is None and getattr(spec, "origin", None) is None
    )


def home_of_code(item):
    """The name of the module that holds the code of a function.

    For a decorated function it may differ from `__module__`. For any other object it is the module
    of the object's type.
    """
    return item.__globals__["__name__"] if isinstance(item, FunctionType) else type(item).__module__


def closed_over(function):
    """{name: value} of the variables that a function uses of an enclosing function, if set."""
    found = {}
    names = function.__code__.co_freevars if isinstance(function, FunctionType) else ()
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not set yet
            continue
    return found


def home_of(value):
    """The name of a module that binds `value`, such as a constant that a notebook imported.

    None for data made at run time.
    """
    if isinstance(value, BuiltinFunctionType) or typing.get_origin(value):
        return getattr(value, "__module__", None) or "builtins"
    # The interpreter shares such values between modules.
    if isinstance(value, (int, str, bytes, type(None))):
        return None
    for name, found in list(sys.modules.items()):
        if isinstance(found, ModuleType) and not is_typed_in(name):
            if any(held is value for held in list(vars(found).values())):
                return name
    return None


@functools.lru_cache(maxsize=1024)  # by identity: a cell that runs again makes a new function
def tree_of(item):
    """The syntax tree of a function or class. Raises ImpureTrial where its source is not found."""
    try:
        source = (
            inspect.getsource(item.__code__)
            if isinstance(item, FunctionType)
            else _class_source(item)
        )
        return ast.parse(textwrap.dedent(source)).body[0]
    except (OSError, SyntaxError, IndexError):
        raise ImpureTrial(
            f"the source of {item.__qualname__} cannot be read, so a change would go unnoticed: "
            "write it as a def or class in a notebook cell or file"
        ) from None


def _class_source(cls):
    """The source of a class. Before Python 3.13 the class of a notebook is looked up in its cells.

    The methods of a class name its cell. For a class without methods the last cell that ran and
    defines it is taken, since cells may run again in any order.
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
    """The source of the class `name` in the text of a cell; None if it has none or is no Python."""
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
    """A source file as `kinds`, {class name: Part} of its registered kinds, and `rest`, a Part."""

    def __init__(self, name, package, tree):
        self.name = name
        self.kinds = {node.name: Part([node], package) for node in tree.body if is_kind(node)}
        self.rest = Part([node for node in tree.body if not is_kind(node)], package)


def module(name):
    """The `Module` of that name if it belongs to `lab` or to the user, else None."""
    path = source_file(name)
    if path is None or (not name.startswith("lab.") and is_installed(path)):
        return None
    state = os.stat(path)
    return _module(name, path, state.st_mtime_ns, state.st_size)


def source_file(name):
    """The path of a module's Python file, found without importing it; None if there is no file."""
    path = loaded = spec = None
    parts = name.split(".")
    for n in range(1, len(parts) + 1):
        if n > 1 and path is None:
            return None  # the parent is a plain module, not a package
        part = ".".join(parts[:n])
        loaded = sys.modules.get(part)
        if loaded is None:
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


_in_use = {}  # path -> (spec, text when first seen) of the modules that this process has imported


@functools.lru_cache(maxsize=1024)
def _module(name, path, changed, size):
    text = Path(path).read_text("utf-8")
    loaded = getattr(sys.modules.get(name), "__spec__", None)
    if loaded is not None:
        spec, before = _in_use.setdefault(path, (loaded, text))
        if spec is not loaded:  # reloaded
            _in_use[path] = loaded, text
        elif before != text and normal(ast.parse(before)) != normal(ast.parse(text)):
            _module.cache_clear()
            raise RuntimeError(
                f"{path} was edited after it was imported: restart the kernel, or reload {name}"
            )
    package = name if Path(path).name == "__init__.py" else name.rpartition(".")[0]
    return Module(name, package, ast.parse(text))
