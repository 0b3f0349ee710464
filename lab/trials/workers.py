"""Worker processes for trials, on this machine or on a Dask cluster, with one interface.

A trial is sent by cloudpickle, with the definitions of its notebook by value, the kinds that are
registered outside lab, and the files of the user's own modules. Lab and all installed packages must
be installed on the workers.
"""

import atexit
import logging
import sys
from concurrent.futures import CancelledError, as_completed
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from importlib import invalidate_caches
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from time import time

import cloudpickle

from lab import trace
from lab.trials import code, place

_pools = {}  # number of workers -> client
_code = {}  # number of workers -> hash of the code of lab that they run
# By default Dask makes workers return memory after every tensor, which takes a third of the time of
# a training step. Values in bytes.
ENVIRONMENT = "distributed.nanny.pre-spawn-environ"
MEMORY = {
    f"{ENVIRONMENT}.MALLOC_TRIM_THRESHOLD_": 2**30,
    f"{ENVIRONMENT}.MALLOC_MMAP_THRESHOLD_": 2**25,
}
# By default Dask samples the stack of every trial and ticks an event loop 50 times a second, which
# takes a tenth of the time of a training step.
QUIET = {"distributed.worker.profile.enabled": False, "distributed.admin.tick.interval": "1s"}
# A trial that kills one worker runs once more, and a sweep without workers ends after a minute.
PATIENCE = {
    "distributed.scheduler.allowed-failures": 1,
    "distributed.scheduler.no-workers-timeout": "60s",
}
_alone = Lock()  # held while a trial runs in this worker
CONNECT_SECONDS = 8  # time for a scheduler to answer, and again for a worker to be ready
GONE = "the cluster went away; finished trials are stored, run again to go on"


# What is sent to workers


def foreign_kinds():
    """[(seam, kind, class)] of every kind that is registered outside lab."""
    found = []
    for name, seam in trace.SEAMS.items():
        for kind, variant in seam.kinds.items():
            if variant.__module__.split(".")[0] != "lab":
                found.append((name, kind, variant))
    return found


def pack(trial, modules):
    """The trial, the kinds that are registered outside lab, and the user's modules, as bytes."""
    kinds = foreign_kinds()
    sources, modules = [trial], set(modules)
    for _, _, variant in kinds:
        found = code.Code()
        found.add_object(variant)
        modules |= found.modules
        sources.append(variant)
    homes = {each.__module__ for each in sources} - {"__main__"}  # always pickled by value
    typed_in = [sys.modules[name] for name in homes if code.is_typed_in(name)]
    for module in typed_in:
        cloudpickle.register_pickle_by_value(module)
    try:
        inner = cloudpickle.dumps((trial, kinds))
    finally:
        for module in typed_in:
            cloudpickle.unregister_pickle_by_value(module)
    # The time makes the bytes new for each sweep, so that `unpack` does not return an old trial.
    return cloudpickle.dumps((files_of(modules), inner, time()))


def files_of(modules):
    """{relative path: text} of those modules that are the user's own files."""
    found = {}
    for name in modules:
        path = None if name.startswith("lab.") else code.source_file(name)
        if path and not code.is_installed(path) and name != "__main__":
            place = name.replace(".", "/")
            place += "/__init__.py" if Path(path).name == "__init__.py" else ".py"
            found[place] = Path(path).read_text("utf-8")
    return found


@lru_cache(maxsize=1)  # a process holds the modules and kinds of one trial at a time
def unpack(packed):
    """The trial that `pack` packed. Its modules and kinds replace those of the trial before it."""
    files, inner, _ = cloudpickle.loads(packed)
    place_modules(files)
    for seam, kind, _ in foreign_kinds():
        del trace.SEAMS[seam].kinds[kind]
    trial, kinds = cloudpickle.loads(inner)
    for seam, kind, variant in kinds:
        trace.SEAMS[seam].kinds[kind] = variant
    return trial


_folder = None  # temporary folder with the modules of the last trial


def place_modules(files):
    """Make {relative path: text} importable in this process, replacing the files placed before."""
    global _folder
    before, _folder = _folder, TemporaryDirectory(prefix="lab-modules-")
    names = {path.split("/")[0].removesuffix(".py") for path in files}
    if before:
        names |= {path.stem for path in Path(before.name).iterdir()}
        before.cleanup()
    for name, text in files.items():
        path = Path(_folder.name) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    others = [path for path in sys.path if before is None or path != before.name]
    sys.path[:] = [_folder.name, *others]
    for name in [name for name in sys.modules if name.split(".")[0] in names]:
        del sys.modules[name]
    invalidate_caches()


# Workers of this machine


@contextmanager
def local(n_workers):
    """Yield a Dask client of `n_workers` worker processes on this machine.

    The workers search the same folders for modules as this process. They stay for the next sweep,
    since starting them takes seconds. They end with this process, with an exception, and when a
    file of lab has changed, because a worker does not import a module again.
    """
    now = place.files_hash()
    if n_workers in _pools and not (_code[n_workers] == now and _ready(n_workers)):
        _close(n_workers)
    if n_workers not in _pools:
        _pools[n_workers], _code[n_workers] = _start(n_workers), now
        atexit.register(_close, n_workers)
    try:
        yield _pools[n_workers]
    except BaseException:
        _close(n_workers)
        raise


def _start(n_workers):
    from dask import config
    from dask.distributed import Client, LocalCluster

    options = {
        "threads_per_worker": 1,
        "processes": True,
        "dashboard_address": None,
        "memory_limit": 0,
        # Any free port, so that several runs at a time do not collide.
        "scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"},
    }
    with config.set(MEMORY | QUIET | PATIENCE), script_left_alone():
        return Client(LocalCluster(n_workers=n_workers, silence_logs=logging.CRITICAL, **options))


