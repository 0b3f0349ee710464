"""How models of the zoo are trained: alike in cells and trials, with their own random numbers."""

from contextlib import contextmanager, nullcontext
from contextvars import ContextVar

from lab import trace
from lab.trials.rng import preserve_rng

OUTSIDE = object()
kept_in = ContextVar("models", default=OUTSIDE)  # `run_trial` sets another value


def kept(train, seed, **parameters):
    """(weights, run) as `train(seed=seed, **parameters)` returns them; its exceptions pass through.

    The random numbers of the training depend on `seed` alone, and the caller's generators do not
    change.
    """
    from lab.trials.run import sow

    alike = as_in_a_trial() if kept_in.get() is OUTSIDE else nullcontext()
    with alike, preserve_rng(), trace.touching():
        sow(seed)
        return train(seed=seed, **parameters)


@contextmanager
def as_in_a_trial():
    """Use one thread and the matrix products of trials, so that cells train the same models."""
    import torch

    from lab.trials import arithmetic

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with arithmetic.fast():
            yield
    finally:
        torch.set_num_threads(threads)
