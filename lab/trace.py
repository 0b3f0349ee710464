"""What a running trial reports: kinds that it looks up, data that it reads, clocks, the beginning
of its training.

The engine opens a `touching()` around every trial; seams, tasks, measurements and the training loop
report here. This module knows none of them, and outside a trial every report is a single look at a
variable.
"""

import functools
import hashlib
import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

FIRST_STEPS = 10  # of a training, kept one by one; after them those that are powers of two
SEAMS = {}  # name -> seam, the registries of kinds (lab.models.registry)

running = ContextVar("touched", default=None)
_listener = ContextVar("listener", default=None)


class Enough(BaseException):
    """Ends a trial of which no more than the beginning is wanted; no `except Exception` of a trial
    stops it.
    """


@dataclass
class Touched:
    """Names of kinds, {name: hash} of declared data, files written, and the beginning of the first
    training.
    """

    kinds: set = field(default_factory=set)  # "Position.rotary"
    data: dict = field(default_factory=dict)  # "corpus" -> hash
    written: set = field(default_factory=set)
    curve: list = field(default_factory=list)  # [step, loss], from step 0 of the first training
    batch: str = ""  # hash of its first batch
    timing: bool = False  # clocks may be read
    inputs: tuple = ()  # files and folders that are parameters: they may be read
    until: float = float("inf")  # time.perf_counter() at which a training is left
    spared: float = 0.0  # seconds that trainings took whose models were kept

    def merge(self, other):
        if not self.curve:
            self.curve, self.batch = list(other.curve), other.batch
        self.spared += other.spared
        self.kinds |= other.kinds
        self.data |= other.data
        self.written |= other.written


@contextmanager
def touching(**options):
    """A `Touched` that fills while the block runs; what a block inside touches counts for the one
    around it too.
    """
    here, around = Touched(**options), running.get()
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
    """Inside, nothing is reported: for what is told as a whole by `reads`."""
    token = running.set(None)
    try:
        yield
    finally:
        running.reset(token)


def looked_up(seam, kind):
    """A kind of a seam was chosen by its name."""
    if (here := running.get()) is not None:
        here.kinds.add(f"{seam}.{kind}")


def reads(name, digest):
    """A source of data that is more than a file, such as "corpus", with its hash."""
    if (here := running.get()) is not None:
        here.data[name] = digest


def replay(touched):
    """What happens here was done earlier, and touched this."""
    if (here := running.get()) is not None:
        here.merge(touched)


def clock(what):
    """Clocks and memory are read here.

    RuntimeError in a trial whose rows are recorded: they would be a machine's.
    """
    here = running.get()
    if here is not None and not here.timing:
        raise RuntimeError(
            f"{what} measures this machine: sweep it with timing=True, so that it is never recorded"
        )


@contextmanager
def watching(listener):
    """Inside, on this thread, training calls listener(step, steps) at every step, from step 0; it
    may raise to end it.

    What ends a trial whatever it catches is `Enough`.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def step(number, loss, batch=(), steps=0):
    """Step `number` of `steps` of a training has the loss (a tensor or number); `batch` are that
    step's tensors.
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
    """Short hash of tensors and tuples of them, in their order."""
    sha = hashlib.sha256()
    for x in tensors:
        for each in x if isinstance(x, tuple) else (x,):
            sha.update(each.detach().cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()[:12]


def cache(function):
    """functools.cache for what reads data or looks up kinds: who is given a kept value has touched
    the same.
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
