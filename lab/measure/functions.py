"""Properties of activation functions: slopes and minima."""

import torch
from scipy import optimize


def slope(f):
    """The derivative of an elementwise function; slope(slope(f)) is the second derivative."""
    return torch.func.grad(lambda x: f(x).sum())


def lowest(f, low, high):
    """(x, f(x)) at the minimum of an elementwise function on [low, high], x to about 1e-7."""
    x = torch.linspace(low, high, 2001, dtype=torch.float64)
    start = float(x[f(x).argmin()])
    step = (high - low) / 2000
    bounds = (max(low, start - step), min(high, start + step))
    found = optimize.minimize_scalar(
        lambda x: float(f(torch.tensor([x], dtype=torch.float64))),
        bounds=bounds,
        method="bounded",
        options={"xatol": 1e-9},
    )
    return found.x, found.fun
