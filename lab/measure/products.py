"""Timings with torch's own matrix products."""

from contextlib import contextmanager
from math import inf
from unittest.mock import patch

from lab import arithmetic


@contextmanager
def plain_products():
    """Compute all matrix products with torch's own kernels, as outside the lab.

    Trials run inside `arithmetic.fast`, which on some CPUs doubles the speed of products of two
    matrices, but not of batched ones. A timing that compares them is then not what torch's users
    see.
    """
    with patch.object(arithmetic, "LEAST", inf):
        yield
