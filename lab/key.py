"""Cache keys: hashes of the code that a trial runs, and of the kinds and data that it uses.

The code of a trial is its source in the notebook, the source of everything it uses there (helpers,
classes, constants, closures, defaults), and the files of lab and of the user that these import,
directly or indirectly. Comments, docstrings, blank lines and installed packages are not hashed.
`lab.uses` records the kinds that a running trial looks up by name and the data that it reads.

Not detected: edits of the modules in `OUTSIDE`, attributes set after the class definition,
monkeypatched functions, and changes of files that a module reads at import.
"""

import ast
import dis
import functools
import hashlib
import importlib
import importlib.util
import inspect
import io
import json
import linecache
import os
import sys
import sysconfig
import textwrap
import tokenize
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType

from lab import STARTED, uses

ALWAYS = "lab.state"  # part of the code of every trial
OUTSIDE = (  # modules that schedule, run, cache, judge and plot trials; they are not hashed
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
    "lab.runs",
    "lab.study",
    "lab.trials",
    "lab.uses",
    "lab.workers",
)
STANDARD_LIBRARY = sysconfig.get_path("stdlib")


class ImpureTrial(TypeError):
    """Raised if a trial depends on something that cannot be hashed."""


class CodeMismatch(RuntimeError):
    """Raised if source files of a worker differ from those of the process that sent the trial."""


def digest(*texts):
    """The first 12 hex digits of the sha256 of the joined texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12]


def without_comments(source):
    """Remove comments, docstrings and blank lines, which do not affect results."""
    lines = source.splitlines(keepends=True)
    statement = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        i, start = token.start[0] - 1, token.start[1]
        if token.type == tokenize.COMMENT:
            lines[i] = lines[i][:start].rstrip() + lines[i][token.end[1] :]
        elif token.type == tokenize.NL and lines[i].isspace():
            lines[i] = ""
        elif token.type == tokenize.NEWLINE:
            if [each.type for each in statement] == [tokenize.STRING]:
                above, below = statement[0].start[0] - 1, statement[0].end[0]
                lines[above:below] = [""] * (below - above)
            statement = []
        elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT):
            statement.append(token)
    return "".join(lines)


def digest_of(code):
    """The hash of {name: hash} of a trial's code; part of the name of its cache file."""
    return digest(json.dumps(code, sort_keys=True))


# The code behind a trial


def code_of(item):
    """{name: hash} of a function or class and of everything it uses.

    Raises ImpureTrial if it uses a variable that is not a JSON value or if its source is not
    available, and RuntimeError if a file was edited after this process started.
    """
    parts, todo, seen = dict(files(ALWAYS)), [item], []
    sources = {}
    while todo:
        item = unwrap(todo.pop())
        if isinstance(item, ModuleType):
            parts |= files(item.__name__)
        elif not is_interactive(item.__module__):
            parts |= files(item.__module__)
        elif item not in seen:
            seen.append(item)
            source = source_of(item)
            source_code = without_comments(source)
            sources[item.__qualname__] = sources.get(item.__qualname__, "") + source_code
            for name, value in names_in(item, source).items():
                if isinstance(value, FunctionType | type | ModuleType):
                    todo.append(value)
                elif not isinstance(value, BuiltinFunctionType):
                    sources[f"{item.__qualname__}: {name}"] = json_of(value, name, item)
            for module in imported(ast.parse(source), ""):
                parts |= files(module)
    for name in parts:
        require_unedited(name)
    return parts | {name: digest(text) for name, text in sources.items()}


def unwrap(item):
    """The function inside decorators that use functools.wraps, such as torch.no_grad()."""
    return getattr(item, "__wrapped__", item)


def names_in(item, source):
    """{name: value} of the globals, closure variables and defaults that an item uses."""
    scope = vars(sys.modules[item.__module__]) | defaults_and_closure(item)
    used = globals_of(compile(source, "<source>", "exec")) | defaults_and_closure(item).keys()
    values = {}
    for name in sorted(used & scope.keys() - {item.__name__, "__annotations__"}):
        values[name] = unwrap(scope[name])
        if values[name] is sys.modules["lab"]:
            raise ImpureTrial(
                f"{item.__qualname__} uses `lab.…`, which hides the modules that it depends on: "
                "write `from lab.… import …`"
            )
    return values


def defaults_and_closure(item):
    """{name: value} of a function's defaults and closure variables."""
    if not isinstance(item, FunctionType):
        return {}
    parameters = inspect.signature(item, follow_wrapped=False).parameters.values()
    values = {p.name: p.default for p in parameters if p.default is not p.empty}
    for name, cell in zip(item.__code__.co_freevars, item.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # not set yet
            continue
    return values


def json_of(value, name, user):
    """The JSON text of a variable. Raises ImpureTrial if it is not a JSON value."""
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):
        raise ImpureTrial(
            f"{user.__qualname__} reads the variable {name!r} ({type(value).__name__}), whose "
            f"changes cannot be detected: pass {name!r} as a parameter or create it in the function"
        ) from None


def globals_of(code):
    """The global names that a code object loads, including nested code objects."""
    loads = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
    names = {each.argval for each in dis.get_instructions(code) if each.opname in loads}
    return names.union(*(globals_of(c) for c in code.co_consts if isinstance(c, CodeType)))


def is_interactive(name):
    """Whether a module is a notebook or script.

    Of these, only the definitions that the trial uses are hashed, not the whole file.
    """
    return name == "__main__" or getattr(sys.modules.get(name), "__file__", None) is None


