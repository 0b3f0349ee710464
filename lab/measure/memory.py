"""Peak memory of a call."""

import os
from functools import partial
from itertools import accumulate

from lab import uses


def peak_memory(function, calls, *, warmup_args=None, **kwargs) -> list[int]:
    """Peak bytes of tensors allocated during function(*args, **kwargs), for each `args` in `calls`.

    Counts torch's allocations during the call, so equal calls give equal numbers. Tensors allocated
    before the call and other memory (library workspaces, NumPy arrays, Python objects) do not
    count. If a call allocates GPU memory, only GPU memory counts.

    With `warmup_args`, a small problem, the function first runs once unmeasured, so that memory
    that it allocates once and keeps does not count.
    """
    uses.clock("peak_memory")
    if warmup_args is not None:
        function(*warmup_args, **kwargs)
    return [_peak(partial(function, *args, **kwargs)) for args in calls]


def _peak(call):
    """Peak bytes of one call."""
    import torch  # imported here, so that parameter checks of notebooks need not import torch

    # below this level the profiler reports its start and stop on stderr
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
    # one event per allocation or release, in time order; released bytes are negative
    events = profile.profiler.kineto_results.events()
    sizes = [event.nbytes() for event in events if event.name() == "[memory]"]
    return max(accumulate(sizes, initial=0))
