"""Tables for rotary positions, with options to extend the context (chapter §1.3).

`interpolation` s divides every position by s (Chen 2023). `ntk` s multiplies the base by
s^(d / (d - 2)), which divides the lowest frequency by s and leaves the highest unchanged (Peng 2023
§3.1).
"""

from functools import lru_cache

import torch


@lru_cache(16)
@torch.inference_mode(False)  # tables from inference mode could not be used in training
def rotations(length, d, base, interpolation, ntk, device, dtype):
    """cos and sin of position x frequency, (length, d) each; sin has the signs of rotate-half.

    Both are computed in float64, then rounded to dtype.
    """
    base = base if ntk == 1 else base * ntk ** (d / (d - 2))
    table = {"dtype": torch.float64, "device": "cpu"}  # not every device supports float64
    frequency = base ** (-torch.arange(0, d, 2, **table) / d)
    position = torch.arange(length, **table) / interpolation
    angle = position[:, None] * frequency.repeat(2)
    sign = torch.tensor([-1.0, 1.0], **table).repeat_interleave(d // 2)
    exact = torch.promote_types(dtype, torch.float32)
    return [x.to(exact).to(device, dtype) for x in (angle.cos(), angle.sin() * sign)]


def check_rotary(d, base, interpolation, ntk):
    """Raise ValueError for an odd head width d and for options out of range."""
    if d % 2:
        raise ValueError(f"rotary rotates pairs: d_head must be even, got {d}")
    if min(base, interpolation, ntk) <= 0:
        raise ValueError(
            f"base, interpolation and ntk must be above 0, got {base}, {interpolation}, {ntk}"
        )
    if ntk != 1 and d == 2:
        raise ValueError("ntk needs more than one pair: with d_head 2 it would have no effect")
