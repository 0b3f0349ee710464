"""Where a trial computes, and what repeats there.

Weights and batches are drawn on the CPU from their seeds and then moved, so a run starts from the
same numbers on every device. From there on

* cpu: equal arithmetic (torch build, kind of processor, threads) and equal seeds give every digit
again;
* cuda: sums by atomic additions (the backward of fused attention, scatter, index_add) come in
another order each time,
  so runs agree to rounding, which training magnifies; torch.use_deterministic_algorithms(True) with
  CUBLAS_WORKSPACE_CONFIG=:4096:8 makes torch repeat the digits on one kind of card, or raise where
  it cannot;
* mps: torch promises nothing, and there is no float64.

No two devices agree in the last digits; what is drawn during a run, as by dropout, is another
stream on each.
"""

import platform
from contextvars import ContextVar

current = ContextVar("device", default="auto")  # set by the engine while a trial runs


def device():
    """The torch.device that the running trial should use; outside a trial, the best one of this
    machine.
    """
    import torch

    return torch.device(available(current.get()))


def available(wanted):
    """The device that `auto`, `cpu`, `cuda` or `mps` means on this machine.

    ValueError where it is not there.
    """
    import torch

    there = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    have = [kind for kind, is_there in there.items() if is_there]
    if wanted not in ("auto", *have):
        raise ValueError(
            f"no device {wanted!r} on {platform.node()}: there is {', '.join(have)} (or auto)"
        )
    return have[0] if wanted == "auto" else wanted
