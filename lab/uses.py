"""Run-time dependencies of a trial: kinds it looks up by name, data it reads, clocks it uses.

A kind is the name of a registered variant of a part of a model, such as Position.rotary.

`lab.trials.run` runs every trial inside `watched()`. Registries, tasks and measurements report to
this module, which imports none of them. Reports outside a trial are ignored.
"""

import functools
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

SEAMS = {}  # {name: seam class}, filled by lab.models.registry

_running = ContextVar("running", default=None)


@dataclass
class Uses:
    """Names of the dependencies of a trial, such as "Position.rotary" and "corpus".

    With `timing`, the trial may measure time and memory.
    """

    names: set = field(default_factory=set)
    timing: bool = False


@contextmanager
def watched(timing=False):
    """Yield the `Uses` recorded inside the block."""
    here = Uses(timing=timing)
    token = _running.set(here)
    try:
        yield here
    finally:
        _running.reset(token)


def looked_up(seam, kind):
    """Report that the trial looked up a kind by name."""
    reads(f"{seam}.{kind}")


def reads(name):
    """Report that the trial reads data, such as "corpus PATH"; lab.key.now hashes the data."""
    if (here := _running.get()) is not None:
        here.names.add(name)


def clock(what):
    """Report that the function `what` measures time or memory.

    Raises RuntimeError in a trial without `timing`.
    """
    here = _running.get()
    if here is None:
        return
    if not here.timing:
        raise RuntimeError(f"{what} measures time or memory: pass timing=True to the sweep")
    here.names.add("clock")


class cache:
    """A replacement for functools.cache, for functions that read data or look up kinds.

    A cache hit reports the dependencies of the original computation. Cached values stay in their
    process: a pickled function arrives in a worker process with an empty cache.
    """

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.results = {}

    def __call__(self, *arguments, **named):
        key = (arguments, tuple(sorted(named.items())))
        if key not in self.results:
            with watched(timing=True) as seen:
                self.results[key] = self.__wrapped__(*arguments, **named), seen.names
        value, names = self.results[key]
        if (here := _running.get()) is not None:
            here.names |= names
        return value

    def __reduce__(self):
        return cache, (self.__wrapped__,)

    def cache_clear(self):
        self.results.clear()
