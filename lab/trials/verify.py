"""Running recorded trials again: each is equal, equal up to rounding, or differs.

On a machine with the arithmetic that recorded a trial, every digit must be equal. On other
arithmetic, numbers round differently and trainings drift apart. There only the losses before
training and in its first steps must agree, or, for a trial without training, its numbers. A
training that diverges, or that decides by a threshold, may differ there without a fault.
"""

import json
import math
from contextlib import nullcontext
from dataclasses import dataclass

from lab import trace
from lab.trials.points import points_of
from lab.trials.rows import canonical, encoded, of_body
from lab.trials.run import run_trial
from lab.trials.store import digits

AT_START = 1e-5  # relative tolerance of the loss before training
IN_FIRST_STEPS = 1e-3  # relative tolerance of the loss in the first steps of a training
UNTRAINED, LEAST = 5e-3, 1e-6  # relative and absolute tolerance of numbers without training
FEW = 0.1  # share of these numbers that may differ: they may be counts changed by rounding

EQUAL = "equal"
ROUNDING = "equal up to rounding"


@dataclass(frozen=True)
class Result:
    """The comparison of one recorded trial with its run here.

    `found` is EQUAL, ROUNDING, or a difference in words with both numbers.
    """

    trial: str
    parameters: dict
    found: str
    differs: bool = False

    def __str__(self):
        return f"{self.trial} {canonical(self.parameters)}: {self.found}"


def function(module, body):
    """The function whose trial a body is, from the module of its notebook.

    Raises ValueError where it cannot be defined or its parameters have changed.
    """
    if body["trial"] in module.failed:
        raise ValueError(module.failed[body["trial"]])
    trial = getattr(module, body["trial"])
    if points_of(trial, [body["parameters"]]) != [body["parameters"]]:
        raise ValueError("its parameters have changed")
    return trial


def of_trial(trial, body):
    """The `Result` of running a trial as it was recorded in `body`."""
    return result_of(body, run_again(trial, body))


def run_again(trial, body):
    """The outcome of a recorded trial that runs here, as `run_trial` returns it.

    If this machine's arithmetic is not that of `body`, training ends after its first steps.
    """
    threads = body["labels"]["threads"]
    with nullcontext() if is_exact(body) else trace.watching(end_after(trace.FIRST_STEPS)):
        return run_trial(trial, body["parameters"], device="cpu", threads=threads)


def is_exact(body):
    """Whether this machine has the arithmetic that recorded `body`: every digit must be equal."""
    from lab.trials import arithmetic

    return body["labels"]["arithmetic"] == arithmetic.digest("cpu", body["labels"]["threads"])


def result_of(body, here):
    """The `Result` of comparing a recorded trial with `here`, its outcome on this machine."""
    about = {"trial": body["trial"], "parameters": body["parameters"]}
    if "failed" in here:
        return Result(**about, found=f"fails here: {here['failed']}", differs=True)
    here = json.loads(
        encoded({name: here[name] for name in ("n", "columns", "curve", "batch") if name in here})
    )
    exact = is_exact(body)
    if fault := difference(body, here, exact=exact):
        return Result(**about, found=fault, differs=True)
    return Result(**about, found=EQUAL if exact else ROUNDING)


def end_after(steps):
    """A listener for `trace.watching` that ends a trial at training step `steps`."""

    def listen(step, _):
        if step >= steps:
            raise trace.Enough

    return listen


def difference(recorded, here, *, exact):
    """The difference between a recorded trial and its run here, in words with both numbers.

    "" where nothing differs. `exact` compares every digit.
    """
    if exact and "columns" in here:
        return "" if digits(here) == digits(recorded) else first_difference(recorded, here)
    if recorded["curve"]:
        return of_training(recorded, here, exact=exact)
    return of_numbers(recorded, here)


def first_difference(recorded, here):
    """The first number that differs from the record in any digit, in words."""
    for old, new in zip(of_body(recorded), of_body(here), strict=False):
        for name in old:
            if repr(old[name]) != repr(new.get(name)):
                return f"{name} is {new.get(name)!r}, recorded {old[name]!r}"
    return of_training(recorded, here, exact=True) or f"{here['n']} rows, recorded {recorded['n']}"


def of_training(recorded, here, *, exact):
    """The first difference between the losses of two runs of a training; "" where they agree.

    Losses are compared as far as both runs go. On other arithmetic the hash of the first batch may
    differ by rounding; there first losses that agree show that the data are the same.
    """
    if not here["curve"]:  # the run ended before its first step
        return ""
    steps = list(zip(recorded["curve"], here["curve"], strict=False))
    if not exact:
        steps = [pair for pair in steps if pair[0][0] < trace.FIRST_STEPS]
    if recorded["batch"] != here["batch"] and (exact or len(steps) < 2):
        return "trains on other data"
    for (step, there), (_, now) in steps:
        if there is None or now is None:  # NaN: the training diverged
            return "" if there == now else f"diverges at step {step} in one of them"
        if exact:
            allowed = 0
        else:
            allowed = AT_START if step == 0 else IN_FIRST_STEPS
        if abs(now - there) > allowed * abs(there):
            return f"loss {now!r} at step {step}, recorded {there!r}"
    return ""


def of_numbers(recorded, here):
    """The first difference beyond rounding between two runs of a trial without training.

    "" where at most a share of `FEW` of the numbers differs.
    """
    if here["n"] != recorded["n"]:
        return f"{here['n']} rows, recorded {recorded['n']}"
    old, new = numbers(recorded), numbers(here)
    off = []
    for place in old | new:
        both = place in old and place in new
        if not both or not math.isclose(old[place], new[place], rel_tol=UNTRAINED, abs_tol=LEAST):
            off.append(f"{place[1]} is {new.get(place)!r}, recorded {old.get(place)!r}")
    return off[0] if len(off) > FEW * len(old | new) else ""


def numbers(body):
    """{(row, column): value} of the numbers in a trial's rows, without booleans."""
    rows = enumerate(of_body(body))
    return {
        (i, name): float(x) for i, row in rows for name, x in row.items() if type(x) in (int, float)
    }
