"""The memory that a call takes at its peak, measured in a process that imports little and so starts soon."""

import gc
import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from ctypes import CDLL
from functools import partial, reduce
from importlib import import_module

import torch

from lab import trace


def peak_memory(function, calls, *, warmup_args=None, **kwargs) -> list[int]:
    """Largest extra memory, in bytes, during `function(*args, **kwargs)` for each `args` of `calls`, in a new process.

    The function lives at the top of an importable module, its arguments are plain JSON values. `warmup_args`, a tiny
    size, is run first so that libraries and thread pools are in the baseline. Counts GPU memory once the function uses
    CUDA, else resident memory; where the system cannot reset its peak (macOS), let the sizes grow. ValueError for a
    function that no process can import; RuntimeError if a call fails or is killed.
    """
    trace.clock("peak_memory")
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module in (None, "__main__") or _found(module, name) is not function:
        raise ValueError(f"a new process cannot import {function}: move it to the top of a module")
    job = [module, name, calls, kwargs, warmup_args, torch.get_num_threads()]
    # Every large block gets its own mapping, which glibc gives back when it is freed.
    honest = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    command = [sys.executable, "-P", "-c", "from lab.measure.memory import _answer_peaks; _answer_peaks()"]
    environment = os.environ | honest | {"PYTHONPATH": path}
    done = subprocess.run(command, input=json.dumps(job), env=environment, capture_output=True, text=True)
    if done.returncode:
        cause = f"killed by signal {-done.returncode}" if done.returncode < 0 else done.stderr.strip()[-2000:]
        raise RuntimeError(f"{module}.{name} failed in its own process on one of {calls}: {cause}")
    return json.loads(done.stdout.splitlines()[-1])


def _found(module, name):
    """What stands under a dotted name in a module, None where nothing does."""
    return reduce(lambda place, part: getattr(place, part, None), str(name).split("."), import_module(module))


def _answer_peaks():
    """The new process of `peak_memory`: job on standard input, bytes on standard output."""
    module, name, calls, kwargs, warmup_args, threads = json.load(sys.stdin)
    torch.set_num_threads(threads)
    call = partial(_found(module, name), **kwargs)
    with redirect_stdout(sys.stderr):
        if warmup_args is not None:
            call(*warmup_args)
        peaks = [_peak(call, args) for args in calls]
    print(json.dumps(peaks))


def _peak(call, args):
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
