"""Peak memory of a call."""

import os
from functools import partial
from itertools import accumulate

from lab import uses


def peak_memory(function, calls, *, warmup_args=None, **kwargs) -> list[int]:
    """Peak bytes of tensors during function(*args, **kwargs), for each `args` of `calls`.

    Tensors allocated before the call are not included. The bytes are those of torch's allocators,
    so equal calls give equal numbers; other memory (scratch space of libraries, NumPy arrays,
    Python objects) is not included. If a call allocates GPU memory, only GPU memory is included.

    The function first runs with `warmup_args`, a tiny size, so that memory that it allocates once
    and keeps is not included.
    """
    uses.clock("peak_memory")
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
