"""Real text without a download, identical on every system: the source code of two packages.

Without a path the text is the source of networkx and sympy, two pure-Python packages that torch
requires, in the versions pinned in pyproject.toml, without their tests and generated files. A path
selects any other file or folder of text. Needs only the standard library.
"""

import hashlib
import importlib.util
import os
import warnings
from importlib import metadata
from pathlib import Path

from lab import uses

PACKAGES = {"networkx": "3.6.1", "sympy": "1.14.0"}
HASH = "2b80f1dc26a2"  # of the text of these versions
TESTS = {"tests", "test-examples"}
GENERATED = {
    "networkx": (),
    "sympy": (
        "assumptions/ask_generated.py",
        "parsing/autolev/_antlr/",
        "parsing/latex/_antlr/",
        "polys/benchmarks/",
        "polys/numberfields/resolvent_lookup.py",
        "polys/polyquinticconst.py",
    ),
}


def read_corpus(path=""):
    """({name: bytes}, hash) of the text at `path`, a file or folder; the default is PACKAGES.

    Line ends are "\\n"; names are paths with "/", sorted by character. The hash is the first 12 hex
    digits of the sha256 of names and contents. The text is cached until a file changes; links to
    folders are followed. Raises FileNotFoundError if `path` does not exist; warns if the installed packages have
    other versions.
    """
    found = _read(path, _files(path))
    uses.reads(f"corpus {path}".strip())
    return found


def corpus_hash(path=""):
    """The hash of the text at `path`; takes milliseconds if the text is cached."""
    return read_corpus(path)[1]


def split(files, share=0.1):
    """Split files into two dicts, for training and validation; a single file is cut in two.

    The name of a file alone decides, so the split is the same on any machine and independent of
    other files. About `share` of the files are for validation.
    """
    if len(files) == 1:
        ((name, text),) = files.items()
        cut = int(len(text) * (1 - share))
        return {name: text[:cut]}, {name: text[cut:]}
    held_out = {
        n for n in files if int(hashlib.sha256(n.encode()).hexdigest()[:8], 16) / 2**32 < share
    }
    return {n: t for n, t in files.items() if n not in held_out}, {
        n: files[n] for n in files if n in held_out
    }


def parts(path, sha, share=0.1):
    """`split` of the text whose hash is `sha`.

    Raises RuntimeError if the text at `path` has changed.
    """
    files, found = read_corpus(path)
    if found != sha:
        raise RuntimeError(
            f"the text of corpus {path!r} changed while it was in use: build the task again"
        )
    return split(files, share)


@uses.cache
def _read(path, found):
    files = {name: Path(file).read_bytes().replace(b"\r\n", b"\n") for name, file, *_ in found}
    sha = hashlib.sha256()
    for name, text in files.items():
        sha.update(name.encode() + b"\0" + text + b"\0")
    short = sha.hexdigest()[:12]
    if not path and short != HASH:
        pinned = " and ".join(f"{name} {version}" for name, version in PACKAGES.items())
        here = " and ".join(f"{name} {_version(name)}" for name in PACKAGES)
        warnings.warn(
            f"the text of the installed {here} differs from that of {pinned}: recorded "
            "results of text do not apply",
            stacklevel=3,
        )
    return files, short


def _files(path):
    """(name, path, size, time of change) of every file, sorted by name.

    The time is that of the inode, which a copy that keeps the time of the content cannot keep.
    """
    if path:
        root = Path(path).expanduser()
        if not root.exists():
            raise FileNotFoundError(
                f"corpus {str(root)!r} does not exist: give a text file or a folder of text files"
            )
        below = os.walk(root, followlinks=True)
        listed = (
            [root] if root.is_file() else [Path(at, n) for at, _, names in below for n in names]
        )
        base = root.parent if root.is_file() else root
        found = [(p.relative_to(base).as_posix(), str(p), p.stat()) for p in listed]
    else:
        found = [
            file
            for package in PACKAGES
            for file in _modules(_folder(package), package + "/", GENERATED[package])
        ]
    return tuple(sorted((name, file, stat.st_size, stat.st_ctime_ns) for name, file, stat in found))


def _modules(folder, prefix, generated):
    """Modules below a package folder; `prefix` is the package name and the path to this folder."""
    for entry in os.scandir(folder):
        name = prefix + entry.name
        if entry.is_dir():
            if entry.name not in TESTS and name.partition("/")[2] + "/" not in generated:
                yield from _modules(entry.path, name + "/", generated)
        elif entry.name.endswith(".py") and name.partition("/")[2] not in generated:
            yield name, entry.path, entry.stat()


def _folder(package):
    found = importlib.util.find_spec(package)  # does not import it
    if found is None or not found.origin:
        raise FileNotFoundError(
            f"{package} is not installed: its source is the text; "
            f"pip install {package}=={PACKAGES[package]}"
        )
    return os.path.dirname(found.origin)


def _version(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of unknown version"
