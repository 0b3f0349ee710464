"""What a running trial uses besides its code: kinds chosen by a word, data that it reads, clocks.

The engine opens `watched()` around every trial. Registries of kinds, tasks and measurements report
to it; this module imports none of them. Outside a trial a report does nothing.
"""

import functools
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

SEAMS = {}  # {name: seam}, the registries of kinds (lab.models.registry)

_running = ContextVar("running", default=None)


@dataclass
class Uses:
    """The names of what a trial used, such as "Position.rotary" and "corpus".

    `timing` says whether the trial may measure time and memory.
    """

    names: set = field(default_factory=set)
    timing: bool = False


@contextmanager
def watched(timing=False):
    """Yield the `Uses` of the block; the block around it gets them too."""
    here, around = Uses(timing=timing), _running.get()
    token = _running.set(here)
    try:
        yield here
    finally:
        _running.reset(token)
        if around is not None:
            around.names |= here.names


def looked_up(seam, kind):
    """Report that the trial chose a kind of a seam by its name."""
    reads(f"{seam}.{kind}")


def reads(name):
    """Report a data source, such as "corpus" or "corpus PATH"; lab.key knows its hash."""
    if (here := _running.get()) is not None:
        here.names.add(name)


def clock(what):
    """Report that the trial measures time or memory; `what` names the measuring function.

    Raises RuntimeError in a sweep without `timing`.
    """
    here = _running.get()
    if here is None:
        return
    if not here.timing:
        raise RuntimeError(f"{what} measures this machine: pass timing=True to the sweep")
    here.names.add("clock")


class cache:
    """Decorator of a function that reads data or looks up kinds: a cache like functools.cache.

    A trial that gets a cached value used what its computation used. Cached values stay in their
    process: a function of a notebook that is sent to a worker arrives without them.
    """

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.kept = {}

    def __call__(self, *arguments, **named):
        key = (arguments, tuple(sorted(named.items())))
        if key not in self.kept:
            with watched(timing=True) as seen:
                self.kept[key] = self.__wrapped__(*arguments, **named), seen.names
        value, names = self.kept[key]
        if (here := _running.get()) is not None:
            here.names |= names
        return value

    def __reduce__(self):
        return cache, (self.__wrapped__,)

    def cache_clear(self):
        """Forget all values."""
        self.kept.clear()
