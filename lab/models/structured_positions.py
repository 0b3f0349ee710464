"""Positions with a structure: places in a volume, and places in units of units (chapter §1.3.6, §1.3.7).

Letters as in positions.py.
"""

import torch
from torch import nn

from lab.models.positions import Position, sinusoids


class Sinusoidal3D(Position, kind="sinusoidal-3d"):
    """Text in planes of `rows` x `columns` tokens, as frames of a video: a third of the width tells each of plane, row
    and column. The first third takes what the width has over. Parmar 2018 §3.3, with one more axis."""

    def __init__(self, config, *, rows=4, columns=4, base=10000.0):
        super().__init__(config)
        if min(rows, columns) < 1:
            raise ValueError(f"rows and columns must be at least 1, got {rows} and {columns}")
        self.rows, self.columns, self.base = rows, columns, base

    def at_input(self, x, start=0):
        t, third = torch.arange(start, start + x.shape[1]), x.shape[2] // 3
        axes = (t // (self.rows * self.columns), t // self.columns % self.rows, t % self.columns)
        widths = (x.shape[2] - 2 * third, third, third)
        codes = [sinusoids(axis.double(), width, self.base) for axis, width in zip(axes, widths, strict=True)]
        return x + torch.cat(codes, 1).to(x)


class Hierarchical(Position, kind="hierarchical"):
    """Learned positions of `unit` places (default: the context) that reach unit²: place i unit + j is

    alpha u_i + (1 - alpha) u_j      with u = (p - alpha p_0) / (1 - alpha), so that the first unit has its own p

    for the trained vectors p: a unit's own vector and that of the place in it. Su 2020 (spaces.ac.cn 7947).
    """

    def __init__(self, config, *, unit=None, alpha=0.4):
        super().__init__(config)
        if not 0 < alpha < 0.5:  # at 1/2 the unit and the place in it could be exchanged
            raise ValueError(f"alpha must lie between 0 and 1/2, got {alpha}")
        self.embedding, self.alpha = nn.Embedding(unit or config.context, config.d_model), alpha

    def at_input(self, x, start=0):
        end, unit = start + x.shape[1], self.embedding.num_embeddings
        if end > unit**2:
            raise ValueError(f"hierarchical positions end at {unit}² = {unit**2}, {end} are needed")
        place, p = torch.arange(start, end, device=x.device), self.embedding.weight
        u = (p - self.alpha * p[0]) / (1 - self.alpha)
        return x + self.alpha * u[place // unit] + (1 - self.alpha) * u[place % unit]
