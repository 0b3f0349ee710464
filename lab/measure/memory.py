"""Peak memory of a call, and whether sizes fit into the memory of this machine."""

import bisect
import os
from functools import partial
from itertools import accumulate

import psutil

from lab import trace


def within_memory(need, **sizes):
    """Raise ValueError if need(**sizes), in bytes, exceeds 4/5 of the available memory.

    The message says which sizes would fit. A size that is a list is replaced by its maximum;
    `need` must grow with every size.
    """
    sizes = {name: max(size) if isinstance(size, list) else size for name, size in sizes.items()}
    available = available_memory()

    def fits(**changed):
        return 5 * need(**sizes | changed) <= 4 * available

    if fits():
        return
    fitting = []
    for name, size in sizes.items():
        most = bisect.bisect_left(
            range(size), True, key=lambda n, name=name: not fits(**{name: n + 1})
        )
        if most:
            fitting.append(f"{name} that fits is {most}")
    given = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    largest = f"the largest {' or '.join(fitting)}" if fitting else "no single size makes it fit"
    needed = f"{given} needs about {need(**sizes) / 2**30:.1f} GiB"
    raise ValueError(f"{needed}, {available / 2**30:.1f} GiB are available; {largest}")


def available_memory():
    """Bytes of memory available without swapping, as reported by the system."""
    return psutil.virtual_memory().available


def peak_memory(function, calls, *, warmup_args=None, **kwargs) -> list[int]:
    """Peak bytes of tensors during function(*args, **kwargs), for each `args` of `calls`.

    Tensors allocated before the call are not included. The bytes are those of torch's allocators,
    so equal calls give equal numbers; other memory (scratch space of libraries, NumPy arrays,
    Python objects) is not included. If a call allocates GPU memory, only GPU memory is included.

    The function first runs with `warmup_args`, a tiny size, so that memory that it allocates once
    and keeps is not included.
    """
    trace.clock("peak_memory")
    if warmup_args is not None:
        function(*warmup_args, **kwargs)
    return [_peak(partial(function, *args, **kwargs)) for args in calls]


def _peak(call):
    """The peak of one call, in bytes."""
    import torch  # here, so that a notebook's checks can run without torch

    # Below level 6 the profiler reports its start and stop on standard error.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    on_gpu = torch.cuda.is_initialized()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, profile_memory=True) as profile:
        call()
    if on_gpu and torch.cuda.max_memory_allocated() > before:
        return torch.cuda.max_memory_allocated() - before
    # One event per allocation, in order of time; bytes are negative when memory is freed.
    events = profile.profiler.kineto_results.events()
    sizes = [event.nbytes() for event in events if event.name() == "[memory]"]
    return max(accumulate(sizes, initial=0))
