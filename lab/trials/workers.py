"""Worker processes for trials: on this machine or on a Dask cluster, behind one interface.

A trial travels by cloudpickle, what was typed into its notebook by value, with the kinds that are
registered outside lab and the files of the user's own modules. Installed packages, and lab itself,
have to be there.
"""

import atexit
import logging
import sys
from concurrent.futures import CancelledError, as_completed
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from importlib import invalidate_caches
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from time import time

import cloudpickle

from lab import trace
from lab.trials import code, place

_pools = {}  # number of workers -> client
_code = {}  # number of workers -> hash of the code of lab that they run
# Dask lets a worker give memory back after every tensor, which costs a training step a third of its
# time.
ENVIRONMENT = "distributed.nanny.pre-spawn-environ"
MEMORY = {
    f"{ENVIRONMENT}.MALLOC_TRIM_THRESHOLD_": 2**30,
    f"{ENVIRONMENT}.MALLOC_MMAP_THRESHOLD_": 2**25,
}  # bytes
# Sampling every trial's stack and timing an event loop 50 times a second cost a training step a
# tenth of its time.
QUIET = {"distributed.worker.profile.enabled": False, "distributed.admin.tick.interval": "1s"}
# A trial may kill one worker and is then a suspect; without any worker nobody waits for ever.
PATIENCE = {
    "distributed.scheduler.allowed-failures": 1,
    "distributed.scheduler.no-workers-timeout": "60s",
}
_alone = Lock()  # of a worker's trials
CONNECT_SECONDS = 8  # how long a cluster may take to answer, and then to show a worker
GONE = "the cluster went away; finished trials are stored, run again to go on"


# What travels


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
    homes = {each.__module__ for each in sources} - {"__main__"}  # which is sent by value anyway
    typed_in = [sys.modules[name] for name in homes if code.is_typed_in(name)]
    for module in typed_in:
        cloudpickle.register_pickle_by_value(module)
    try:
        inner = cloudpickle.dumps((trial, kinds))
    finally:
        for module in typed_in:
            cloudpickle.unregister_pickle_by_value(module)
    return cloudpickle.dumps(
        (files_of(modules), inner, time())
    )  # the time: no cache outlives a sweep


def files_of(modules):
    """{path in a folder: text} of those modules that are the user's own files."""
    found = {}
    for name in modules:
        path = None if name.startswith("lab.") else code.source_file(name)
        if path and not code.is_installed(path) and name != "__main__":
            place = name.replace(".", "/")
            place += "/__init__.py" if Path(path).name == "__init__.py" else ".py"
            found[place] = Path(path).read_text("utf-8")
    return found


@lru_cache(maxsize=1)  # a process holds the modules of one
def unpack(packed):
    """The trial; its modules and kinds, and no other's, are here from now on."""
    files, inner, _ = cloudpickle.loads(packed)
    place_modules(files)
    for seam, kind, _ in foreign_kinds():
        del trace.SEAMS[seam].kinds[kind]
    trial, kinds = cloudpickle.loads(inner)
    for seam, kind, variant in kinds:
        trace.SEAMS[seam].kinds[kind] = variant
    return trial


_folder = None  # of the modules that came with the last trial


