"""Wider dtypes for sums over many small numbers."""

from contextlib import nullcontext

import torch


def wide(x):
    """x in float32, or in float64 if it already is."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def without_autocast(x):
    """Context in which operations keep the dtype of their inputs, on the device of x."""
    device = x.device.type
    return nullcontext() if device == "meta" else torch.autocast(device, enabled=False)
