"""A text corpus without a download: the source code of networkx and sympy.

Both are pure-Python packages that torch requires. They are pinned in pyproject.toml, so the text is
the same on every system. Their tests and generated files are excluded. A path selects another file
or folder as the corpus. This module uses only the standard library.
"""

import hashlib
import importlib.util
import os
import warnings
from importlib import metadata
from pathlib import Path

from lab import uses

PACKAGES = {"networkx": "3.6.1", "sympy": "1.14.0"}
HASH = "2b80f1dc26a2"  # hash of the text of these versions
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
    """Read the text at `path`, a file or folder (default: PACKAGES): ({name: bytes}, hash).

    Line ends become "\\n". Names are relative paths with "/", sorted by Unicode code point. The
    hash is the first 12 hex digits of the sha256 of names and contents. The text is cached until a
    file changes. Symbolic links to folders are followed. Raises FileNotFoundError if `path` does
    not exist. Warns if the source of the installed packages differs from that of the pinned
    versions.
    """
    found = _read(path, _files(path))
    uses.reads(f"corpus {path}".strip())
    return found


def corpus_hash(path=""):
    """Hash of the text at `path`; takes milliseconds if the text is cached."""
    return read_corpus(path)[1]


def split(files, share=0.1):
    """Split {name: bytes} into two such dicts, for training and validation.

    About `share` of the files go to validation. Whether a file does depends only on its name, not
    on the machine or on the other files. A single file is cut in two.
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
    """`split` of the text at `path`. Raises RuntimeError if its hash is no longer `sha`."""
    files, found = read_corpus(path)
    if found != sha:
        raise RuntimeError(
            f"the text of corpus {path!r} changed while it was in use: create the task again"
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
            "results on this text do not apply",
            stacklevel=3,
        )
    return files, short


def _files(path):
    """(name, path, size, ctime) of every file, sorted by name.

    The ctime also changes when a file is replaced by a copy that preserves the mtime.
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
    """Yield (name, path, stat) of the modules below a folder; names start with `prefix`."""
    for entry in os.scandir(folder):
        name = prefix + entry.name
        if entry.is_dir():
            if entry.name not in TESTS and name.partition("/")[2] + "/" not in generated:
                yield from _modules(entry.path, name + "/", generated)
        elif entry.name.endswith(".py") and name.partition("/")[2] not in generated:
            yield name, entry.path, entry.stat()


def _folder(package):
    found = importlib.util.find_spec(package)  # does not import the package
    if found is None or not found.origin:
        raise FileNotFoundError(
            f"{package} is not installed: its source code is the default corpus; "
            f"pip install {package}=={PACKAGES[package]}"
        )
    return os.path.dirname(found.origin)


def _version(package):
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "of unknown version"
