"""The random numbers of this process, as those who use them left them."""

import random
from contextlib import contextmanager


@contextmanager
def preserve_rng():
    """Afterwards the generators of Python, numpy and torch go on as if the block had drawn none."""
    import numpy
    import torch

    python, arrays = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(python)
            numpy.random.set_state(arrays)
