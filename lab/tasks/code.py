"""Real text without a download: the standard library's source of the running Python, as bytes, with gold annotations.

Files are split into train and validation by a hash of their names. Any folder or file of text may stand in by its path.
"""

import ast
import hashlib
import io
import keyword
import sysconfig
import tokenize
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from lab import trace

KINDS = ("blank", "name", "keyword", "number", "string", "comment", "operator")
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "pydoc_data", "encodings"}
PAIRS = {")": "(", "]": "[", "}": "{"}


@trace.cache
def read_corpus(path=""):
    """({file name: bytes}, sha256 over names and contents) of the standard library, or of what lies at `path`."""
    root = Path(path or sysconfig.get_paths()["stdlib"]).expanduser()
    if not root.exists():
        raise FileNotFoundError(f"corpus {str(root)!r} does not exist: give a text file or a folder of them")
    pattern = "*.py" if not path else "*"
    found = [root] if root.is_file() else sorted(p for p in root.rglob(pattern) if p.is_file())
    if not path:
        found = [p for p in found if not LEFT_OUT & set(p.relative_to(root).parts)]
    files = {p.relative_to(root if root.is_dir() else root.parent).as_posix(): p.read_bytes() for p in found}
    sha = hashlib.sha256()
    for name, text in files.items():
        sha.update(name.encode() + b"\0" + text + b"\0")
    trace.reads(f"corpus {path}".strip(), sha.hexdigest()[:12])
    return files, sha.hexdigest()[:12]


@dataclass(frozen=True)
class Code:
    """Next byte of code.   tokens   d e f _ f (    targets   e f _ f ( x    both (b, context) with values 0..255"""

    context: int = 64
    path: str = ""
    validation_share: float = 0.1
    vocabulary = 256

    @cached_property
    def _bytes(self):
        parts = _joined(self.path, self.validation_share)
        for name, part in zip(("training", "validation"), parts, strict=True):
            if len(part) <= self.context + 1:
                raise ValueError(f"the {name} text of corpus {self.path!r} has {len(part)} bytes, too few for a window")
        return parts

    @property
    def hash(self):
        """Identifies the text: short sha256 over file names and contents."""
        return read_corpus(self.path)[1]

    @property
    def unigram_entropy(self):
        """Entropy of single bytes of the validation text, nats a byte."""
        p = torch.bincount(self._bytes[1], minlength=256).double() / len(self._bytes[1])
        return -(p[p > 0] * p[p > 0].log()).sum().item()

    @property
    def log_frequency(self):
        """Log of the share of each byte in the training text, add-one smoothed: (256,)."""
        counts = torch.bincount(self._bytes[0], minlength=256).float() + 1
        return (counts / counts.sum()).log()

    def batch(self, generator, size):
        """Windows at random places of the training text."""
        return self._windows(
            self._bytes[0], torch.randint(len(self._bytes[0]) - self.context, (size,), generator=generator)
        )

    def validation(self, windows, seed=0):
        """Windows of the validation text, the same for every model: tokens, targets (windows, context)."""
        starts = torch.randint(
            len(self._bytes[1]) - self.context, (windows,), generator=torch.Generator().manual_seed(seed)
        )
        return self._windows(self._bytes[1], starts)

    def annotated(self, windows, seed=0):
        """Validation windows that hold a bracket pair, with gold labels, all (windows, context).

        {tokens, targets, kind, opener, last_use}: kind indexes KINDS for each byte; opener is the window's own index of
        the bracket that a closing bracket closes; last_use, at the last byte of a name, that of the same name before.
        Both are -1 elsewhere and where what they point to lies before the window. Python files only.
        """
        text, kind, opener, last_use = _annotations(self.path, self.validation_share)
        rng = np.random.default_rng(seed)
        at = rng.integers(len(text) - self.context, size=50 * windows)[:, None] + np.arange(self.context + 1)
        inside, used = (np.maximum(gold[at[:, :-1]] - at[:, :1], -1) for gold in (opener, last_use))
        paired = (inside >= 0).any(1)
        if paired.sum() < windows:
            raise ValueError(
                f"only {paired.sum()} windows of {self.context} bytes with a bracket pair, {windows} wanted"
            )
        at, gold = at[paired][:windows], {"opener": inside, "last_use": used}
        arrays = {"tokens": text[at[:, :-1]], "targets": text[at[:, 1:]], "kind": kind[at[:, :-1]]}
        arrays |= {name: index[paired][:windows] for name, index in gold.items()}
        return {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}

    def _windows(self, text, starts):
        windows = text[starts[:, None] + torch.arange(self.context + 1)]
        return windows[:, :-1], windows[:, 1:]


