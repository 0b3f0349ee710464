"""The key of a trial: the code behind it, and the kinds and data that it used, as hashes.

The code of a trial is its source in the notebook, the source of all that it uses there (helpers,
classes, constants, closures, defaults), and the files of lab and of the user that these import,
directly or indirectly. Installed packages do not count. A kind that a trial chose by its name, or
data that it read, is noted by `lab.uses` when the trial runs.

Not seen: an attribute set after its class was defined, a function replaced in a module (monkeypatch),
and a file that a module reads while it is imported.
"""

import ast
import dis
import functools
import hashlib
import importlib
import importlib.util
import inspect
import json
import linecache
import os
import site
import sys
import sysconfig
import textwrap
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

from lab import STARTED, uses

ALWAYS = "lab.state"  # how every trial runs
OUTSIDE = (  # modules that find, store, judge and draw trials: no number depends on them
    "lab",
    "lab.browse",
    "lab.charts",
    "lab.check",
    "lab.claims",
    "lab.device",
    "lab.files",
    "lab.interact",
    "lab.key",
    "lab.names",
    "lab.parameters",
    "lab.publish",
    "lab.run",
    "lab.study",
    "lab.trials",
    "lab.uses",
    "lab.workers",
)
INSTALLED = tuple(
    f"{os.path.realpath(folder)}{os.sep}"
    for folder in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
    }
)


class ImpureTrial(TypeError):
    """Raised where a trial depends on what its key cannot hold; the message says what to do."""


class OtherCode(RuntimeError):
    """Raised where a worker has other files than the process that sends it a trial."""


def digest(*texts):
    """The first 12 hex digits of the sha256 of texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def digest_of(code):
    """The hash of {name: hash} of a trial's code, which names the file of its rows."""
    return digest(json.dumps(code, sort_keys=True))


# The code behind a trial


def code_of(item):
    """{name: hash} of a function or class and of all that it uses.

    Raises ImpureTrial where it uses a variable that is no JSON value, or its source cannot be read,
    and RuntimeError where a file was edited after this process had started.
    """
    parts, todo, seen = dict(files(ALWAYS)), [item], []
    sources = {}
    while todo:
        item = unwrapped(todo.pop())
        if isinstance(item, ModuleType):
            parts |= files(item.__name__)
        elif not is_typed_in(item.__module__):
            parts |= files(item.__module__)
        elif item not in seen:
            seen.append(item)
            source = source_of(item)
            sources[item.__qualname__] = sources.get(item.__qualname__, "") + source
            for name, value in names_in(item, source).items():
                if isinstance(value, FunctionType | type | ModuleType):
                    todo.append(value)
                elif not isinstance(value, BuiltinFunctionType):
                    sources[f"{item.__qualname__}: {name}"] = constant(value, name, item)
            for module in imported(ast.parse(source), ""):
                parts |= files(module)
    for name in parts:
        refuse_edited(name)
    return parts | {name: digest(text) for name, text in sources.items()}


def unwrapped(item):
    """The function behind decorators that use functools.wraps, such as torch.no_grad()."""
    return getattr(item, "__wrapped__", item)


def names_in(item, source):
    """{name: value} of what a typed-in function or class uses from outside itself."""
    scope = vars(sys.modules[item.__module__]) | enclosed(item)
    used = globals_of(compile(source, "<source>", "exec")) | enclosed(item).keys()
    found = {}
    for name in sorted(used & scope.keys() - {item.__name__, "__annotations__"}):
        found[name] = unwrapped(scope[name])
        if found[name] is sys.modules["lab"]:
            raise ImpureTrial(
                f"{item.__qualname__} uses `lab.…`, so what it needs of lab is not known: "
                "write `from lab.… import …`"
            )
    return found


def enclosed(item):
    """{name: value} of a function's defaults and of the variables that it closes over."""
    if not isinstance(item, FunctionType):
        return {}
    takes = inspect.signature(item, follow_wrapped=False).parameters.values()
    found = {p.name: p.default for p in takes if p.default is not p.empty}
    for name, cell in zip(item.__code__.co_freevars, item.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not set yet
            continue
    return found


def constant(value, name, user):
    """The JSON text of a variable that a trial uses. Raises ImpureTrial where JSON has none."""
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):
        raise ImpureTrial(
            f"{user.__qualname__} reads the variable {name!r} ({type(value).__name__}) from outside "
            f"itself, and its rows could not tell when it changes: pass {name!r} as a parameter, or "
            "make it inside the function"
        ) from None


def globals_of(code):
    """The names that a code object and those inside it load from outside."""
    loads = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    found = {each.argval for each in dis.get_instructions(code) if each.opname in loads}
    return found.union(*(globals_of(c) for c in code.co_consts if isinstance(c, CodeType)))


def is_typed_in(name):
    """Whether a module is a notebook or a script, of which only what a trial uses counts."""
    return name == "__main__" or getattr(sys.modules.get(name), "__file__", None) is None


def source_of(item):
    """The source of a function or class. Raises ImpureTrial where it cannot be read."""
    try:
        return textwrap.dedent(inspect.getsource(item)).rstrip()
    except (OSError, TypeError):
        source = class_source(item) if isinstance(item, type) else None
    if source is None:
        raise ImpureTrial(
            f"the source of {item.__qualname__} cannot be read: "
            "write it as a def or class in a cell or a file"
        )
    return source


