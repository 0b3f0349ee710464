"""Train on a task until a target is reached and confirmed on new test data."""

from contextlib import contextmanager

import torch

from lab.training import fit, reaches_mark


def learn(model, task, config, *, seed, measure, every, until=None, show=False):
    """Train a model in place and measure it as it learns; returns (run, curve).

    model    the model, already on its device
    task     has batch(generator, size) -> (inputs, targets)
    config   TrainConfig; its `steps` are the cap
    measure  measure(model, seed) -> {name: number}, on test data drawn with that seed
    every    steps between two measurements
    until    the target, such as ("accuracy", ">=", 0.95). Training ends at the first measurement
             that reaches_mark it and is confirmed by a second one, on new test data
    show     whether to print a line for each measurement

    `run` is the dict of `fit`, with `steps_used` and, if there is a target, `mark` (its number) and
    `steps_to_mark` (None if it was not confirmed before the cap). `curve` has a row for each
    measurement: step, loss, learning_rate, diverged and the numbers of `measure`.

    Runs on one thread, as recorded trials do, so that the same call gives the same digits in a
    cell of a notebook and in a sweep.
    """
    confirmed = False
    drawn = 0  # number of test sets drawn for confirmation

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
    """Context in evaluation mode, without gradients; the model's mode is restored afterwards."""
    was = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was)


@contextmanager
def one_thread():
    """Context in which torch uses one thread; the number is restored afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
