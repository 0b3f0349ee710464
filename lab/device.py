"""The device on which a trial runs, and what is reproducible there.

Weights and batches are drawn on the CPU from their seeds and then moved, so a run starts from the
same numbers on every device. After that:

* cpu: equal arithmetic (torch build, processor type, threads) and equal seeds reproduce all digits;
* cuda: atomic additions (the backward pass of fused attention, scatter, index_add) run in varying
  order, so runs agree up to rounding, which training amplifies;
  torch.use_deterministic_algorithms(True) with CUBLAS_WORKSPACE_CONFIG=:4096:8 makes torch
  reproducible on one type of card; operations that cannot be reproducible then raise an error;
* mps: torch guarantees nothing, and there is no float64.

Devices differ in the last digits and in random numbers drawn during a run, such as dropout masks.
"""

import os
import platform
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path

current = ContextVar("device", default="auto")  # set by the engine while a trial runs


def device():
    """The torch.device for the running trial; outside a trial, the best one of this machine."""
    import torch

    return torch.device(available(current.get()))


def available(name):
    """The device that `auto`, `cpu`, `cuda` or `mps` selects on this machine.

    Raises ValueError if it is not available.
    """
    import torch

    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    have = [kind for kind, is_there in there.items() if is_there]
    if name not in ("auto", *have):
        raise ValueError(
            f"no device {name!r} on {platform.node()}: there is {', '.join(have)} (or auto)"
        )
    return have[0] if name == "auto" else name


@cache
def machine():
    """This machine in one line: processor with model, frequency and cache; cores; system.

    Clouds name processors vaguely; model and cache tell two of one name apart.
    """
    about = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
            name, _, value = line.partition(":")
            about[name.strip()] = value.strip()
    processor = about.get("model name") or platform.processor() or "unknown processor"
    if "model" in about:
        family, frequency = about.get("cpu family"), float(about.get("cpu MHz") or 0) / 1000
        details = f"family {family} model {about['model']}, {frequency:.1f} GHz"
        processor += f" ({details}, {about.get('cache size', 'unknown')} cache)"
    return f"{processor}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"
