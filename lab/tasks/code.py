"""The next byte of real code, or of any text: as it is, half prose, or shuffled; windows with gold
labels.
"""

import re
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from lab import trace
from lab.tasks.corpus import corpus_hash, parts
from lab.tasks.labels import annotate, last_uses
from lab.tasks.task import Marks, Task


@dataclass(frozen=True)
class Code(Task):
    """Next byte of the text at `path` (corpus.py).

    tokens   d e f _ f (
    targets  e f _ f ( x        values 0..255
    """

    context: int = 64
    path: str = ""
    validation_share: float = 0.1
    vocabulary = 256
    holds_out = "a tenth of the files, without windows that other files hold too"

    @property
    def length(self):
        return self.context

    @cached_property
    def hash(self):
        """Identifies the text: short sha256 over file names and contents."""
        return corpus_hash(self.path)

    def text(self, held_out=False):
        """The bytes for training, or those for validation, files joined by newlines: uint8
        (bytes,).

        ValueError where they are too few for a window.
        """
        text = _joined(self.path, self.hash, self.validation_share)[held_out]
        if len(text) <= self.context + 1:
            name = "validation" if held_out else "training"
            raise ValueError(
                f"the {name} text of corpus {self.path!r} has {len(text)} bytes, too few for a window"
            )
        return text

    @property
    def unigram_entropy(self):
        """Entropy of single bytes of the validation text, nats a byte."""
        p = self.text(held_out=True).bincount(minlength=256).double()
        return -torch.special.xlogy(p / p.sum(), p / p.sum()).sum().item()

    @property
    def log_frequency(self):
        """Log of the share of each byte in the training text, add-one smoothed: (256,)."""
        counts = self.text().bincount(minlength=256).float() + 1
        return (counts / counts.sum()).log()

    def marks(self):
        """Of single bytes of the validation text; what contexts are worth is learnt by
        measure.ngrams.
        """
        counts = self.text(held_out=True).bincount()
        return Marks(
            chance=(counts.max() / counts.sum()).item(), unigram_entropy=self.unigram_entropy
        )

    def batch(self, generator, size):
        """Windows at random places of the training text."""
        text = self.text()
        return self._windows(
            text, torch.randint(len(text) - self.context, (size,), generator=generator)
        )

    def validation(self, size, seed=0):
        """Windows of the validation text that stand nowhere in the training text, the same for
        every model: tokens, targets (size, context). ValueError where there are too few.
        """
        text = self.text(held_out=True)
        return self._windows(
            text, _unseen(self.path, self.hash, self.validation_share, self.context + 1, size, seed)
        )

    def _windows(self, text, starts):
        windows = text[starts[:, None] + torch.arange(self.context + 1)].long()
        return windows[:, :-1], windows[:, 1:]

    def annotated(self, windows, seed=0):
        """Validation windows that hold a bracket pair, with gold labels, all (windows, context).

        {tokens, targets, kind, opener, last_use}: kind indexes labels.KINDS for each byte; opener
        is the window's own index of the bracket that a closing bracket closes; last_use, at the
        last byte of a name, that of the same name before. Both are -1 elsewhere and where what they
        point to lies before the window. Python files only.
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
                f"only {paired.sum()} windows of {self.context} bytes with a bracket pair, {windows} wanted"
            )
        at, gold = at[paired][:windows], {"opener": inside, "last_use": used}
        arrays = {"tokens": text[at[:, :-1]], "targets": text[at[:, 1:]], "kind": kind[at[:, :-1]]}
        arrays |= {name: index[paired][:windows] for name, index in gold.items()}
        return {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}


@trace.cache
def _joined(path, sha, share):
    """All bytes for training and all for validation, uint8."""
    joined = [bytearray(b"\n").join(part.values()) for part in parts(path, sha, share)]
    return [torch.from_numpy(np.frombuffer(text, np.uint8)) for text in joined]


@trace.cache
def _unseen(path, sha, share, length, size, seed):
    """Where windows of the validation text start that are new, as `unseen` has it."""
    return unseen(*_joined(path, sha, share), length, size, seed, path)


def unseen(known, text, length, size, seed, path):
    """Where windows of a validation `text` start that the training text `known` does not hold:
    int64 (size,).

    Code repeats licences and imports. A window is not new where the training text holds it; of
    windows under 64 tokens, it and what follows up to 64. ValueError names the corpus at `path`
    where there are too few.
    """
    known, text = known.numpy(), text.numpy()
    span = min(max(length, 64), len(text) - 1, len(known))
    starts = torch.randint(
        len(text) - span, (8 * size,), generator=torch.Generator().manual_seed(seed)
    ).numpy()
    asked = np.concatenate(list(_hashes(text, span)))[starts]
    new = starts[~np.isin(asked, _held(known, span, asked))]
    if len(new) < size:
        raise ValueError(
            f"corpus {path!r}: {len(new)} of {len(starts)} validation windows are new, {size} wanted"
        )
    return torch.from_numpy(new[:size])


def _held(known, span, asked, bits=20):
    """Hashes of those windows of `known` that may be among `asked`."""
    low, places = np.uint64((1 << bits) - 1), np.zeros(1 << bits, bool)
    places[asked & low] = True
    return np.concatenate([hashes[places[hashes & low]] for hashes in _hashes(known, span)])


def _hashes(text, span, odd=0x9E3779B97F4A7C15, block=1 << 16):
    """Polynomials in `odd`, modulo 2**64, of all windows of `span` tokens, by doubling.

    In order, a block at a time: as many as a processor's cache holds.
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


