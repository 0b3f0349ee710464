"""Learn a task until it is known to be learned, and say what it took."""

from contextlib import contextmanager

import torch

from lab.training import fit, reaches_mark


def learn(model, task, config, *, seed, measure, every, until=None, show=False):
    """Train a model in place and measure it as it learns; returns (run, curve).

    model    moved to its device already
    task     has batch(generator, size) -> (inputs, targets)
    config   TrainConfig; its `steps` are the cap
    measure  measure(model, seed) -> {name: number}, on test data drawn with that seed
    every    steps between two measurements
    until    the target, such as ("accuracy", ">=", 0.95). Training ends at the first measurement
             that reaches_mark it and is confirmed by a second one, on test data drawn anew
    show     print a line for each measurement, for someone who waits

    `run` is that of `fit`, with `steps_used` and, where there is a target, `mark` (its number) and
    `steps_to_mark` (None where it was not confirmed before the cap). `curve` has a row for each
    measurement: step, loss, learning_rate, diverged and what `measure` gives.

    Runs on one thread, as recorded trials do, so that the same call gives the same digits in a
    cell of a notebook and in a sweep.
    """
    confirmed = False
    drawn = 0  # test sets so far, besides the one of the curve

    def evaluate(model):
        found = measure(model, 0)
        if show:
            print(", ".join(f"{name} {value:.4g}" for name, value in found.items()))
        return found

    def is_learned(row):
        nonlocal confirmed, drawn
        if until is None or not reaches_mark(row, until):
            return False
        drawn += 1
        with evaluating(model):
            confirmed = reaches_mark(measure(model, drawn), until)
        return confirmed

    with one_thread():
        run, curve = fit(
            model, task, config, seed=seed, every=every, evaluate=evaluate, stop=is_learned
        )
    used = int(curve.step.iloc[-1])
    run["steps_used"] = used
    if until is not None:
        run |= {"mark": until[-1], "steps_to_mark": used if confirmed else None}
    return run, curve


@contextmanager
def evaluating(model):
    """Without dropout and gradients; afterwards the model trains again."""
    was = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was)


@contextmanager
def one_thread():
    """Let torch use one thread, and as many as before afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
