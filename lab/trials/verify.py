"""Recorded trials, run here again: each is equal, equal up to rounding, or differs.

On the arithmetic that recorded a trial every digit must be equal. Another one rounds differently
and trainings drift apart: there the loss before training and in the first steps must agree, and the
numbers of what trains nothing. A training that diverges, or that decides by a threshold, may differ
there although nothing is wrong.
"""

import hashlib
import json
import math
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass

from lab import trace
from lab.trials import runs, status
from lab.trials.points import points_of
from lab.trials.rows import canonical, encoded, of_body
from lab.trials.run import run_trial
from lab.trials.store import File, digits

AT_START = 1e-5  # relative, of the loss before training
IN_FIRST_STEPS = 1e-3  # relative, of the loss in the first steps of a training
UNTRAINED, LEAST = 5e-3, 1e-6  # relative and absolute, of numbers that no training gave
FEW = 0.1  # of these numbers: as many may be counts, of which rounding moved an item

EQUAL = "equal"
ROUNDING = "equal up to rounding"
BEGINNING = "equal as far as it ran"  # the time was over during its training


@dataclass(frozen=True)
class Result:
    """One recorded trial beside what it gave here: one of the words above, or what differs, with
    both numbers.
    """

    trial: str
    parameters: dict
    found: str
    differs: bool = False

    def __str__(self):
        return f"{self.trial} {canonical(self.parameters)}: {self.found}"


def verify(records, seconds, cursor, *, data_hash, report=lambda result: None):
    """[Result] of as many of the recorded trials that count as fit in `seconds`, one at least.

    `records` are pairs of a notebook and the file of its record. `cursor` is the file that says
    where the last call stopped: the next one goes on from there, so that calls in turn come past
    every row. `report` hears of each Result.
    """
    until = time.perf_counter() + seconds
    found = []
    last = cursor.read_text("utf-8") if cursor.exists() else ""
    with ExitStack() as stack:  # a notebook's own kinds are registered once, and stay
        for notebook, module, body in in_turn(counting(records, data_hash, stack), last):
            left = until - time.perf_counter()
            if found and (left <= 0 or (body["seconds"] > left and not body["curve"])):
                continue
            found.append(of_row(module, body, max(left, 1)))
            report(found[-1])
            runs.write_text(cursor, place_of(notebook, body))
    return found


def counting(records, data_hash, stack):
    """[(notebook, module of its trials, body)] of all recorded trials that count today; `stack`
    holds the modules.
    """
    rows = []
    for notebook, path in records:
        file = File(path)
        opened = status.of_record(notebook, file.trials, file.accepted, data_hash)
        module, found = stack.enter_context(opened)
        rows += [(notebook, module, body) for each in found for body in each.counting]
    return rows


def in_turn(rows, last):
    """The rows in an order of their own, those behind the place `last` first."""
    ordered = sorted(rows, key=lambda row: place_of(row[0], row[2]))
    return sorted(ordered, key=lambda row: place_of(row[0], row[2]) <= last)


def place_of(notebook, body):
    """Where a row stands in the order: at random, and always there."""
    name = canonical([notebook.stem, body["trial"], body["parameters"]])
    return hashlib.sha256(name.encode()).hexdigest()


def of_row(module, body, limit):
    """The `Result` of one trial of a notebook's module, run here for at most `limit` seconds."""
    try:
        trial = function(module, body)
    except Exception as error:
        return Result(
            body["trial"], body["parameters"], f"{type(error).__name__}: {error}", differs=True
        )
    return of_trial(trial, body, limit)


def function(module, body):
    """The trial that gave a body, from the module of its notebook.

    ValueError where its parameters are others now.
    """
    if body["trial"] in module.failed:
        raise ValueError(module.failed[body["trial"]])
    trial = getattr(module, body["trial"])
    if points_of(trial, [body["parameters"]]) != [body["parameters"]]:
        raise ValueError("its parameters are others now")
    return trial


def of_trial(trial, body, limit=math.inf):
    """The `Result` of running a trial as it was recorded in `body`, for at most `limit` seconds."""
    return result_of(body, run_again(trial, body, limit))


def run_again(trial, body, limit=math.inf):
    """What a recorded trial gives here.

    On another arithmetic than that of `body` a training ends after its first steps.
    """
    threads = body["labels"]["threads"]
    with nullcontext() if is_exact(body) else trace.watching(end_after(trace.FIRST_STEPS)):
        return run_trial(trial, body["parameters"], device="cpu", threads=threads, until=limit)


def is_exact(body):
    """Whether this machine computes as the one that recorded `body`: then every digit must be
    equal.
    """
    from lab.trials import arithmetic

    return body["labels"]["arithmetic"] == arithmetic.digest("cpu", body["labels"]["threads"])


def result_of(body, here):
    """The `Result` of a recorded trial and what it gave here."""
    about = {"trial": body["trial"], "parameters": body["parameters"]}
    if "failed" in here:
        return Result(**about, found=f"fails here: {here['failed']}", differs=True)
    here = json.loads(
        encoded({name: here[name] for name in ("n", "columns", "curve", "batch") if name in here})
    )
    exact = is_exact(body)
    if fault := difference(body, here, exact=exact):
        return Result(**about, found=fault, differs=True)
    if not exact:
        return Result(**about, found=ROUNDING)
    return Result(**about, found=EQUAL if "columns" in here else BEGINNING)


def end_after(steps):
    """A listener that ends a trial at that step of its training."""

    def listen(step, _):
        if step >= steps:
            raise trace.Enough

    return listen


def difference(recorded, here, *, exact):
    """What differs between a recorded trial and what it gave here, with both numbers; "" where
    nothing does.
    """
    if exact and "columns" in here:
        return "" if digits(here) == digits(recorded) else first_difference(recorded, here)
    if recorded["curve"]:
        return of_training(recorded, here, exact=exact)
    return of_numbers(recorded, here)


def first_difference(recorded, here):
    """The first number that is not as recorded, digit by digit."""
    for old, new in zip(of_body(recorded), of_body(here), strict=False):
        for name in old:
            if repr(old[name]) != repr(new.get(name)):
                return f"{name} is {new.get(name)!r}, recorded {old[name]!r}"
    return of_training(recorded, here, exact=True) or f"{here['n']} rows, recorded {recorded['n']}"


def of_training(recorded, here, *, exact):
    """What differs in the losses of a training as far as both go; "" where they agree.

    On another arithmetic drawn numbers may round otherwise: then first losses that agree tell that
    the data do.
    """
    if not here["curve"]:  # it was cut off before its first step
        return ""
    steps = list(zip(recorded["curve"], here["curve"], strict=False))
    if not exact:
        steps = [pair for pair in steps if pair[0][0] < trace.FIRST_STEPS]
    if recorded["batch"] != here["batch"] and (exact or len(steps) < 2):
        return "trains on other data"
    for (step, there), (_, now) in steps:
        if there is None or now is None:  # no number: it diverged
            return "" if there == now else f"diverges at step {step} in one of them"
        allowed = 0 if exact else AT_START if step == 0 else IN_FIRST_STEPS
        if abs(now - there) > allowed * abs(there):
            return f"loss {now!r} at step {step}, recorded {there!r}"
    return ""


def of_numbers(recorded, here):
    """What differs, by more than rounding explains, where nothing is trained; "" where nothing
    does.
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
    """{(row, column): value} of the numbers of a trial; True and False are none."""
    rows = enumerate(of_body(body))
    return {
        (i, name): float(x) for i, row in rows for name, x in row.items() if type(x) in (int, float)
    }