def source_of(item):
    """The source of a function or class. Raises ImpureTrial if it is not available."""
    try:
        return textwrap.dedent(inspect.getsource(item)).rstrip()
    except (OSError, TypeError):
        source = class_source(item) if isinstance(item, type) else None
    if source is None:
        raise ImpureTrial(
            f"the source of {item.__qualname__} is not available: "
            "define it with def or class in a cell or a file"
        )
    return source


def class_source(cls):
    """The source of a class defined in a cell, or None. (inspect finds it from Python 3.13 on.)

    The source comes from the cell that defines the methods of the class or, if there are none, from
    the last cell that defines the class.
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
        if nodes := [node for node in nodes if node.name == cls.__name__]:
            return textwrap.dedent(ast.get_source_segment(text, nodes[-1], padded=True))
    return None


# Files


@functools.cache
def files(name):
    """{module: hash} of a tracked module and, recursively, of the tracked modules it imports."""
    hashes, todo = {}, [name]
    while todo:
        name = todo.pop()
        hashed, imports = file_and_imports(name)
        if hashed and name not in hashes:
            hashes[name] = hashed
            todo += imports
    return hashes


@functools.cache
def file_and_imports(name):
    """(hash, names of modules it may import) of a tracked module; ("", []) for any other."""
    path = file_of(name)
    if path is None or not is_tracked(name, path):
        return "", []
    text = Path(path).read_text("utf-8")
    is_package = Path(path).name == "__init__.py"
    package = name if is_package else name.rpartition(".")[0]
    return digest(without_comments(text)), [package, *imported(ast.parse(text), package)]


@functools.cache
def file_of(name):
    """The path of a module's Python file, or None."""
    if name.split(".")[0] in ("torch", "numpy", "pandas", "scipy", "matplotlib", ""):
        return None  # skip the slow find_spec
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):  # a function, not a module
        spec = None
    path = getattr(spec, "origin", None)
    return path if path and path.endswith(".py") else None


def is_tracked(name, path):
    """Whether results may depend on a module: lab's models, tasks, … and the user's own files."""
    if name.split(".")[0] == "lab":
        return name not in OUTSIDE
    installed = {"site-packages", "dist-packages"} & set(Path(path).parts)
    return not installed and not path.startswith(STANDARD_LIBRARY)


def imported(tree, package):
    """The names of all modules that a file or function may import."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            base = importlib.util.resolve_name(base, package) if node.level else base
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return list(dict.fromkeys(names))


def require_unedited(name):
    """Raise RuntimeError if a loaded module's file was edited after this process started."""
    path = file_of(name) if name in sys.modules else None
    if path is None:
        return
    state = os.stat(path)
    if max(state.st_mtime, state.st_ctime) > STARTED:
        raise RuntimeError(f"{path} was edited after this kernel started: restart the kernel")


def require_same_files(expected):
    """Raise CodeMismatch if the files of this process differ from the expected {module: hash}."""
    for name in expected:
        require_unedited(name)
    if other := [name for name in expected if file_and_imports(name)[0] != expected[name]]:
        raise CodeMismatch(
            f"{', '.join(other)} differs on this worker: install the same commit and restart it"
        )


def file_hashes(code):
    """{module: hash} of the files in a trial's code; workers must have the same files."""
    return {name: hashed for name, hashed in code.items() if file_and_imports(name)[0]}


# Kinds and data that a trial used


def hashes_of(names, code, data):
    """{name: hash} of the kinds and data of a trial, without kinds that its code contains."""
    hashes = {}
    for name in sorted(names):
        variant = kind_of(name)
        if variant is None or variant.__module__ not in code:
            hashes[name] = data[name] if name in data else now(name)
    return hashes


def kind_of(name):
    """The class of a kind such as "Position.rotary"; None for other names."""
    seam, _, kind = name.partition(".")
    if is_data(name):
        return None
    if seam not in uses.SEAMS:
        importlib.import_module("lab.models")
    return dict.get(uses.SEAMS[seam].kinds, kind) if seam in uses.SEAMS else None


def now(name):
    """The current hash of a kind, or of data: "corpus PATH", "reference" or "file PATH".

    For the name "clock", which marks a timing, returns "clock". Returns None if a kind or file does
    not exist.
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
    """Whether a name is that of data, or "clock"; all other names are kinds."""
    return name.partition(" ")[0] in ("corpus", "reference", "file", "clock")


def is_valid(also, hashes):
    """Whether the recorded hashes `also` are current; `hashes` caches current hashes."""
    for name, recorded in also.items():
        if name not in hashes:
            hashes[name] = now(name)
        if hashes[name] != recorded:
            return False
    return True


def paths_in(parameters):
    """The names "file PATH" of files and folders in parameters, also in nested values.

    A string counts if it contains a separator or has a suffix, and if the path exists.
    """
    names = []
    for value in parameters.values() if isinstance(parameters, dict) else parameters:
        if isinstance(value, dict | list):
            names += paths_in(value)
        elif isinstance(value, str) and (os.sep in value or Path(value).suffix):
            names += [f"file {value}"] * os.path.exists(value)
    return names


def content_hash(path):
    """The hash of a file, or of the names and contents in a folder; None if it does not exist."""
    path = Path(path)
    if path.is_file():
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    if not path.is_dir():
        return None
    entries = []
    for folder, _, names in os.walk(path, followlinks=True):
        for file in (Path(folder, name) for name in names):
            entries.append(f"{file.relative_to(path)} {content_hash(file)}")
    return digest(*sorted(entries))
