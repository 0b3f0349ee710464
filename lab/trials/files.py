"""Which files a trial may open: its parameters, and files that cannot change its numbers.

An audit hook checks every file that Python opens. It does not see files that a library opens in C
or Rust.
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
    """Raised where a trial reads a file that is neither a parameter nor code."""


@functools.cache
def watch():
    """From now on, raise UndeclaredInput where a trial of this process opens a file it must not."""
    sys.addaudithook(_audit)


def _audit(event, arguments):
    here = trace.running.get() if event in ("open", "sqlite3.connect", "subprocess.Popen") else None
    if here is None:
        return
    if event == "open":
        _opened(here, *arguments)
    elif not here.timing:
        raise UndeclaredInput(
            f"a trial calls {event}, and its input cannot be checked: "
            "read the data before the sweep and pass it as a parameter"
        )


def _opened(here, path, mode, flags):
    if not isinstance(path, str | os.PathLike):
        return
    path = os.path.abspath(path)
    if set(mode or "") & set("wax+") or (mode is None and (flags or 0) & WRITES):
        here.written.add(path)
    elif path.startswith(PACKAGE) and not path.endswith((".py", ".pyc")):
        here.data[path.removeprefix(PARENT)] = file_hash(path)  # data that comes with lab
    elif not (path in here.written or _is_input(path, here.inputs) or _cannot_change_numbers(path)):
        raise UndeclaredInput(
            f"a trial reads {path}, so its result would not follow from its parameters: "
            "pass the path as a parameter, so that a change of the file is noticed"
        )


def _is_input(path, inputs):
    return any(path == each or path.startswith(f"{each}{os.sep}") for each in inputs)


def _cannot_change_numbers(path):
    if (
        path.startswith(_installed())
        or path.endswith((".pyc", ".so", ".pyd", ".dll"))
        or f".egg-info{os.sep}" in path  # what an editable installation says of itself
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
    """Folders of caches and temporary files."""
    caches = (
        os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"),
        os.environ.get("MPLCONFIGDIR", ""),
    )
    folders = (*caches, Path.home() / ".config", tempfile.gettempdir())
    return tuple(f"{os.path.abspath(folder)}{os.sep}" for folder in folders if folder)


def _work():
    """The project and the working folder: they may hold data even inside a temporary folder."""
    from lab.files import project_root

    return f"{project_root()}{os.sep}", f"{os.getcwd()}{os.sep}"


# Files that are parameters


def inputs_of(parameters):
    """The absolute paths of the files and folders among `parameters`, in lists and dicts too."""
    found = []
    for value in parameters.values() if isinstance(parameters, dict) else parameters:
        if isinstance(value, dict | list):
            found += inputs_of(value)
        elif isinstance(value, str):
            looks_like_a_path = os.sep in value or Path(value).suffix
            if looks_like_a_path and os.path.exists(value):
                found.append(os.path.abspath(value))
    return found


def content_hash(path):
    """The first 16 hex digits of a sha256 of a file, or of the names and bytes of a folder's files.

    None where `path` does not exist.
    """
    if os.path.isfile(path):
        return file_hash(path)
    if not os.path.isdir(path):
        return None
    files = sorted(each for each in Path(path).rglob("*") if each.is_file())
    listed = "".join(f"{each.relative_to(path).as_posix()} {file_hash(each)}\n" for each in files)
    return hashlib.sha256(listed.encode()).hexdigest()[:16]


def file_hash(path):
    """The first 16 hex digits of a file's sha256, cached while its size and change time stay."""
    state = os.stat(path)
    return _file_hash(str(path), state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=4096)
def _file_hash(path, changed, size):
    with trace.apart():
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
