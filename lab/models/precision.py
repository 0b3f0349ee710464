"""Wider dtypes, for computations that are inaccurate in low precision."""

from contextlib import nullcontext

import torch


def wide(x):
    """Convert x to float32, unless it is already float64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def without_autocast(x):
    """Context manager that disables autocast on the device of x."""
    device = x.device.type
    return nullcontext() if device == "meta" else torch.autocast(device, enabled=False)
