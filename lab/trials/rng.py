"""Keeping the state of this process's random generators."""

import random
from contextlib import contextmanager


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
