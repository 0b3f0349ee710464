"""Where a trial computes."""

import platform
from contextvars import ContextVar

current = ContextVar("device", default="auto")  # set by the engine while a trial runs


def device():
    """The torch.device that the running trial should use; outside a trial, the best one of this machine."""
    import torch

    return torch.device(available(current.get()))


def available(wanted):
    """The device that `auto`, `cpu`, `cuda` or `mps` means on this machine. ValueError where it is not there."""
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    have = [kind for kind, is_there in there.items() if is_there]
    if wanted not in ("auto", *have):
        raise ValueError(f"no device {wanted!r} on {platform.node()}: there is {', '.join(have)} (or auto)")
    return have[0] if wanted == "auto" else wanted
