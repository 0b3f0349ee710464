"""The device that a trial runs on, and which results are reproducible there.

Weights and batches are drawn on the CPU from their seeds and then moved to the device, so a run
starts from the same numbers on every device. After that:

* cpu: bitwise reproducible for the same torch build, processor type, number of threads and seed;
* cuda: atomic additions (the backward pass of fused attention, scatter, index_add) run in varying
  order, so runs agree up to rounding, which training amplifies;
  torch.use_deterministic_algorithms(True) with CUBLAS_WORKSPACE_CONFIG=:4096:8 makes torch
  reproducible on one type of card; operations that cannot be reproducible then raise an error;
* mps: torch guarantees nothing, and there is no float64.

Results differ between devices in the last digits. Random numbers drawn during a run, such as
dropout masks, differ too.
"""

import os
import platform
from contextlib import suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path

current = ContextVar("device", default="auto")  # set while a trial runs


def device():
    """The torch.device of the running trial; outside a trial, the one that `auto` selects."""
    import torch

    return torch.device(available(current.get()))


def available(name):
    """The name of the device that `auto`, `cpu`, `cuda` or `mps` selects on this machine.

    `auto` selects the first available of cuda, mps and cpu. Raises ValueError if the device is not
    available.
    """
    import torch

    backends = {"cuda": torch.cuda, "mps": torch.backends.mps}
    names = [name for name, backend in backends.items() if backend.is_available()] + ["cpu"]
    if name not in ("auto", *names):
        raise ValueError(
            f"device {name!r} is not available on {platform.node()}: choose auto, "
            f"{', '.join(names)}"
        )
    return names[0] if name == "auto" else name


@cache
def machine():
    """This machine in one line: processor, cores, system.

    Cloud providers use generic processor names; model number and cache size tell them apart.
    """
    info = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
            name, _, value = line.partition(":")
            info[name.strip()] = value.strip()
    processor = info.get("model name") or platform.processor() or "unknown processor"
    if "model" in info:
        family, frequency = info.get("cpu family"), float(info.get("cpu MHz") or 0) / 1000
        details = f"family {family} model {info['model']}, {frequency:.1f} GHz"
        processor += f" ({details}, {info.get('cache size', 'unknown')} cache)"
    return f"{processor}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}"
