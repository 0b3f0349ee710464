"""What a running trial uses: the kinds it looks up, its data, and the start of its training.

The engine opens a `touching()` context around every trial. Seams, tasks, measurements and the
training loop report to that context; this module imports none of them. Outside a trial a report
only reads one context variable.
"""

import functools
import hashlib
import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

FIRST_STEPS = 10  # the losses of these first steps are all recorded, later ones at powers of two
SEAMS = {}  # name -> seam, a registry of kinds (lab.models.registry)

running = ContextVar("touched", default=None)
_listener = ContextVar("listener", default=None)


class Enough(BaseException):
    """Raised to end a trial early; `except Exception` does not catch it."""


@dataclass
class Touched:
    """What a trial used: kinds, data hashes, written files, and the start of its first training."""

    kinds: set = field(default_factory=set)  # "Position.rotary"
    data: dict = field(default_factory=dict)  # "corpus" -> hash
    written: set = field(default_factory=set)  # paths of files
    curve: list = field(default_factory=list)  # [step, loss], from step 0 of the first training
    batch: str = ""  # hash of the first batch of the first training
    timing: bool = False  # whether the trial may read clocks
    inputs: tuple = ()  # files and folders given as parameters, which the trial may read
    until: float = float("inf")  # time.perf_counter() at which training stops

    def merge(self, other):
        if not self.curve:
            self.curve = list(other.curve)
            self.batch = other.batch
        self.kinds |= other.kinds
        self.data |= other.data
        self.written |= other.written


@contextmanager
def touching(**options):
    """Yield a `Touched` that records what the block uses; the outer block records it too."""
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
    """Record nothing inside the block, because `reads` reports its data as a whole."""
    token = running.set(None)
    try:
        yield
    finally:
        running.reset(token)


def looked_up(seam, kind):
    """Report that the trial chose a kind of a seam by its name."""
    if (here := running.get()) is not None:
        here.kinds.add(f"{seam}.{kind}")


def reads(name, digest):
    """Report a data source, such as "corpus", with its hash."""
    if (here := running.get()) is not None:
        here.data[name] = digest


def clock(what):
    """Report that the trial measures time or memory; `what` names the measuring function.

    Raises RuntimeError where the rows of the trial are recorded, because they would depend on the
    machine.
    """
    here = running.get()
    if here is not None and not here.timing:
        raise RuntimeError(
            f"{what} measures this machine, and such numbers are not recorded: "
            "pass timing=True to the sweep"
        )


@contextmanager
def watching(listener):
    """Call listener(step, steps) at every training step inside the block, on this thread.

    Steps start at 0, and `steps` is their planned number. The listener may raise an exception to
    end training. It raises `Enough` to end a trial that catches every `Exception`.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def step(number, loss, batch=(), steps=0):
    """Report training step `number` of `steps`, its loss (tensor or number) and batch tensors.

    Raises Enough where the time for this trial is over.
    """
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
    """Short hash of the values of tensors and of tuples of tensors, in order."""
    sha = hashlib.sha256()
    for x in tensors:
        for each in x if isinstance(x, tuple) else (x,):
            sha.update(each.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()[:12]


def cache(function):
    """Cache a function like functools.cache, where it reads data or looks up kinds.

    For a trial that gets a cached value, the data and kinds of its computation are recorded too.
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