@trace.cache
def split(path="", validation_share=0.1):
    """Files for training and for validation, two dicts like the corpus's; a single file is cut in two."""
    files, _ = read_corpus(path)
    if len(files) == 1:
        ((name, text),) = files.items()
        cut = int(len(text) * (1 - validation_share))
        return {name: text[:cut]}, {name: text[cut:]}
    held_out = {n for n in files if int(hashlib.sha256(n.encode()).hexdigest()[:8], 16) / 2**32 < validation_share}
    return {n: t for n, t in files.items() if n not in held_out}, {n: files[n] for n in files if n in held_out}


@trace.cache
def _joined(path, validation_share):
    """All bytes for training and all for validation, as integers."""
    parts = [np.frombuffer(b"\n".join(part.values()), dtype=np.uint8) for part in split(path, validation_share)]
    return [torch.from_numpy(part.astype(np.int64)) for part in parts]


@trace.cache
def _annotations(path, validation_share, limit=1_000_000):
    """Validation text up to about `limit` bytes with kinds, openers and last uses, without files that do not parse."""
    texts, kinds, openers, uses, start = [], [], [], [], 0
    for text in split(path, validation_share)[1].values():
        try:
            kind, opener = annotate(text)
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        texts.append(np.frombuffer(text, dtype=np.uint8))
        kinds.append(kind)
        openers.append(np.where(opener >= 0, opener + start, -1))
        used = last_uses(text, kind)
        uses.append(np.where(used >= 0, used + start, -1))
        start += len(text)
        if start > limit:
            break
    if not texts:
        raise ValueError(f"corpus {path!r} has no Python file to annotate in its validation part")
    return np.concatenate(texts), np.concatenate(kinds), np.concatenate(openers), np.concatenate(uses)


def annotate(text):
    """Gold labels of Python source given as bytes: kind of every byte (index in KINDS), and its opener or -1.

    The opener of a closing bracket is the position of the bracket that it closes. SyntaxError where it does not parse.
    """
    ast.parse(text)
    kind = np.zeros(len(text), dtype=np.int64)
    opener = np.full(len(text), -1, dtype=np.int64)
    lines = text.splitlines(keepends=True)
    line_start = np.concatenate([[0], np.cumsum([len(line) for line in lines])])
    decoded = [line.decode() for line in lines]

    def place(row, column):  # tokenize counts characters, we count bytes
        if row > len(lines):
            return len(text)
        return int(line_start[row - 1]) + len(decoded[row - 1][:column].encode())

    names = {
        tokenize.NAME: "name", tokenize.NUMBER: "number", tokenize.STRING: "string", tokenize.COMMENT: "comment",
        tokenize.OP: "operator",
    }  # fmt: skip
    names |= {
        getattr(tokenize, t): "string"
        for t in ("FSTRING_START", "FSTRING_MIDDLE", "FSTRING_END")
        if hasattr(tokenize, t)
    }
    stack = []
    for token in tokenize.generate_tokens(io.StringIO("".join(decoded), newline="").readline):
        name = names.get(token.type)
        if name is None:
            continue
        if name == "name" and keyword.iskeyword(token.string):
            name = "keyword"
        first, last = place(*token.start), place(*token.end)
        kind[first:last] = KINDS.index(name)
        if name == "operator" and token.string in PAIRS.values():
            stack.append((token.string, first))
        elif name == "operator" and token.string in PAIRS:
            bracket, position = stack.pop()
            if bracket != PAIRS[token.string]:
                raise SyntaxError("brackets do not pair")
            opener[first] = position
    return kind, opener


def last_uses(text, kind):
    """For the last byte of every name, that of the name's use before it, -1 elsewhere; kind as annotate gives it."""
    found = np.full(len(text), -1, dtype=np.int64)
    named = np.concatenate([[False], kind == KINDS.index("name"), [False]])
    ends, seen = np.flatnonzero(named[1:] != named[:-1]).reshape(-1, 2), {}
    for first, stop in ends:  # names never touch
        found[stop - 1] = seen.get(text[first:stop], -1)
        seen[text[first:stop]] = stop - 1
    return found
