"""Wider dtypes for computations that would lose accuracy in low precision."""

from contextlib import nullcontext

import torch


def wide(x):
    """x in float32, or in float64 if it is float64 already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def without_autocast(x):
    """Context manager that disables autocast on the device of x."""
    device = x.device.type
    return nullcontext() if device == "meta" else torch.autocast(device, enabled=False)