@trace.cache
def _annotations(path, sha, share, limit=1_000_000):
    """Validation text up to about `limit` bytes with kinds, openers and last uses, without files
    that do not parse.
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
    """{from: to} as an array over the bytes of the text, counted from `start` on, -1 elsewhere."""
    array = np.full(len(text), -1)
    array[list(pointers)] = np.array(list(pointers.values()), dtype=np.int64) + start
    return array


@dataclass(frozen=True)
class ProseAndCode(Code):
    """Next byte of the text at `path`; half of the windows lie inside docstrings, half touch none.

    prose    tokens  t h e _ m a      targets  h e _ m a s      between two \"\"\"
    code     tokens  d e f _ f (      targets  e f _ f ( x

    Docstrings hold sentences, and examples with what they print.
    """

    def marks(self):
        """Of single bytes of the validation text, those in docstrings counting half, and the
        others.
        """
        inside = _within(self.path, self.hash, self.validation_share, True, 1) > 0
        text = self.text(held_out=True)[: len(inside)]
        shares = [
            part.bincount(minlength=256).double() / len(part)
            for part in (text[inside], text[~inside])
        ]
        mixed = sum(shares) / 2
        return Marks(
            chance=mixed.max().item(),
            unigram_entropy=-torch.special.xlogy(mixed, mixed).sum().item(),
        )

    def batch(self, generator, size):
        """Windows at random places of the training text, of either kind as a coin falls."""
        starts = [
            _starts(self.path, self.hash, self.validation_share, self.context + 1, kind)
            for kind in ("prose", "code")
        ]
        coin = torch.randint(2, (size,), generator=generator)
        odds = torch.rand(size, generator=generator, dtype=torch.float64)
        chosen = [
            starts[kind][int(share * len(starts[kind]))]
            for kind, share in zip(coin, odds, strict=True)
        ]
        return self._windows(self.text(), torch.stack(chosen))

    def validation(self, size, seed=0):
        """Windows of the validation text that stand nowhere in the training text: prose first, then
        as much code.

        ValueError where there are too few.
        """
        half, span, found = size // 2, self.context + 1, []
        new = _unseen(self.path, self.hash, self.validation_share, span, 16 * size, seed)
        within = _within(self.path, self.hash, self.validation_share, True, span)[new]
        for wanted, share in ((half, span), (size - half, 0)):
            kept = new[within == share][:wanted]
            if len(kept) < wanted:
                raise ValueError(
                    f"corpus {self.path!r}: {len(kept)} of {wanted} validation windows of one kind"
                )
            found.append(kept)
        return self._windows(self.text(held_out=True), torch.cat(found))


@trace.cache
def _within(path, sha, share, held_out, span):
    """How many of the `span` bytes from each place on lie in docstrings: int64."""
    text = _joined(path, sha, share)[held_out].numpy()
    inside = np.zeros(len(text) + 1, np.int64)
    for docstring in re.finditer(rb'"""(.*?)"""', text.tobytes(), re.DOTALL):
        inside[docstring.start(1) + 1 : docstring.end(1) + 1] = 1
    total = inside.cumsum()
    return torch.from_numpy(total[span:] - total[:-span])


@trace.cache
def _starts(path, sha, share, span, kind):
    """Where windows of one kind start in the training text."""
    within = _within(path, sha, share, False, span)
    return (within == (span if kind == "prose" else 0)).nonzero().flatten()


@dataclass(frozen=True)
class Shuffled(Task):
    """The byte that follows a window of code whose bytes were shuffled within spans; 256 at the end
    asks, mask "none".

    span 2    text     d e f _ f ( x        tokens   e d  f _  ( f  #      the spans tile the window
                                            targets  . .  . .  . .  x      the true next byte in every arm
    """

    code: Code = field(default_factory=Code)
    span: int = 1  # 1 leaves the text as it is
    vocabulary = 257
    d_out = 256
    holds_out = Code.holds_out

    def __post_init__(self):
        if self.span < 1 or self.code.context % self.span:
            raise ValueError(f"span {self.span} does not divide context {self.code.context}")

    @property
    def length(self):
        return self.code.context + 1

    def marks(self):
        return self.code.marks()

    def batch(self, generator, size):
        return self._asked(*self.code.batch(generator, size), generator)

    def validation(self, size, seed=0):
        """Windows of the validation text, the same for every model."""
        return self._asked(*self.code.validation(size, seed), torch.Generator().manual_seed(seed))

    def _asked(self, text, following, generator):
        spans = text.unflatten(1, (-1, self.span))
        order = torch.rand(spans.shape, generator=generator).argsort(
            -1
        )  # drawn in every arm: all see the same windows
        query = torch.full((len(text), 1), 256)
        tokens = torch.cat([spans.gather(2, order).flatten(1), query], 1)
        return tokens, torch.cat([torch.full_like(text, -100), following[:, -1:]], 1)