def class_source(cls):
    """The source of a class of a cell, which Python finds only from 3.13 on; None without one.

    The methods of a class name their cell. For a class without methods it is the last cell that ran
    and defines it.
    """
    methods = [value for value in vars(cls).values() if isinstance(value, FunctionType)]
    texts = ["".join(linecache.getlines(method.__code__.co_filename)) for method in methods]
    texts += reversed(vars(sys.modules[cls.__module__]).get("In", []))
    for text in texts:
        if f"class {cls.__name__}" not in text:
            continue
        try:
            tree = ast.parse(text)
        except SyntaxError:  # a cell with magics
            continue
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        if found := [node for node in nodes if node.name == cls.__name__]:
            return textwrap.dedent(ast.get_source_segment(text, found[-1], padded=True))
    return None


# Files


@functools.cache
def files(name):
    """{module: hash} of a module of lab's science or of the user, and of all that it imports."""
    found, todo = {}, [name]
    while todo:
        name = todo.pop()
        hashed, imports = file_and_imports(name)
        if hashed and name not in found:
            found[name] = hashed
            todo += imports
    return found


@functools.cache
def file_and_imports(name):
    """(hash, names of the modules that it may import) of a module of ours; ("", []) of others."""
    path = file_of(name)
    if path is None or not is_ours(name, path):
        return "", []
    text = Path(path).read_text("utf-8")
    is_package = Path(path).name == "__init__.py"
    package = name if is_package else name.rpartition(".")[0]
    return digest(text), [package, *imported(ast.parse(text), package)]


@functools.cache
def file_of(name):
    """The path of a module's Python file; None where there is none."""
    if name.split(".")[0] in ("torch", "numpy", "pandas", "scipy", "matplotlib", ""):
        return None  # to save time
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):  # the name of a function, not of a module
        spec = None
    path = getattr(spec, "origin", None)
    return path if path and path.endswith(".py") else None


def is_ours(name, path):
    """Whether a module is of lab's science or of the user, not of an installed package."""
    if name.split(".")[0] == "lab":
        return name not in OUTSIDE
    return not os.path.realpath(path).startswith(INSTALLED)


def imported(tree, package):
    """The names of the modules that a file or function may import, anywhere in it."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(base, package) if node.level else base
            found += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return list(dict.fromkeys(found))


def refuse_edited(name):
    """Raise RuntimeError where a loaded module's file was edited after this process had started.

    The process may run the text of before.
    """
    path = file_of(name) if name in sys.modules else None
    if path is None:
        return
    state = os.stat(path)
    if max(state.st_mtime, state.st_ctime) > STARTED:
        raise RuntimeError(f"{path} was edited after this kernel started: restart the kernel")


def refuse_other(expected):
    """Raise OtherCode where files of this process differ from {module: hash} of another one."""
    for name in expected:
        refuse_edited(name)
    if other := [name for name in expected if file_and_imports(name)[0] != expected[name]]:
        raise OtherCode(
            f"this worker has another {', '.join(other)}: install the same commit there and restart it"
        )


def of_files(code):
    """{module: hash} of the files in a trial's code, which workers must have as well."""
    return {name: hashed for name, hashed in code.items() if file_and_imports(name)[0]}


# What a trial noted


def noted(names, code, data):
    """{name: hash} of what a trial used, without kinds that its code holds anyway."""
    return {
        name: data[name] if name in data else now(name)
        for name in sorted(names)
        if not is_inside(name, code)
    }


def kind_of(name):
    """The class that a name such as "Position.rotary" stands for; None where it is no kind."""
    seam, _, kind = name.partition(".")
    if is_data(name):
        return None
    if seam not in uses.SEAMS:
        importlib.import_module("lab.models")
    return dict.get(uses.SEAMS[seam].kinds, kind) if seam in uses.SEAMS else None


def is_inside(name, code):
    """Whether a kind stands in a file that the code of the trial holds anyway."""
    variant = kind_of(name)
    return variant is not None and variant.__module__ in code


def now(name):
    """The hash today of a kind, or of data: "corpus PATH", "reference", "file PATH", "clock".

    None where there is no such kind or file any more.
    """
    variant = kind_of(name)
    if variant is not None:
        return digest_of(code_of(variant))
    word, _, rest = name.partition(" ")
    if word == "corpus":
        return importlib.import_module("lab.tasks.corpus").corpus_hash(rest)
    if word == "reference":
        return importlib.import_module("lab.reference").reference_hash()
    if word == "file":
        return content_hash(rest)
    return word if word == "clock" else None


def is_data(name):
    """Whether a noted name is of data, not of a kind."""
    return name.partition(" ")[0] in ("corpus", "reference", "file", "clock")


def is_valid(also, hashes):
    """Whether what a row noted is as it was; `hashes` caches the hashes of today."""
    for name, was in also.items():
        if name not in hashes:
            hashes[name] = now(name)
        if hashes[name] != was:
            return False
    return True


def paths_in(parameters):
    """The names "file PATH" of the files and folders among parameters, in lists and dicts too."""
    found = []
    for value in parameters.values() if isinstance(parameters, dict) else parameters:
        if isinstance(value, dict | list):
            found += paths_in(value)
        elif isinstance(value, str) and (os.sep in value or Path(value).suffix):
            found += [f"file {value}"] * os.path.exists(value)
    return found


def content_hash(path):
    """The hash of a file, or of the names and contents of a folder's files; None without one."""
    if os.path.isfile(path):
        return digest(hashlib.sha256(Path(path).read_bytes()).hexdigest())
    if not os.path.isdir(path):
        return None
    listed = []
    for folder, _, names in os.walk(path, followlinks=True):
        for file in (Path(folder, name) for name in names):
            listed.append(f"{file.relative_to(path)} {content_hash(file)}")
    return digest(*sorted(listed))
