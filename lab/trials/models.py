"""How models of the zoo are trained: in cells as in trials, and without a trace in the random
numbers of whoever asks.
"""

from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

from lab import trace
from lab.trials.rng import preserve_rng

OUTSIDE = object()
kept_in = ContextVar("models", default=OUTSIDE)  # anything else in a trial


def kept(train, seed, **parameters):
    """(weights, run) that `train(seed=seed, **parameters)` returns; what it raises is raised.

    Its random numbers follow from its seed alone.
    """
    from lab.trials.run import sow

    alike = as_in_a_trial() if kept_in.get() is OUTSIDE else nullcontext()
    with alike, preserve_rng(), trace.touching():
        sow(seed)
        return train(seed=seed, **parameters)


@contextmanager
def as_in_a_trial():
    """One thread and the products of trials, so that cells get the models of trials."""
    import torch

    from lab.trials import arithmetic

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with arithmetic.fast():
            yield
    finally:
        torch.set_num_threads(threads)
