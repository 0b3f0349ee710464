"""What a running trial touches besides its parameters: registered kinds, files, sources of data, clocks, its training.

The engine opens a `touching()` around every trial; seams, tasks, measurements and the training loop report here. This
module knows none of them, and outside a trial every report is a single look at a variable.
"""

import functools
import hashlib
import inspect
import os
import sys
import sysconfig
import time
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

FIRST_STEPS = 10  # of a training, kept one by one; after them those that are powers of two
CODE = (".py", ".pyc", ".pyi", ".pth", ".so", ".pyd", ".dll")  # followed as code, not as data
SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib/", "/run/")
SEAMS = {}  # name -> seam, the registries of kinds (lab.models.registry)

_running = ContextVar("touched", default=None)
_listener = ContextVar("listener", default=None)
_hooked = False


class Enough(BaseException):
    """Ends a trial of which no more than the beginning is wanted; no `except Exception` of a trial stops it."""


@dataclass
class Touched:
    """Names of kinds, (name, sha256) of data, paths of files, and the beginning of the first training."""

    kinds: set = field(default_factory=set)  # "Position.rotary"
    data: dict = field(default_factory=dict)  # "corpus" -> hash
    files: set = field(default_factory=set)
    written: set = field(default_factory=set)
    curve: list = field(default_factory=list)  # [step, loss], from step 0 of the first training
    batch: str = ""  # hash of its first batch
    timing: bool = False  # clocks may be read
    until: float = float("inf")  # time.perf_counter() at which a training is left
    spared: float = 0.0  # seconds that trainings took whose models were kept

    def merge(self, other):
        if not self.curve:
            self.curve, self.batch = list(other.curve), other.batch
        self.spared += other.spared
        self.kinds |= other.kinds
        self.data |= other.data
        self.files |= other.files
        self.written |= other.written

    def all_data(self):
        """{name: sha256} of everything read from outside the trial, as it is now."""
        return self.data | {path: file_hash(path) for path in sorted(self.files - self.written) if os.path.isfile(path)}


@contextmanager
def touching(**options):
    """A `Touched` that fills while the block runs; what a block inside touches counts for the one around it too."""
    _hook()
    here, around = Touched(**options), _running.get()
    if around is not None:
        here.until = min(here.until, around.until)
    token = _running.set(here)
    try:
        yield here
    finally:
        _running.reset(token)
        if around is not None:
            around.merge(here)


@contextmanager
def apart():
    """Inside, nothing is reported: for what is told as a whole by `reads`."""
    token = _running.set(None)
    try:
        yield
    finally:
        _running.reset(token)


def looked_up(seam, kind):
    """A kind of a seam was chosen by its name. TypeError where its methods do not take what they are given."""
    if seam in SEAMS and kind in SEAMS[seam].kinds:
        takes_what_is_given(SEAMS[seam], kind, SEAMS[seam].kinds.get(kind))
    if (here := _running.get()) is not None:
        here.kinds.add(f"{seam}.{kind}")


@functools.cache
def takes_what_is_given(seam, kind, variant):
    """TypeError names a method of a variant that cannot be called as its seam's is, and the arguments it gets.

    Of those of a `forward` that have a default a variant may do without.
    """
    for name, method in vars(seam).items():
        if name.startswith("_") or not inspect.isfunction(method) or not inspect.isfunction(getattr(variant, name)):
            continue
        given, takes = inspect.signature(method), inspect.signature(getattr(variant, name))
        needed = [p for p in given.parameters.values() if name != "forward" or p.default is p.empty]
        placed = [p for p in needed if p.kind is p.POSITIONAL_OR_KEYWORD]
        named = {p.name: None for p in needed if p.kind is p.KEYWORD_ONLY}
        try:
            takes.bind(*placed, **named)
        except TypeError:
            where = f"{seam.__name__.lower()} {kind!r}, {variant.__module__}.{variant.__qualname__}"
            raise TypeError(f"{where}: {name}{takes} is given {name}{given}: let it take these arguments") from None


def reads(name, digest):
    """A source of data that is more than a file, such as "corpus", with its hash."""
    if (here := _running.get()) is not None:
        here.data[name] = digest


def replay(touched):
    """What happens here was done earlier, and touched this."""
    if (here := _running.get()) is not None:
        here.merge(touched)


def clock(what):
    """Clocks and memory are read here. RuntimeError in a trial whose rows are recorded: they would be a machine's."""
    here = _running.get()
    if here is not None and not here.timing:
        raise RuntimeError(f"{what} measures this machine: sweep it with timing=True, so that it is never recorded")


@contextmanager
def watching(listener):
    """Inside, on this thread, training calls listener(step, steps) at every step, from step 0; it may raise to end it.

    What ends a trial whatever it catches is `Enough`.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def step(number, loss, batch=(), steps=0):
    """Step `number` of `steps` of a training has the loss (a tensor or number); `batch` are that step's tensors."""
    if (listener := _listener.get()) is not None:
        listener(number, steps)
    here = _running.get()
    if here is None:
        return
    if time.perf_counter() > here.until:
        raise Enough
    follows = number == (here.curve[-1][0] + 1 if here.curve else 0) or (here.curve and number > here.curve[-1][0])
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
    """functools.cache for what reads files or looks up kinds: who is given a kept value has touched the same."""
    kept = {}

    @functools.wraps(function)
    def remembered(*arguments, **named):
        key = (arguments, tuple(sorted(named.items())))
        if key not in kept:
            with touching(timing=True) as seen:
                kept[key] = function(*arguments, **named), seen
        value, seen = kept[key]
        if (here := _running.get()) is not None:
            here.merge(seen)
        return value

    remembered.cache_clear = kept.clear
    return remembered


@contextmanager
def executed():
    """A set that fills with "module.definition" of every function of lab that runs inside, the engine's aside."""
    found = set()

    def seen(frame, event, _):
        module, name = frame.f_globals.get("__name__") or "", frame.f_code.co_qualname.partition(".")[0]
        if event == "call" and module.startswith("lab.") and not name.startswith(("<", "__")):
            found.add(f"{module}.{name}")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        yield found
    finally:
        sys.setprofile(before)


# Files


def file_hash(path):
    """sha256 of a file's bytes, short; read once while size and time of change stay."""
    state = os.stat(path)
    return _file_hash(str(path), state.st_mtime_ns, state.st_size)


@functools.lru_cache(maxsize=4096)
def _file_hash(path, changed, size):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def _hook():
    global _hooked
    if not _hooked:
        _hooked = True
        sys.addaudithook(_audit)


def _audit(event, arguments):
    if event != "open" or (here := _running.get()) is None:
        return
    path, mode, flags = arguments
    if not isinstance(path, (str, os.PathLike)):
        return
    path = os.path.abspath(path)
    if (isinstance(mode, str) and set(mode) & set("wax+")) or (
        mode is None and (flags or 0) & (os.O_WRONLY | os.O_RDWR)
    ):
        here.written.add(path)
    elif not path.endswith(CODE) and not path.startswith(_installed()):
        here.files.add(path)


@functools.cache
def _installed():
    """Folders whose files belong to the system, to Python or to an installed package."""
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return SYSTEM + tuple(f"{folder}{os.sep}" for folder in sorted(folders))
