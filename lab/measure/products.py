"""Matrix products with torch's own kernels, for timings."""

from contextlib import contextmanager
from math import inf
from unittest.mock import patch

from lab import arithmetic


@contextmanager
def plain_products():
    """Compute all matrix products with torch's own kernels, as outside of trials.

    Trials run inside `arithmetic.fast`, which on some CPUs doubles the speed of products of two
    matrices, but not of batched products. Timings that compare the two would then not hold for
    plain torch.
    """
    with patch.object(arithmetic, "LEAST", inf):
        yield