@contextmanager
def script_left_alone():
    """Keep processes that start inside the block from running the calling script again.

    So a script needs no `if __name__ == "__main__"`. Trials are sent with the definitions of the
    script that they use.
    """
    main = sys.modules["__main__"]
    hidden = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
    vars(main).pop("__file__", None)
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(hidden)


def _ready(n_workers):
    """Whether all workers of a pool run, after a wait of CONNECT_SECONDS for those that restart."""
    try:
        _pools[n_workers].wait_for_workers(n_workers, timeout=CONNECT_SECONDS)
        _pools[n_workers].run(_search, sys.path)
    except Exception:
        return False
    return True


def _search(folders):
    sys.path[:] = folders


def _close(n_workers):
    if client := _pools.pop(n_workers, None):
        client.cluster.close()
        client.close()


# A cluster


@contextmanager
def connected(address):
    """Yield a Dask client of the cluster at an address such as tcp://host:8786.

    Raises ConnectionError if no scheduler answers there or the cluster has no workers.
    """
    from dask.distributed import Client

    try:
        client = Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TypeError) as error:  # TypeError: tls:// without certificates
        raise ConnectionError(
            f"no Dask scheduler answers at {address}: check the address, that `dask scheduler` "
            f"runs there and that its port can be reached from here ({error})"
        ) from None
    with client:
        try:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError:
            raise ConnectionError(
                f"the scheduler at {address} has no workers: start `dask worker {address}`"
            ) from None
        client.get_versions(check=True)
        yield client


def agreed(client, place):
    """The value that `place()` returns on all workers.

    Raises RuntimeError if the values differ or a worker cannot load `place`, and ConnectionError if
    no worker answers. An exception of `place()` itself is raised here.
    """
    try:
        answers = client.run(place, on_error="return")
    except OSError:  # the scheduler went away
        answers = {}
    # A worker that was killed just now answers with an OSError.
    there = {name: answer for name, answer in answers.items() if not isinstance(answer, OSError)}
    for answer in there.values():
        # Dask reports a call that cannot be unpickled as a plain Exception.
        if isinstance(answer, ImportError) or type(answer) is Exception:
            raise RuntimeError(
                f"a worker cannot load lab or the trial ({answer}): install the same commit there"
            )
        if isinstance(answer, Exception):
            raise answer
    if not there:
        raise ConnectionError("no worker answers; finished trials are stored, run again to go on")
    first, *others = there.values()
    if any(other != first for other in others):
        found = "\n".join(f"  {worker}: {value}" for worker, value in there.items())
        raise RuntimeError(
            f"the workers differ, so their trials would too; install the same on all:\n{found}"
        )
    return first


def slots(client):
    """({worker: trials at a time}, the Dask resources that a trial needs).

    If workers announce GPUs, only those run trials, and a trial takes one GPU; else every worker
    runs one trial at a time and the resources are None.
    """
    there = client.scheduler_info(n_workers=-1)["workers"]
    gpus = {name: int(worker["resources"].get("GPU", 0) > 0) for name, worker in there.items()}
    if any(gpus.values()):  # dask worker --resources GPU=1
        return gpus, {"GPU": 1}
    return dict.fromkeys(there, 1), None


# Trials


def run(client, call, trial, found, left):
    """Yield (key, call(trial, point)) for each item of `left`, {key: point}, as trials finish.

    `found` is the trial's `Code`. A call that kills every worker it runs on, or that cannot be
    sent, yields {"failed": cause}. Raises RuntimeError if the workers cannot load the trial, and
    ConnectionError if the scheduler or all workers of this machine go away.
    """
    from dask.distributed import KilledWorker
    from distributed.client import ClosedClientError
    from distributed.scheduler import NoWorkerError

    packed = pack(trial, found.modules)
    # Tested first, because a worker that is sent a call it cannot load ends itself.
    agreed(client, partial(_arrives, packed))
    executor = client.get_executor(pure=False, retries=2, resources=slots(client)[1])
    work = {key: partial(_call, call, packed, point) for key, point in left.items()}

    def outcome(future):
        try:
            return future.result()
        except KilledWorker:
            return None
        except (CancelledError, NoWorkerError):
            raise ConnectionError(GONE) from None
        # The worker could not load the call, or this process could not load its result.
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"}

    try:
        suspects = []
        # Grids usually grow, so the last points take longest. They start first, so that no worker
        # runs a long trial alone at the end.
        futures = {executor.submit(task): key for key, task in reversed(work.items())}
        for future in _finished(futures, client):
            if (result := outcome(future)) is None:
                suspects.append(futures[future])
            else:
                yield futures[future], result
        # Suspects run one at a time, so that a trial that shared a worker with a killer finishes.
        killed = {"failed": "every worker that ran it was killed (out of memory, or a crash)"}
        for key in suspects:
            yield key, outcome(executor.submit(work[key])) or killed
    finally:
        with suppress(ClosedClientError):  # a closed client has no futures left to cancel
            executor.shutdown(wait=False)


def _finished(futures, client):
    """Yield the futures as they finish.

    Raises ConnectionError where the client is closed, since a result never arrives once the
    scheduler has died.
    """
    waiting = set(futures)
    while waiting:
        try:
            for future in as_completed(waiting, timeout=5):
                waiting.discard(future)
                yield future
        except TimeoutError:
            if client.status in ("closing", "closed"):
                raise ConnectionError(GONE) from None


def _arrives(packed):
    """Whether this worker can load `packed`; not tested, and True, while it runs a trial."""
    if not _alone.acquire(blocking=False):
        return True
    try:
        return callable(unpack(packed))
    finally:
        _alone.release()


def _call(call, packed, point):
    with _alone:  # trials of one process share its modules, random numbers and threads
        return call(unpack(packed), point)
