"""Process-wide state that a trial may change: random generators, threads, torch modes."""

import os
import random
from contextlib import contextmanager
from contextvars import ContextVar

from lab import arithmetic

in_trial = ContextVar("in_trial", default=False)


def seed_all(seed):
    """Seed the global random generators of Python, numpy and torch."""
    import numpy
    import torch

    for each in (random.seed, numpy.random.seed, torch.manual_seed):
        each(seed % 2**32)


@contextmanager
def preserve_rng():
    """Restore the random generators of Python, numpy and torch when the block ends."""
    import numpy
    import torch

    python, arrays = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(python)
            numpy.random.set_state(arrays)


@contextmanager
def preserved():
    """When the block ends, restore the process-wide state that a trial may change.

    It restores the random generators, the number of threads, grad mode, the default dtype and
    device, and the working directory. The block starts with gradients enabled, default dtype
    float32 and default device CPU.
    """
    import torch

    folder, threads = os.getcwd(), torch.get_num_threads()
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    torch.set_default_dtype(torch.float32)
    use_default_device("cpu")
    try:
        with preserve_rng(), torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.set_default_dtype(dtype)
        use_default_device(device)
        os.chdir(folder)


def use_default_device(device):
    """Set torch's default device. For the CPU, unset it: a set device slows down every call."""
    import torch

    if torch.get_default_device() != torch.device(device):
        torch.set_default_device(None if str(device) == "cpu" else device)


@contextmanager
def as_in_a_trial():
    """Use one thread and `arithmetic.fast`, as trials do, so that training gives the same weights.

    Does nothing inside a trial.
    """
    import torch

    if in_trial.get():
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with arithmetic.fast():
            yield
    finally:
        torch.set_num_threads(threads)
