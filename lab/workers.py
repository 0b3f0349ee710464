"""Run trials in parallel, in local worker processes or on a Dask cluster."""

import os
import signal
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, CancelledError, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process

CONNECT_SECONDS = 8  # timeout for the scheduler and for its first worker
POLL_SECONDS = 5  # how often to check that the cluster is alive
pools = {}  # {number of processes: pool}
RESUME = "finished trials are cached: rerun to resume"
DIED = f"a worker process died (out of memory or a crash); {RESUME}"
LOST = f"lost the connection to the cluster; {RESUME}"


def cores():
    """The number of cores that this process may use."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


def outcomes(call, points, *, jobs=1, cluster=""):
    """Yield (point, result or exception) as calls finish.

    `call` must be picklable. With jobs=1, calls run in this process. Raises ChildProcessError if a
    local worker process dies, and ConnectionError if the cluster is lost.
    """
    if cluster:
        with connected(cluster) as client:
            yield from run_concurrently(client.get_executor(pure=False), call, points, client)
    elif jobs > 1:
        yield from run_concurrently(pool(jobs), call, points)
    else:
        for point in points:
            try:
                yield point, call(point)
            except Exception as error:
                yield point, error


def run_concurrently(executor, call, points, client=None):
    """Yield (point, result or exception) as the calls that an executor runs finish.

    `client` is the Dask client of a cluster.
    """
    try:
        running = {executor.submit(call, point): point for point in points}
        while running:
            for future in wait(running, POLL_SECONDS, FIRST_COMPLETED).done:
                yield running.pop(future), outcome(future)
            if client and client.status != "running":
                raise CancelledError
    except BaseException as error:  # includes GeneratorExit
        stop(executor)
        if isinstance(error, BrokenProcessPool):
            raise ChildProcessError(DIED) from None
        if isinstance(error, CancelledError):
            raise ConnectionError(LOST) from None
        raise


def outcome(future):
    """The result or exception of a finished future; raises if its process or cluster is lost."""
    error = future.exception()  # raises CancelledError
    if isinstance(error, BrokenProcessPool):
        raise error
    return error or future.result()


def stop(executor):
    """Kill a pool, so that the next sweep starts a new one; cancel the calls on a cluster.

    Other pools are kept.
    """
    for jobs in [jobs for jobs, pool in pools.items() if pool is executor]:
        del pools[jobs]
    if not isinstance(executor, ProcessPoolExecutor):
        executor.shutdown(wait=False)
        return
    processes = list((executor._processes or {}).values())
    executor.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.kill()


def pool(jobs):
    """The shared pool of `jobs` processes. Raises OSError if it cannot be started."""
    if jobs not in pools:
        try:
            pools[jobs] = processes(jobs)
        except OSError as error:
            raise OSError(f"cannot start worker processes ({error}): use --jobs 1") from None
    return pools[jobs]


def processes(count):
    """A new pool of `count` processes."""
    with main_hidden():
        executor = ProcessPoolExecutor(count, get_context("spawn"), initializer=begin_worker)
        for _ in range(count):
            executor.submit(os.getpid)  # start one process
    return executor


def begin_worker():
    """Exit when the parent process exits, even if it is killed; let the parent handle Ctrl-C."""

    def watch():
        parent_process().join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def main_hidden():
    """Keep new processes from importing the calling script: trials are pickled by value.

    So scripts need no `if __name__ == "__main__"`.
    """
    main = sys.modules["__main__"]
    hidden = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
    vars(main).pop("__file__", None)
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(hidden)


@contextmanager
def connected(address):
    """Yield a Dask client for the scheduler at an address such as tcp://host:8786.

    Raises ConnectionError if the scheduler does not respond or has no workers.
    """
    from distributed import Client

    try:
        client = Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TypeError) as error:  # TypeError: tls:// without certificates
        raise ConnectionError(f"no Dask scheduler responds at {address} ({error})") from None
    with client:
        try:
            client.wait_for_workers(1, timeout=CONNECT_SECONDS)
        except TimeoutError:
            hint = f"start `dask worker {address}`"
            raise ConnectionError(f"the scheduler at {address} has no workers: {hint}") from None
        yield client
