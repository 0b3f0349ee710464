"""Trials in parallel: worker processes of this machine, or those of a Dask cluster."""

import os
import signal
import sys
import threading
from concurrent.futures import FIRST_COMPLETED, CancelledError, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process

CONNECT_SECONDS = 8  # time for a scheduler to answer, and for its first worker to be there
POLL_SECONDS = 5  # after which a cluster that does not answer is noticed
_pools = {}  # {number of processes: pool}
GONE = "the cluster went away; finished trials are kept, the same command goes on"


def cores():
    """The number of cores that this process may use."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count() or 1


def outcomes(call, points, *, jobs=1, cluster=""):
    """Yield (point, call(point)) as calls end; an exception stands in place of a result.

    `call` can be pickled. With jobs of 1 calls run in this process. A call whose worker dies runs
    again, alone; where that worker dies too, it gives a RuntimeError.
    """
    if cluster:
        with connected(cluster) as client:
            executor = client.get_executor(pure=False, retries=1)
            slots = sum(client.nthreads().values())

            def is_alive():
                return client.status == "running"

            yield from side_by_side(executor, call, points, slots, is_alive)
    elif jobs == 1:
        for point in points:
            try:
                yield point, call(point)
            except Exception as error:
                yield point, error
    else:
        yield from in_pool(call, points, jobs)


def in_pool(call, points, jobs):
    """Yield (point, result) from processes of this machine; they stay for the next sweep."""
    waiting, suspects = list(points), []
    while waiting or suspects:
        alone = bool(suspects)
        some = [suspects.pop()] if alone else waiting
        done = []
        for point, result in side_by_side(pool(jobs), call, some, 1 if alone else jobs):
            if isinstance(result, BrokenProcessPool):
                _pools.clear()
                if not alone:
                    suspects.append(point)
                    continue
                result = RuntimeError("its worker process died (out of memory, or a crash)")
            done.append(point)
            yield point, result
        if not alone:
            waiting = [point for point in waiting if point not in done and point not in suspects]


def side_by_side(executor, call, points, at_once, is_alive=None):
    """Yield (point, result or exception) of calls, `at_once` of them at a time.

    Ends early, without the points that had not begun, where a process of the pool died. Raises
    ConnectionError where is_alive() of a cluster is false.
    """
    waiting, running, broken = list(points), {}, False
    try:
        while running or (waiting and not broken):
            while waiting and len(running) < at_once and not broken:
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
                raise ConnectionError(GONE)
    except BaseException:  # also where the reader of this generator stops
        stop(executor)
        raise


def outcome(future):
    """The result of a finished future, or its exception."""
    try:
        return future.exception() or future.result()
    except CancelledError:
        raise ConnectionError(GONE) from None


def stop(executor):
    """End a pool whose trials nobody waits for; the next sweep starts another one."""
    _pools.clear()
    processes = list((getattr(executor, "_processes", None) or {}).values())
    executor.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.kill()


def is_started(jobs):
    """Whether the processes of `pool(jobs)` run already."""
    return jobs in _pools


def pool(jobs):
    """A pool of `jobs` processes. Raises OSError where this machine cannot start one."""
    if jobs not in _pools:
        try:
            _pools[jobs] = processes(jobs)
        except OSError as error:
            raise OSError(f"no worker process can start here ({error}): use --jobs 1") from None
    return _pools[jobs]


def processes(count):
    """A pool of `count` new processes."""
    with script_left_alone():
        made = ProcessPoolExecutor(count, get_context("spawn"), initializer=begin_worker)
        for _ in range(count):
            made.submit(os.getpid)  # starts one
    return made


def begin_worker():
    """End this process when the one that started it has ended, even if that was killed.

    Ctrl-C reaches all processes of a terminal; the one that started this one answers it.
    """

    def watch():
        parent_process().join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def script_left_alone():
    """Keep processes that start inside the block from running the calling script again.

    So a script needs no `if __name__ == "__main__"`: its definitions are sent with the trial.
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
    """Yield a Dask client of the cluster at an address such as tcp://host:8786.

    Raises ConnectionError where no scheduler answers there, or it has no workers.
    """
    from dask.distributed import Client

    try:
        client = Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError, TypeError) as error:  # TypeError: tls:// without certificates
        raise ConnectionError(
            f"no Dask scheduler answers at {address}: check that `dask scheduler` runs there and "
            f"that its port can be reached from here ({error})"
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
