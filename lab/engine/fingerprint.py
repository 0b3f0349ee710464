"""Fingerprints of code: what a trial or a notebook runs, and nothing else.

A fingerprint covers the function's own source, the functions and classes of its notebook or script that it uses, and
every module of the package that any of these import, however far down. Comments, docstrings and layout do not count.
"""

import ast
import hashlib
import importlib
import inspect
import json
import sys
import sysconfig
import typing
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType

from lab.engine import sources
from lab.engine.sources import ImpureTrial

PACKAGE = Path(__file__).parents[1]
LIBRARY = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))
_CODE_IN_USE = {}  # module name -> (spec, source) of the package's modules that this process runs


def trial_fingerprint(trial, *, root=PACKAGE):
    """The sha256 hex digest of all code that the function `trial` runs; `root` is the folder of the package.

    Raises ImpureTrial if the trial reads a global or enclosing variable that holds data, and RuntimeError if a module
    was edited after this process imported it, since the process would still run the old code.
    """
    return trial_code(trial, root=root).digest()


def trial_code(trial, *, root=PACKAGE):
    """The `Code` behind `trial_fingerprint`."""
    found = Code(root, running=True)
    found.add_trial(trial)
    return found


def code_fingerprint(code, *, root=PACKAGE):
    """The sha256 hex digest of Python source (a string; notebook magics are allowed) or of a list of module names.

    The modules of the package that the code imports, or uses as attributes of an imported package, are included.
    """
    found = Code(root)
    if isinstance(code, str):
        found.add_source("source", sources.parse_cells(code))
    else:
        for module in code:
            found.add_dotted(module)
    return found.digest()


