"""The files that a trial may open: those that are its parameters, and those that cannot change its
numbers.

What Python opens is seen through an audit hook. Files that a library opens in C or Rust are not
seen.
"""

import functools
import hashlib
import os
import sys
import sysconfig
import tempfile
from pathlib import Path

from lab import trace

SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib/", "/run/")
READERS_OF_CODE = (
    "<frozen importlib",
    "importlib",
    "linecache.py",
    "tokenize.py",
    "inspect.py",
    "zipimport",
)
PACKAGE = f"{Path(trace.__file__).parent}{os.sep}"
PARENT = f"{Path(trace.__file__).parents[1]}{os.sep}"
WRITES = os.O_WRONLY | os.O_RDWR


class UndeclaredInput(RuntimeError):
    """A trial reads something that is neither a parameter nor code."""


@functools.cache
def watch():
    """From now on, refuse what trials of this process must not open."""
    sys.addaudithook(_audit)


def _audit(event, arguments):
    here = trace.running.get() if event in ("open", "sqlite3.connect", "subprocess.Popen") else None
    if here is None:
        return
    if event == "open":
        _opened(here, *arguments)
    elif not here.timing:
        raise UndeclaredInput(
            f"a trial calls {event}, whose input cannot be followed: read before the sweep, and pass"
        )


def _opened(here, path, mode, flags):
    if not isinstance(path, str | os.PathLike):
        return
    path = os.path.abspath(path)
    if set(mode or "") & set("wax+") or (mode is None and (flags or 0) & WRITES):
        here.written.add(path)
    elif path.startswith(PACKAGE) and not path.endswith(
        (".py", ".pyc")
    ):  # data that comes with lab
        here.data[path.removeprefix(PARENT)] = file_hash(path)
    elif not (path in here.written or _is_input(path, here.inputs) or _cannot_change_numbers(path)):
        raise UndeclaredInput(
            f"a trial reads {path}, so its result would not follow from its parameters: "
            "pass the path as a parameter, and the file's content counts"
        )


def _is_input(path, inputs):
    return any(path == each or path.startswith(f"{each}{os.sep}") for each in inputs)


def _cannot_change_numbers(path):
    if (
        path.startswith(_installed())
        or path.endswith((".pyc", ".so", ".pyd", ".dll"))
        or os.path.isdir(path)
    ):
        return True
    if path.startswith(_scratch()) and not path.startswith(_work()):
        return True
    caller = sys._getframe(3).f_code.co_filename
    return path.endswith(".py") and any(name in caller for name in READERS_OF_CODE)


@functools.cache
def _installed():
    """Folders whose files belong to the system, to Python or to an installed package."""
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {
        sys.prefix,
        sys.base_prefix,
    }
    return SYSTEM + tuple(f"{folder}{os.sep}" for folder in sorted(folders))


@functools.cache
def _scratch():
    """Folders of caches and of what is temporary."""
    caches = (
        os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"),
        os.environ.get("MPLCONFIGDIR", ""),
    )
    folders = (*caches, Path.home() / ".config", tempfile.gettempdir())
    return tuple(f"{os.path.abspath(folder)}{os.sep}" for folder in folders if folder)


def _work():
    """Folders in which data may lie even where they are temporary: the project and the working
    folder.
    """
    from lab.trials.runs import project_root

    return f"{project_root()}{os.sep}", f"{os.getcwd()}{os.sep}"


# Files that are parameters


def inputs_of(parameters):
    """The whole paths of the files and folders that parameters name, in lists and dicts too."""
    found = []
    for value in parameters.values() if isinstance(parameters, dict) else parameters:
        if isinstance(value, dict | list):
            found += inputs_of(value)
        elif (
            isinstance(value, str)
            and (os.sep in value or Path(value).suffix)
            and os.path.exists(value)
        ):
            found.append(os.path.abspath(value))
    return found


def content_hash(path):
    """sha256 of a file's bytes, short, or of names and bytes of all files of a folder; None where
    there is none.
    """
    if os.path.isfile(path):
        return file_hash(path)
    if not os.path.isdir(path):
        return None
    files = sorted(each for each in Path(path).rglob("*") if each.is_file())
    listed = "".join(f"{each.relative_to(path).as_posix()} {file_hash(each)}\n" for each in files)
    return hashlib.sha256(listed.encode()).hexdigest()[:16]


def file_hash(path):
    """sha256 of a file's bytes, short; read once while size and time of change stay."""
    state = os.stat(path)
    return _file_hash(str(path), state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=4096)
def _file_hash(path, changed, size):
    with trace.apart():
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
