"""A gate at which trials wait until a test lets them through, so that blows fall where the test wants them."""

import inspect
import time
from pathlib import Path


def pass_gate(gate):
    """What a trial calls: it waits while there is a folder `gate`, until it can take a ticket from it."""
    import contextlib
    import os
    import time

    while os.path.isdir(gate):
        with contextlib.suppress(IndexError, FileNotFoundError):
            os.remove(os.path.join(gate, os.listdir(gate)[0]))
            break
        time.sleep(0.01)


SOURCE = inspect.getsource(pass_gate)  # for a notebook or script


def allow(gate, number):
    """No more trials than so many pass from here on, whichever they are; the others wait. None: all pass."""
    gate = Path(gate)
    if number is None:
        if gate.exists():
            gate.rename(gate.with_name(f"used {time.monotonic_ns()}"))
        return
    gate.mkdir(exist_ok=True)
    for ticket in gate.iterdir():
        ticket.unlink(missing_ok=True)
    for each in range(number):
        (gate / f"{time.monotonic_ns()} {each}").touch()


def wait_for(condition, seconds=180):
    """What `condition()` gives as soon as it is true; the seconds only end a test that hangs."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)
    return found
