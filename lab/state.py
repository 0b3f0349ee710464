"""The global state of this process that a trial may change: random generators, threads, modes."""

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
    """Restore all that a trial may change in its process when the block ends.

    These are random generators, number of threads, grad mode, default dtype and device, and the
    working folder. The block begins with grad mode on and float32 on the CPU.
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
    """Make this the default device of torch, if it is not: any setting slows all calls down."""
    import torch

    if torch.get_default_device() != torch.device(device):
        torch.set_default_device(None if str(device) == "cpu" else device)


@contextmanager
def as_in_a_trial():
    """Use one thread and the matrix products of trials, so that cells train the same models.

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
