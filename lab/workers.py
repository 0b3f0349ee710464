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
_pools = {}  # {number of processes: pool}
LOST = "lost the connection to the cluster; finished trials are cached: rerun to resume"


def cores():
    """The number of cores that this process may use."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


def outcomes(call, points, *, jobs=1, cluster=""):
    """Yield (point, result or exception) as calls finish.

    `call` must be picklable. With jobs=1, calls run in this process. If a local worker process
    dies, the calls that were running are retried one at a time; a call whose worker dies again
    yields a RuntimeError. On a cluster, Dask retries calls.
    """
    if cluster:
        with connected(cluster) as client:
            executor = client.get_executor(pure=False, retries=1)
            slots = sum(client.nthreads().values())

            def is_alive():
                return client.status == "running"

            yield from run_concurrently(executor, call, points, slots, is_alive)
    elif jobs == 1:
        for point in points:
            try:
                yield point, call(point)
            except Exception as error:
                yield point, error
    else:
        yield from in_pool(call, points, jobs)


def in_pool(call, points, jobs):
    """Yield (point, result or exception) from local processes, which later sweeps reuse."""
    waiting, suspects = list(points), []
    while waiting or suspects:
        isolated = bool(suspects)
        batch = [suspects.pop()] if isolated else waiting
        done = []
        for point, result in run_concurrently(pool(jobs), call, batch, 1 if isolated else jobs):
            if isinstance(result, BrokenProcessPool):
                _pools.clear()
                if not isolated:
                    suspects.append(point)
                    continue
                result = RuntimeError("its worker process died (out of memory or a crash)")
            done.append(point)
            yield point, result
        if not isolated:
            waiting = [point for point in waiting if point not in done and point not in suspects]


def run_concurrently(executor, call, points, limit, is_alive=None):
    """Yield (point, result or exception) with at most `limit` calls in flight.

    If a worker process dies, the remaining points are not started. Raises ConnectionError if
    is_alive() returns False.
    """
    waiting, running, broken = list(points), {}, False
    try:
        while running or (waiting and not broken):
            while waiting and len(running) < limit and not broken:
                try:
                    running[executor.submit(call, waiting[0])] = waiting[0]
                    del waiting[0]
                except BrokenProcessPool:
                    broken = True
            for future in wait(running, POLL_SECONDS, FIRST_COMPLETED).done:
                result = outcome(future)
                broken = broken or isinstance(result, BrokenProcessPool)
                yield running.pop(future), result
            if is_alive and not is_alive():
                raise ConnectionError(LOST)
    except BaseException:  # includes GeneratorExit
        stop(executor)
        raise


def outcome(future):
    """The result or exception of a finished future."""
    try:
        return future.exception() or future.result()
    except CancelledError:
        raise ConnectionError(LOST) from None


def stop(executor):
    """Kill a pool; the next sweep starts a new one."""
    _pools.clear()
    processes = list((getattr(executor, "_processes", None) or {}).values())
    executor.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.kill()


def is_started(jobs):
    """Whether `pool(jobs)` is running."""
    return jobs in _pools


def pool(jobs):
    """The shared pool of `jobs` processes. Raises OSError if it cannot be started."""
    if jobs not in _pools:
        try:
            _pools[jobs] = processes(jobs)
        except OSError as error:
            raise OSError(f"cannot start worker processes ({error}): use --jobs 1") from None
    return _pools[jobs]


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
    from dask.distributed import Client

    try:
        client = Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TypeError) as error:  # TypeError: tls:// without certificates
        raise ConnectionError(
            f"no Dask scheduler responds at {address}: check that `dask scheduler` runs there and "
            f"that its port is reachable from here ({error})"
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
