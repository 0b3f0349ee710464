"""Fingerprints of code: the definitions that a trial runs, found by the names they use, and nothing else.

A definition is a statement at the top of a module, with the names it binds. From the trial's own definition the names
lead on: to others of its module, through imports to those of other modules, as far as the code is ours or the user's.
What the standard library and installed packages define is left to the versions that a row carries. A class that no name
leads to, a kind chosen by a word of a configuration, is found when a trial looks it up (`lab.trace`).
"""

import ast
import inspect
import json
import linecache
import sys
import textwrap
import typing
from types import BuiltinFunctionType, CellType, FunctionType, ModuleType

from lab import trace
from lab.engine.source import Definition, Module, digest, module, source_file

COMPUTED = ("import_module", "__import__", "eval", "exec")  # lead to code that no name shows


class ImpureTrial(ValueError):
    """A trial depends on something that is neither a parameter nor code whose source can be read."""


# What a definition leads to


class Code:
    """Definitions gathered from a starting point; `parts` maps "module.name" to the hash of its tree."""

    def __init__(self, ours=()):
        self.parts, self.ours, self._seen = {}, ("lab", *ours), set()

    @property
    def digest(self):
        """Of names and trees, not of the modules they stand in: moving a definition changes nothing."""
        return digest(json.dumps(sorted((label.rpartition(".")[2], tree) for label, tree in self.parts.items())))

    def add(self, name, attributes=()):
        """Add what module.attributes means and all that it leads to; where it is no definition, all of the module."""
        while attributes and source_file(f"{name}.{attributes[0]}"):
            name, attributes = f"{name}.{attributes[0]}", attributes[1:]
        attribute = attributes[0] if attributes else None
        if (name, attribute) in self._seen or (found := module(name, self.ours)) is None:
            return
        self._seen.add((name, attribute))
        if attribute in found.definitions:
            self._add_definition(name, attribute, found.definition(attribute), found.imports.get, found.definitions)
            if "" in found.definitions and name != "__main__":  # of a script, as of a notebook, only what is named
                self.add(name, ("",))
        elif attribute in found.imports:
            target, there = found.imports[attribute]
            self.add(target, (there, *attributes[1:]) if there else attributes[1:])
        else:
            for each in found.definitions:
                self.add(name, (each,))

    def _add_definition(self, home, name, found, target, beside=()):
        """Add a definition of a module, and what its names lead to: `beside` it, or through target(name)."""
        self.parts[f"{home}.{name}"] = found.hash
        for each in found.readings:
            if each.assigns and each.displays and name == name.lower():
                raise _impure(home, name, "list, dict or set")
            if home.split(".")[0] not in ("", "lab") and (called := set(each.calls) & set(COMPUTED)):
                raise ImpureTrial(f"{home}.{name} calls {min(called)}() with what is computed, which nobody can "
                                  "follow: write the import, or the code, out")  # fmt: skip
            for used, attributes in each.chains:
                if used in beside and used in each.outside:
                    self.add(home, (used,))
                elif (used in each.outside or used in each.inside) and (led := each.inside.get(used) or target(used)):
                    self.add(led[0], (*led[1:2], *attributes) if led[1] else attributes)

    def add_object(self, item):
        """Add a function or class, by its file or, where it was typed into a notebook, by the source of its cell."""
        while hasattr(item, "__wrapped__") and not _is_typed_in(item.__globals__["__name__"]):
            item = item.__wrapped__  # a decorator that an installed package, or lab, defines
        typed_in = _is_typed_in(item.__module__)
        if not typed_in and not getattr(item, "__closure__", None):
            self.add(item.__module__, (item.__qualname__.split(".")[0],))
        elif item not in self._seen:
            self._seen.add(item)
            closed_over = set(item.__code__.co_freevars if isinstance(item, FunctionType) else ())
            beside = set() if typed_in else module(item.__module__, self.ours).definitions.keys() - closed_over
            package = sys.modules[item.__module__].__package__ or ""
            found = Definition([tree_of(item)], package)
            self._add_definition(item.__module__, item.__qualname__, found, self._value_of(item), beside)

    def _value_of(self, item):
        """target(name) of what was typed in: by the value that the name has now."""
        scope = dict(vars(sys.modules[item.__module__]))
        if isinstance(item, FunctionType):
            cells = zip(item.__code__.co_freevars, item.__closure__ or (), strict=True)
            scope = item.__globals__ | {name: cell.cell_contents for name, cell in cells if cell != CellType()}

        def target(name):
            if name not in scope or name.startswith("__"):
                return None
            value = scope[name]
            if isinstance(value, (FunctionType, type)):
                return self.add_object(value)
            home = _home(value)
            if home is None:
                raise _impure(item.__qualname__, name, type(value).__name__)
            return home

        return target


