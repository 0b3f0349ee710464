"""The memory that a call takes at its peak, measured in a process of its own; and whether sizes fit this machine."""

import bisect
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from ctypes import CDLL, c_size_t, c_void_p
from functools import cache, partial, reduce
from importlib import import_module

import psutil

from lab import trace


def within_memory(need, **sizes):
    """ValueError where need(**sizes), bytes, is over 4/5 of what is free; tells what fits of each size alone.

    Of a list the largest counts; `need` grows with every size.
    """
    sizes = {name: max(size) if isinstance(size, list) else size for name, size in sizes.items()}
    available = available_memory()

    def fits(**changed):
        return 5 * need(**sizes | changed) <= 4 * available

    if fits():
        return
    fitting = []
    for name, size in sizes.items():
        most = bisect.bisect_left(range(size), True, key=lambda n, name=name: not fits(**{name: n + 1}))
        if most:
            fitting.append(f"{name} that fits is {most}")
    given = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    largest = f"the largest {' or '.join(fitting)}" if fitting else "no single size makes it fit"
    needed = f"{given} needs about {need(**sizes) / 2**30:.1f} GiB"
    raise ValueError(f"{needed}, {available / 2**30:.1f} GiB are available; {largest}")


def available_memory():
    """Bytes of memory that can be had without swapping, as far as the system tells."""
    return psutil.virtual_memory().available


def peak_memory(function, calls, *, warmup_args=None, **kwargs) -> list[int]:
    """Largest extra memory, in bytes, during `function(*args, **kwargs)` for each `args` of `calls`, in a new process.

    The function lives at the top of an importable module, its arguments are plain JSON values. `warmup_args`, a tiny
    size, is run first so that libraries and thread pools are in the baseline. Counts GPU memory once the function uses
    CUDA, else resident memory; where the system cannot reset its peak (macOS), let the sizes grow. ValueError for a
    function that no process can import; RuntimeError if a call fails or is killed.
    """
    import torch  # here, so that the checks of a notebook need no torch

    trace.clock("peak_memory")
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module in (None, "__main__") or _found(module, name) is not function:
        raise ValueError(f"a new process cannot import {function}: move it to the top of a module")
    job = json.dumps([module, name, calls, kwargs, warmup_args, torch.get_num_threads()])
    if _server().poll() is not None:
        _server.cache_clear()
    try:
        _server().stdin.write(f"{job}\n")
        _server().stdin.flush()
        answer = json.loads(_server().stdout.readline())
    except BaseException:  # an interrupt, perhaps: nobody waits for the answer any more
        os.killpg(_server().pid, signal.SIGKILL)
        _server().wait()
        raise
    if "failed" in answer:
        raise RuntimeError(f"{module}.{name} failed in its own process on one of {calls}: {answer['failed']}")
    return answer["peaks"]


@cache
def _server():
    """A process that has imported torch and forks one for each job; it ends with this one."""
    # Every large block gets its own mapping, which glibc gives back when it is freed.
    honest = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    command = [sys.executable, "-P", "-c", "from lab.measure.memory import _serve; _serve()"]
    options = {"env": os.environ | honest | {"PYTHONPATH": path}, "text": True, "start_new_session": True}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, **options, **pipes)


def _found(module, name):
    """What stands under a dotted name in a module, None where nothing does."""
    return reduce(lambda place, part: getattr(place, part, None), str(name).split("."), import_module(module))


def _serve():
    """The process of `_server`: a job a line on standard input, a line with its answer on standard output."""
    import_module("torch")  # once, before any fork
    for job in map(json.loads, sys.stdin):
        with suppress(Exception):  # a module that cannot be imported says so in the new process
            import_module(job[0])
        gc.freeze()  # so that collecting in the new process copies nothing
        with tempfile.TemporaryFile("w+") as file:
            if not (child := os.fork()):
                _answer(job, file)
            _, status = os.waitpid(child, 0)
            file.seek(0)
            said = file.read()
        print(said or json.dumps({"failed": f"killed by signal {os.WTERMSIG(status)}"}), flush=True)


def _answer(job, file):
    """Write {"peaks": bytes of each call} or {"failed": why} to the file, and end this process."""
    import torch

    os.dup2(2, 1)  # what a call prints is no answer
    try:
        module, name, calls, kwargs, warmup_args, threads = job
        torch.set_num_threads(threads)
        _map_libraries()
        call = partial(_found(module, name), **kwargs)
        if warmup_args is not None:
            call(*warmup_args)
        answer = {"peaks": [_peak(call, args) for args in calls]}
    except Exception:
        answer = {"failed": traceback.format_exc()[-2000:]}
    json.dump(answer, file)
    file.flush()
    os._exit(0)


def _map_libraries():
    """Make the code of all libraries resident, as a page that is touched first counts where it is touched (Linux)."""
    populate_read = 22  # of madvise(2); older kernels refuse it
    maps = open("/proc/self/maps").readlines() if sys.platform == "linux" else []
    for line in maps:
        span, mode, *_ = line.split()
        start, end = (int(each, 16) for each in span.split("-"))
        if mode.startswith("r-x"):
            CDLL(None).madvise(c_void_p(start), c_size_t(end - start), populate_read)


def _peak(call, args):
    import torch

    gc.collect()
    if sys.platform == "linux" and hasattr(glibc := CDLL(None), "malloc_trim"):
        glibc.malloc_trim(0)
    cuda_before = 0
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
        cuda_before = torch.cuda.memory_allocated()
    before = _resident_peak(reset=True)
    call(*args)
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() - cuda_before
    return _resident_peak(reset=False) - before


def _resident_peak(reset):
    """Peak resident bytes of this process, on Linux since the last reset."""
    try:
        if reset:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