class Code:
    """Sources gathered from a starting point by following imports and names; `modules` maps name to source."""

    def __init__(self, root, *, running=False):
        self.root, self.package, self.running = Path(root), Path(root).name, running
        self.modules, self.parts, self.seen = {}, set(), set()

    def digest(self):
        return hashlib.sha256(json.dumps([sorted(self.modules.items()), sorted(self.parts)]).encode()).hexdigest()

    # Modules of the package, found by their imports

    def add_module(self, name):
        """Add the module, the packages around it and all that they import; True if there is such a module."""
        parts = name.split(".")
        files = [self._file(".".join(parts[: n + 1])) for n in range(len(parts))]
        for n, file in enumerate(files):
            module = ".".join(parts[: n + 1])
            if file is None or module in self.modules:
                continue
            tree, self.modules[module] = sources.parsed(file.read_text(encoding="utf-8"))
            if self.running:
                _check_in_use(module, file, self.modules[module])
            self._follow(tree, here=module if file.name == "__init__.py" else ".".join(parts[:n]))
        return files[-1] is not None

    def add_dotted(self, dotted):
        """Add the module that `package.module.attribute` leads to, through a package's lazy exports too."""
        parts = dotted.split(".")
        for n in range(len(parts)):
            module = ".".join(parts[: n + 1])
            if not self.add_module(module) and not self._folder(module).is_dir():
                return self._add_export(".".join(parts[:n]), parts[n])

    def add_source(self, label, tree, here="", names=()):
        self.parts.add((label, sources.normal(tree)))
        self._follow(tree, here, names)

    def _folder(self, module):
        return self.root.joinpath(*module.split(".")[1:])

    def _file(self, module):
        if module.partition(".")[0] != self.package:
            return None
        folder = self._folder(module)
        files = [folder / "__init__.py"] + ([folder.with_name(f"{folder.name}.py")] if "." in module else [])
        return next((file for file in files if file.is_file()), None)

    def _add_export(self, package, name):
        file = self._file(package)
        if file is None or file.name != "__init__.py":
            return
        tree, _ = sources.parsed(file.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body):
            home = self._home(getattr(importlib.import_module(package), name, None))
            if home and home != package and home.partition(".")[0] == self.package:
                self.add_module(home)

    def _follow(self, tree, here, names=()):
        """Add what the imports of `tree` name, and what is used as an attribute of an imported module."""
        for dotted in sources.used(tree, here, tuple(dict(names).items())):
            if dotted.partition(".")[0] == self.package:
                self.add_dotted(dotted)

    # Functions and classes of a notebook or script, followed through the names they use

    def add_trial(self, trial):
        if trial.__module__.partition(".")[0] == self.package and "<locals>" not in trial.__qualname__:
            self.add_module(trial.__module__)
            tree = sources.tree_of(inspect.unwrap(trial))
            for name in sorted(sources.outside_names(tree)):
                if name in trial.__globals__ and not name.strip("_").isupper():
                    self._refuse_data(trial.__qualname__, name, trial.__globals__[name], besides=trial.__module__)
        else:
            self._add_own(trial)

    def _add_own(self, item):
        """Add a function or class by its own source, then all that it names."""
        while isinstance(item, FunctionType) and hasattr(item, "__wrapped__") and not self._is_own(_code_home(item)):
            self.add_module(_code_home(item))  # a decorator of the package or of an installed one
            item = item.__wrapped__
        if item in self.seen:
            return
        self.seen.add(item)
        if isinstance(item, FunctionType):
            cells = zip(item.__code__.co_freevars, item.__closure__ or (), strict=True)
            scope = item.__globals__ | {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
        else:
            scope = vars(sys.modules[item.__module__]) | {base.__name__: base for base in item.__bases__}
        tree = sources.tree_of(item)
        modules = {name: value.__name__ for name, value in scope.items() if isinstance(value, ModuleType)}
        package = scope.get("__package__") or ""
        self.add_source(f"{item.__module__}.{item.__qualname__}", tree, package, modules)
        for name in sorted(sources.outside_names(tree)):
            if name in scope and not name.startswith("__"):
                self._add_value(item.__qualname__, name, scope[name])

    def _add_value(self, user, name, value):
        home = self._home(value)
        if home is None and isinstance(value, (FunctionType, type)):
            self._add_own(value)
        elif home is None:
            self._refuse_data(user, name, value)
        elif not self._is_own(home):
            self.add_module(home)
        elif isinstance(value, ModuleType):
            self._add_local_module(value)
        else:
            self._add_own(value)

    def _add_local_module(self, module):
        if module in self.seen:
            return
        self.seen.add(module)
        self.add_source(module.__name__, ast.parse(inspect.getsource(module)), module.__package__ or "")
        for name, value in vars(module).items():
            if isinstance(value, (ModuleType, FunctionType, type)) and self._is_own(self._home(value) or ""):
                self._add_value(module.__name__, name, value)

    def _refuse_data(self, user, name, value, besides=None):
        is_code = isinstance(value, (FunctionType, type)) or typing.get_origin(value)
        if not is_code and self._home(value, besides) is None:
            raise ImpureTrial(
                f"{user} reads the variable {name!r} ({type(value).__name__}) from outside itself, so its result would "
                f"not follow from its parameters: pass {name!r} as a parameter, or set it inside the function"
            )

    def _home(self, value, besides=None):
        """The module's name that `value` lives in, or None for data and functions made while running."""
        if isinstance(value, ModuleType):
            return value.__name__
        if isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, (type, ModuleType, type(None))):
            return value.__module__ or "builtins"
        if isinstance(value, (FunctionType, type)) and "<locals>" not in value.__qualname__:
            return value.__module__
        if isinstance(value, (int, str, bytes, type(None))):  # shared between modules by the interpreter
            return None
        for name, module in list(sys.modules.items()):
            if isinstance(module, ModuleType) and name != besides and not self._is_own(name):
                if any(held is value for held in list(vars(module).values())):
                    return name
        return None

    def _is_own(self, module):
        """True for a notebook, script or local module: what is neither in the package nor installed."""
        return module.partition(".")[0] != self.package and not _is_installed(module)


def _is_installed(module):
    if module == "__main__":
        return False
    found = sys.modules.get(module)
    file = getattr(found, "__file__", None)
    if found is None or file is None:
        return found is None or found.__spec__ is not None
    return file.startswith(LIBRARY) or not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _check_in_use(module, file, source):
    """Raise RuntimeError if the loaded module is older than its file; a reload (a new spec) starts afresh."""
    spec = getattr(sys.modules.get(module), "__spec__", None)
    if spec is None or spec.origin is None or Path(spec.origin) != file:
        return
    known, running = _CODE_IN_USE.get(module, (None, None))
    if known is not spec:
        _CODE_IN_USE[module] = spec, source
    elif running != source:
        raise RuntimeError(f"{file} was edited after this process imported it: restart the kernel, or reload {module}")


def _code_home(function):
    return function.__globals__["__name__"]


def _is_filled(cell):
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
