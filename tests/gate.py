"""A gate at which trials wait for tickets, so that tests can kill processes at known points."""

import inspect
import time
from pathlib import Path


def pass_gate(gate):
    """Wait until the folder `gate` has a ticket, and remove the ticket; pass if there is no folder. For trials."""
    import contextlib
    import os
    import time

    while os.path.isdir(gate):
        with contextlib.suppress(IndexError, FileNotFoundError):
            os.remove(os.path.join(gate, os.listdir(gate)[0]))
            break
        time.sleep(0.01)


SOURCE = inspect.getsource(pass_gate)  # for notebooks and scripts


def allow(gate, number):
    """Let `number` more trials pass; None: let all pass."""
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
    """Poll until condition() is true, and return its value. Fails after a timeout."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, "timeout"
        time.sleep(0.02)
    return value
