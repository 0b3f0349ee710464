"""Activations: the functions themselves, and what the activations of a model hold."""

import math

import torch
import torch.nn.functional as F
from scipy import optimize


def slope(f):
    """The derivative of an elementwise function; slope(slope(f)) is the second."""
    return torch.func.grad(lambda x: f(x).sum())


def lowest(f, low, high):
    """(x, f(x)) at the smallest value of an elementwise function on [low, high], x to about 1e-7."""
    grid = torch.linspace(low, high, 2001, dtype=torch.float64)
    start, step = float(grid[f(grid).argmin()]), (high - low) / 2000
    bounds = (max(low, start - step), min(high, start + step))
    found = optimize.minimize_scalar(
        lambda x: float(f(torch.tensor([x], dtype=torch.float64))),
        bounds=bounds,
        method="bounded",
        options={"xatol": 1e-9},
    )
    return found.x, found.fun


def gaussian_moments(f, *, std=1.0, points=2**17) -> dict:
    """Mean E f, square E f^2 and slope_square E f'^2 under N(0, std^2), to better than 1e-6.

    Midpoint rule over 12 standard deviations each way; 0, where functions such as ReLU bend, is between two points.
    """
    step = 24 / points
    z = torch.arange(points, dtype=torch.float64).add(0.5).mul(step).sub(12)
    weight = torch.exp(-z.square() / 2) * step / math.sqrt(2 * math.pi)
    values, slopes = f(std * z), slope(f)(std * z)
    moments = {"mean": values, "square": values.square(), "slope_square": slopes.square()}
    return {name: (weight * moment).sum().item() for name, moment in moments.items()}


def probe_accuracy(features, labels, *, ridge=1e-2):
    """Share of held-out rows whose label a linear map finds: features (n, m), labels (n,) of classes 0..c-1.

    Ridge regression on one-hot labels, fitted on the first half of the rows, in closed form.
    """
    features = torch.cat([features.double(), torch.ones(len(features), 1)], 1)
    half = len(features) // 2
    x, y = features[:half], F.one_hot(labels[:half], int(labels.max()) + 1).double()
    weight = torch.linalg.solve(x.T @ x + ridge * half * torch.eye(x.shape[1]).double(), x.T @ y)
    return ((features[half:] @ weight).argmax(1) == labels[half:]).double().mean().item()
