"""Next-byte prediction on source code or other text, and labelled windows of code."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from lab import uses
from lab.tasks.corpus import corpus_hash, parts
from lab.tasks.labels import annotate, last_uses
from lab.tasks.task import Task


@dataclass(frozen=True)
class Code(Task):
    """Predict the next byte of the text at `path` (see corpus.py).

    tokens   d e f _ f (
    targets  e f _ f ( x        values 0..255
    """

    context: int = 64
    path: str = ""
    validation_share: float = 0.1
    vocabulary = 256

    @property
    def length(self):
        return self.context

    @cached_property
    def hash(self):
        """Hash of the text: first 12 hex digits of the sha256 of file names and contents."""
        return corpus_hash(self.path)

    def text(self, held_out=False):
        """Bytes of the training (or held-out) files, joined by newlines: uint8 (bytes,).

        Raises ValueError unless the text is longer than a window of context + 1 bytes.
        """
        text = joined(self.path, self.hash, self.validation_share)[held_out]
        if len(text) <= self.context + 1:
            name = "validation" if held_out else "training"
            raise ValueError(
                f"the {name} text of corpus {self.path!r} has {len(text)} bytes, too few "
                "for a window"
            )
        return text

    @property
    def unigram_entropy(self):
        """Entropy of the byte frequencies of the validation text, in nats per byte."""
        p = self.text(held_out=True).bincount(minlength=256).double()
        return -torch.special.xlogy(p / p.sum(), p / p.sum()).sum().item()

    @property
    def log_frequency(self):
        """Log relative frequency of each byte in the training text, add-one smoothed: (256,)."""
        counts = self.text().bincount(minlength=256).float() + 1
        return (counts / counts.sum()).log()

    def batch(self, generator, size):
        """Windows at random positions of the training text: tokens, targets (size, context)."""
        text = self.text()
        return self._windows(
            text, torch.randint(len(text) - self.context, (size,), generator=generator)
        )

    def validation(self, size, seed=0):
        """Random windows of the validation text that do not occur in the training text.

        Their form is that of `batch`. Windows shorter than 64 bytes are compared by the 64 bytes
        from their start. They depend only on the text, the context, `size` and `seed`. Raises
        ValueError if there are too few.
        """
        return self._windows(self.text(held_out=True), self.unseen(self.context + 1, size, seed))

    def unseen(self, length, size, seed):
        """Start indices (size,) of validation windows of `length` bytes, new as in `validation`."""
        return _unseen(self.path, self.hash, self.validation_share, length, size, seed)

    def _windows(self, text, starts):
        windows = text[starts[:, None] + torch.arange(self.context + 1)].long()
        return windows[:, :-1], windows[:, 1:]

    def annotated(self, windows, seed=0):
        """Validation windows of Python code that contain a bracket pair, with labels.

        Returns a dict of int64 tensors (windows, context): tokens, targets, kind, opener, last_use.
        kind is an index into labels.KINDS. At a closing bracket, opener is the position of its
        opening bracket in the window. At the last byte of a name, last_use is the position of the
        last byte of the previous use of that name. opener and last_use are -1 at all other bytes,
        and where the position would be before the window. Raises ValueError if there are too few
        windows.
        """
        text, kind, opener, last_use = _annotations(self.path, self.hash, self.validation_share)
        rng = np.random.default_rng(seed)
        at = rng.integers(len(text) - self.context, size=50 * windows)[:, None] + np.arange(
            self.context + 1
        )
        inside, used = (np.maximum(gold[at[:, :-1]] - at[:, :1], -1) for gold in (opener, last_use))
        paired = (inside >= 0).any(1)
        if paired.sum() < windows:
            raise ValueError(
                f"only {paired.sum()} windows of {self.context} bytes have a bracket pair, "
                f"need {windows}"
            )
        at = at[paired][:windows]
        gold = {"opener": inside, "last_use": used}
        arrays = {"tokens": text[at[:, :-1]], "targets": text[at[:, 1:]], "kind": kind[at[:, :-1]]}
        arrays |= {name: index[paired][:windows] for name, index in gold.items()}
        return {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}


@uses.cache
def joined(path, sha, share):
    """[training text, validation text], each uint8 (bytes,), files joined by newlines."""
    joined = [bytearray(b"\n").join(part.values()) for part in parts(path, sha, share)]
    return [torch.from_numpy(np.frombuffer(text, np.uint8)) for text in joined]


@uses.cache
def _unseen(path, sha, share, length, size, seed):
    """Start indices of validation windows that do not occur in the training text: int64 (size,).

    Windows of fewer than 64 bytes are extended to 64 before the comparison, because short pieces of
    code, such as imports, repeat everywhere. Raises ValueError if there are too few windows.
    """
    known, text = (part.numpy() for part in joined(path, sha, share))
    span = min(max(length, 64), len(text) - 1, len(known))
    starts = torch.randint(
        len(text) - span, (8 * size,), generator=torch.Generator().manual_seed(seed)
    ).numpy()
    drawn = np.concatenate(list(_hashes(text, span)))[starts]
    new = starts[~np.isin(drawn, _candidates(known, span, drawn))]
    if len(new) < size:
        raise ValueError(
            f"corpus {path!r}: {len(new)} of {len(starts)} validation windows are new, need {size}"
        )
    return torch.from_numpy(new[:size])


def _candidates(known, span, drawn, bits=20):
    """Hashes of windows of `known` whose low `bits` bits equal those of some hash in `drawn`."""
    low = np.uint64((1 << bits) - 1)
    present = np.zeros(1 << bits, bool)
    present[drawn & low] = True
    return np.concatenate([hashes[present[hashes & low]] for hashes in _hashes(known, span)])


def _hashes(text, span, odd=0x9E3779B97F4A7C15, block=1 << 16):
    """Yield polynomial hashes, modulo 2**64 with base `odd`, of all windows of `span` bytes.

    The hash of a window is computed from the hashes of its halves. Hashes are in text order, in
    blocks that fit into the CPU cache.
    """
    for start in range(0, len(text) - span + 1, block):
        tokens = hashes = text[start : start + block + span - 1].astype(np.uint64)
        wide = 1
        for bit in f"{span:b}"[1:]:
            hashes = hashes[:-wide] * np.uint64(pow(odd, wide, 1 << 64)) + hashes[wide:]
            wide *= 2
            if bit == "1":
                hashes = hashes[:-1] * np.uint64(odd) + tokens[wide:]
                wide += 1
        yield hashes


@uses.cache
def _annotations(path, sha, share, limit=1_000_000):
    """About `limit` bytes of validation text, with the kind, opener and last use of each byte.

    Openers and last uses are positions in this text, or -1. Files that do not parse as Python are
    skipped. Raises ValueError if no file is left.
    """
    texts, golds, start = [], [], 0
    for text in parts(path, sha, share)[1].values():
        try:
            kinds, openers = annotate(text)
        except (SyntaxError, ValueError, RecursionError):
            continue
        texts.append(text)
        golds.append(
            (
                np.frombuffer(kinds, np.uint8),
                *(_placed(g, text, start) for g in (openers, last_uses(text, kinds))),
            )
        )
        start += len(text)
        if start > limit:
            break
    if not texts:
        raise ValueError(f"corpus {path!r} has no Python file to annotate in its validation part")
    return np.frombuffer(b"".join(texts), np.uint8), *(
        np.concatenate(gold) for gold in zip(*golds, strict=True)
    )


def _placed(pointers, text, start):
    """An array over the bytes of `text`: pointers[i] + start at each i in `pointers`, else -1."""
    array = np.full(len(text), -1)
    array[list(pointers)] = np.array(list(pointers.values()), dtype=np.int64) + start
    return array
