"""Real text without a download, the same bytes on every system and Python: source that torch itself
brings along.

Without a path the text is the source of networkx and sympy, two pure-Python packages that torch
requires, in the versions that pyproject.toml pins, without their tests and without what a program
wrote. Any file or folder of text may stand in by its path. Needs nothing but the standard library.
"""

import hashlib
import importlib.util
import os
import warnings
from importlib import metadata
from pathlib import Path

from lab import trace

PACKAGES = {"networkx": "3.6.1", "sympy": "1.14.0"}
HASH = "2b80f1dc26a2"  # of their text
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
    """({name: bytes}, hash) of the text at `path`, a file or a folder; without one, of the source
    of PACKAGES.

    Ends of lines are "\\n"; names are paths with "/", in the order of their characters. The hash is
    the first 12 digits of the sha256 of names and contents. What has been read is kept as long as
    sizes and times of the files stay. FileNotFoundError if there is nothing at `path`; a warning if
    the installed packages are other versions.
    """
    found = _read(path, _files(path))
    trace.reads(f"corpus {path}".strip(), found[1])
    return found


def corpus_hash(path=""):
    """Identifies the text at `path`: a few milliseconds where it was read before and no file has
    changed.
    """
    return read_corpus(path)[1]


def split(files, share=0.1):
    """Files for training and for validation, two dicts; a single file is cut in two.

    A file's name alone decides: about `share` of the files are for validation, on any machine and
    whatever the others.
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
    """`split` of the text that had the hash `sha`.

    RuntimeError if the text at `path` is another one by now.
    """
    files, found = read_corpus(path)
    if found != sha:
        raise RuntimeError(
            f"the text of corpus {path!r} changed while it was in use: build the task again"
        )
    return split(files, share)


@trace.cache
def _read(path, found):
    with trace.apart():  # one hash stands for all files
        files = {name: Path(file).read_bytes().replace(b"\r\n", b"\n") for name, file, *_ in found}
    sha = hashlib.sha256()
    for name, text in files.items():
        sha.update(name.encode() + b"\0" + text + b"\0")
    short = sha.hexdigest()[:12]
    if not path and short != HASH:
        wanted, here = (
            " and ".join(f"{name} {version}" for name, version in versions.items())
            for versions in (PACKAGES, {name: _version(name) for name in PACKAGES})
        )
        warnings.warn(
            f"the text of the installed {here} differs from that of {wanted}: recorded results of text do not apply",
            stacklevel=3,
        )
    return files, short


def _files(path):
    """(name, file, size, time of change) of every file, by name."""
    if path:
        root = Path(path).expanduser()
        if not root.exists():
            raise FileNotFoundError(
                f"corpus {str(root)!r} does not exist: give a text file or a folder of them"
            )
        listed = [root] if root.is_file() else (p for p in root.rglob("*") if p.is_file())
        base = root.parent if root.is_file() else root
        found = [(p.relative_to(base).as_posix(), str(p), p.stat()) for p in listed]
    else:
        found = [
            file
            for package in PACKAGES
            for file in _modules(_folder(package), package + "/", GENERATED[package])
        ]
    return tuple(sorted((name, file, stat.st_size, stat.st_mtime_ns) for name, file, stat in found))


def _modules(folder, prefix, generated):
    """Modules below a package's folder; `prefix` is the package's name and the way down to here."""
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
            f"{package} is not installed: it is text here; pip install {package}=={PACKAGES[package]}"
        )
    return os.path.dirname(found.origin)


def _version(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of unknown version"
