"""Weights and activations of few bits, as they would be stored and multiplied as integers (chapter §1.4.5)."""

from copy import deepcopy
from fnmatch import fnmatchcase

from torch import nn


def rounded(x, bits):
    """x on a grid of 2^bits - 1 values symmetric about 0, one scale for each vector of the last axis."""
    grid = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / (2 ** (bits - 1) - 1)
    return (x / grid).round() * grid


def quantised(model, bits, sites="*.ffn.*"):
    """A copy whose linear maps under `sites` multiply rounded weights and rounded inputs: at 8 bits, int8 products.

    ValueError for fewer than 2 bits; LookupError where no linear map is named so.
    """
    if bits < 2:
        raise ValueError(f"a grid symmetric about 0 needs at least 2 bits, got {bits}")
    model = deepcopy(model)
    maps = [m for name, m in model.named_modules() if isinstance(m, nn.Linear) and fnmatchcase(name, sites)]
    if not maps:
        raise LookupError(f"{sites!r} names no linear map")
    for m in maps:
        m.weight.data = rounded(m.weight.data, bits)
        m.register_forward_pre_hook(lambda m, args: (rounded(args[0], bits),))
    return model