def _impure(who, name, kind):
    return ImpureTrial(
        f"{who} reads the variable {name!r} ({kind}) from outside itself, so its result would not follow from its "
        f"parameters: pass {name!r} as a parameter, or set it inside the function"
    )


def _is_typed_in(name):
    """Whether a module has no file to follow: a notebook, or what was typed into Python."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return source_file(name) is None and getattr(spec, "origin", None) is None


def _home(value):
    """(module, name) of a value that a module with a file defines; None for data made while running."""
    if isinstance(value, ModuleType):
        return value.__name__, None
    if isinstance(value, BuiltinFunctionType) or typing.get_origin(value):
        return getattr(value, "__module__", None) or "builtins", getattr(value, "__name__", None)
    if isinstance(value, (int, str, bytes, type(None))):  # shared between modules by the interpreter
        return None
    for name, found in list(sys.modules.items()):
        if isinstance(found, ModuleType) and not _is_typed_in(name):
            for attribute, held in list(vars(found).items()):
                if held is value:
                    return name, attribute
    return None


def tree_of(item):
    """The syntax tree of one function or class. ImpureTrial where its source cannot be read."""
    try:
        source = inspect.getsource(item.__code__) if isinstance(item, FunctionType) else _class_source(item)
        return ast.parse(textwrap.dedent(source)).body[0]
    except (OSError, SyntaxError, IndexError):
        raise ImpureTrial(
            f"the source of {item.__qualname__} cannot be read, so a change of it would go unseen: "
            "write it as a def or class in a notebook cell or file"
        ) from None


def _class_source(cls):
    """The source of a class. In a notebook before Python 3.13 it is looked up among the cells."""
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        cells = [member.__code__.co_filename for member in vars(cls).values() if isinstance(member, FunctionType)]
        for cell in [*cells, *reversed(linecache.cache)]:
            text = "".join(linecache.getlines(cell))
            if f"class {cls.__name__}" in text:
                for node in ast.parse(text).body:
                    if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
                        return ast.unparse(node)
        raise OSError from None


# Starting points


def code_of(item):
    """The `Code` that a trial runs, the kinds that it looks up aside, or that of a class.

    Raises ImpureTrial where it reads a variable that holds data, or code that cannot be followed, and RuntimeError
    where a module was edited after this process imported it.
    """
    found = Code((item.__module__.split(".")[0],))
    found.add_object(item)
    return found


def code_named(home, name):
    """The `Code` of a function or class by its name in a module that nobody has to import; empty where it is none."""
    found = Code((home.split(".")[0],))
    known = module(home, found.ours)
    if known and name in known.definitions.keys() | known.imports.keys():
        found.add(home, (name,))
    return found


def kind_hash(name):
    """The hash of the code of a registered kind, such as "Position.rotary"; None where there is no such kind."""
    seam, _, kind = name.partition(".")
    variant = dict.get(trace.SEAMS[seam].kinds, kind) if seam in trace.SEAMS else None
    return variant and code_of(variant).digest


def source_code(tree):
    """The `Code` of a syntax tree as a whole, such as that of a notebook's cells."""
    found = Code()
    found._add_definition("", "source", Definition([tree], ""), Module(tree, "").imports.get)
    return found