def place_modules(files):
    """Let {path in a folder: text} be modules of this process, in place of those placed before."""
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
    """A client of `n_workers` worker processes on this machine, which find modules where this
    process does.

    They stay for the next sweep, since starting them takes seconds. They end with this process,
    with an exception, and when a file of lab was edited: what a worker imported, it keeps.
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
    }
    options["scheduler_kwargs"] = {
        "dashboard_address": "127.0.0.1:0"
    }  # any free port: a second run has its own
    with config.set(MEMORY | QUIET | PATIENCE), script_left_alone():
        return Client(LocalCluster(n_workers=n_workers, silence_logs=logging.CRITICAL, **options))


@contextmanager
def script_left_alone():
    """Inside, a process that starts does not run the script again that runs here: trials bring what
    they need of it.

    So a script needs no `if __name__ == "__main__"`.
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
    """Whether all workers of a pool are there; one that was killed has a moment to come back."""
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
    """A client of the cluster at an address such as tcp://host:8786.

    Raises ConnectionError if it has no workers.
    """
    from dask.distributed import Client

    try:
        client = Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TypeError) as error:  # TypeError: tls:// without certificates
        raise ConnectionError(
            f"no Dask scheduler answers at {address}: check the address, that `dask scheduler` runs there and that its "
            f"port can be reached from here ({error})"
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
    """What `place()` returns on every worker.

    Raises RuntimeError if they differ or one cannot load `place`, and ConnectionError if none
    answers.
    """
    try:
        answers = client.run(place, on_error="return")
    except OSError:  # the scheduler went away
        answers = {}
    there = {
        worker: answer for worker, answer in answers.items() if not isinstance(answer, OSError)
    }  # killed just now
    for answer in there.values():
        if (
            isinstance(answer, ImportError) or type(answer) is Exception
        ):  # so Dask reports what could not be loaded
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
    """{worker: trials at once} and what a trial takes of it: a GPU where workers announce theirs,
    else all of it.
    """
    there = client.scheduler_info(n_workers=-1)["workers"]
    gpus = {name: int(worker["resources"].get("GPU", 0) > 0) for name, worker in there.items()}
    if any(gpus.values()):  # dask worker --resources GPU=1
        return gpus, {"GPU": 1}
    return dict.fromkeys(there, 1), None


# Trials


def run(client, call, trial, found, left, deadline=inf):
    """Yield (key, call(trial, point)) for `left`, a dict from key to point, as they finish, in any
    order.

    `found` is the trial's `Code`; with the call travels what `pack` packs. A call that kills every
    worker it runs on, or cannot be sent, yields {"failed": cause}; what has not finished at the
    deadline (time.time()) is left out, but for the first one. Raises RuntimeError if the workers
    cannot load it, and ConnectionError if the scheduler or all workers of this machine go away.
    """
    from dask.distributed import KilledWorker
    from distributed.client import ClosedClientError
    from distributed.scheduler import NoWorkerError

    packed = pack(trial, found.modules)
    agreed(
        client, partial(_arrives, packed)
    )  # a worker that is sent what it cannot load ends itself
    executor = client.get_executor(pure=False, retries=2, resources=slots(client)[1])
    work = {key: partial(_call, call, packed, point) for key, point in left.items()}

    def outcome(future):
        try:
            return future.result()
        except KilledWorker:
            return None
        except (CancelledError, NoWorkerError):
            raise ConnectionError(GONE) from None
        except Exception as error:  # the call could not be loaded there, or what it returned could not be loaded here
            return {"failed": f"{type(error).__name__}: {error}"}

    try:
        suspects = []
        longest_first = reversed(
            work.items()
        )  # as grids grow: nobody is left alone with a long trial at the end
        futures = {executor.submit(task): key for key, task in longest_first}
        for future in _finished(futures, client, deadline):
            if (result := outcome(future)) is None:
                suspects.append(futures[future])
            else:
                yield futures[future], result
        for key in suspects:  # alone now: whoever only shared a worker with a killer finishes
            result = outcome(executor.submit(work[key]))
            yield (
                key,
                result
                or {"failed": "every worker that ran it was killed (out of memory, or a crash)"},
            )
    except TimeoutError:
        for future in futures:
            future.cancel()
    finally:
        with suppress(ClosedClientError):  # it has nothing left to cancel
            executor.shutdown(wait=False)


def _finished(futures, client, deadline):
    """The futures as they finish.

    TimeoutError at the deadline, once there is one; ConnectionError where the client has been
    closed: a result that was on its way when its scheduler died never arrives.
    """
    waiting = set(futures)
    while waiting:
        try:
            for future in as_completed(waiting, timeout=max(1, min(deadline - time(), 5))):
                waiting.discard(future)
                yield future
        except TimeoutError:
            if client.status in ("closing", "closed"):
                raise ConnectionError(GONE) from None
            if time() >= deadline and len(waiting) < len(futures):
                raise


def _arrives(packed):
    """Whether a worker can load it, one that is at work aside."""
    if not _alone.acquire(blocking=False):
        return True
    try:
        return callable(unpack(packed))
    finally:
        _alone.release()


def _call(call, packed, point):
    with _alone:  # modules, random numbers and threads belong to the whole process
        return call(unpack(packed), point)
