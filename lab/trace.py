"""What a running trial uses: looked-up kinds, data, clocks, and the start of its training.

The engine opens a `touching()` context around every trial; seams, tasks, measurements and the
training loop report to it. This module imports none of them, and outside a trial a report costs one
look at a context variable.
"""

import functools
import hashlib
import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

FIRST_STEPS = 10  # training steps that are all recorded; later ones only at powers of two
SEAMS = {}  # name -> seam, the registries of kinds (lab.models.registry)

running = ContextVar("touched", default=None)
_listener = ContextVar("listener", default=None)


class Enough(BaseException):
    """Ends a trial of which only the start is needed; `except Exception` does not catch it."""


@dataclass
class Touched:
    """What a trial used: kinds, hashes of data, files written, start of the first training."""

    kinds: set = field(default_factory=set)  # "Position.rotary"
    data: dict = field(default_factory=dict)  # "corpus" -> hash
    written: set = field(default_factory=set)
    curve: list = field(default_factory=list)  # [step, loss], from step 0 of the first training
    batch: str = ""  # hash of its first batch
    timing: bool = False  # whether clocks may be read
    inputs: tuple = ()  # files and folders given as parameters, which may be read
    until: float = float("inf")  # time.perf_counter() at which training is stopped
    spared: float = 0.0  # added to a trial's seconds

    def merge(self, other):
        if not self.curve:
            self.curve = list(other.curve)
            self.batch = other.batch
        self.kinds |= other.kinds
        self.data |= other.data
        self.written |= other.written


@contextmanager
def touching(**options):
    """Yield a `Touched` that fills during the block; nested blocks also count for the outer one."""
    here = Touched(**options)
    around = running.get()
    if around is not None:
        here.until = min(here.until, around.until)
        here.inputs += around.inputs
    token = running.set(here)
    try:
        yield here
    finally:
        running.reset(token)
        if around is not None:
            around.merge(here)


@contextmanager
def apart():
    """Within, nothing is recorded: for data that `reads` reports as a whole."""
    token = running.set(None)
    try:
        yield
    finally:
        running.reset(token)


def looked_up(seam, kind):
    """Report that a kind of a seam was chosen by name."""
    if (here := running.get()) is not None:
        here.kinds.add(f"{seam}.{kind}")


def reads(name, digest):
    """Report a data source, such as "corpus", with its hash."""
    if (here := running.get()) is not None:
        here.data[name] = digest


def clock(what):
    """Report that clocks or memory are read.

    Raises RuntimeError in a trial whose rows are recorded, since the numbers would depend on the
    machine.
    """
    here = running.get()
    if here is not None and not here.timing:
        raise RuntimeError(
            f"{what} measures this machine: sweep it with timing=True, so that it is never recorded"
        )


@contextmanager
def watching(listener):
    """Within, on this thread, training calls listener(step, steps) at every step, from step 0.

    The listener may raise to end training; `Enough` ends a trial whatever the trial catches.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def step(number, loss, batch=(), steps=0):
    """Report training step `number` of `steps`, its loss (tensor or number) and batch tensors."""
    if (listener := _listener.get()) is not None:
        listener(number, steps)
    here = running.get()
    if here is None:
        return
    if time.perf_counter() > here.until:
        raise Enough
    follows = number == (here.curve[-1][0] + 1 if here.curve else 0) or (
        here.curve and number > here.curve[-1][0]
    )
    if follows and (number < FIRST_STEPS or not number & (number - 1)):
        if number == 0:
            here.batch = tensor_hash(batch)
        here.curve.append([number, float(loss.detach() if hasattr(loss, "detach") else loss)])


def tensor_hash(tensors):
    """Short hash of tensors and tuples of tensors, in order."""
    sha = hashlib.sha256()
    for x in tensors:
        for each in x if isinstance(x, tuple) else (x,):
            sha.update(each.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()[:12]


def cache(function):
    """functools.cache for functions that read data or look up kinds.

    A trial that gets a cached value is recorded as having used what the computation used.
    """
    kept = {}

    @functools.wraps(function)
    def remembered(*arguments, **named):
        key = (arguments, tuple(sorted(named.items())))
        if key not in kept:
            with touching(timing=True) as seen:
                kept[key] = function(*arguments, **named), seen
        value, seen = kept[key]
        if (here := running.get()) is not None:
            here.merge(seen)
        return value

    remembered.cache_clear = kept.clear
    return remembered
