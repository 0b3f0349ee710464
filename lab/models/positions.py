"""Position encodings (chapter §1.3); the base class and the default, rotary, are in gpt.py.

Shape letters: b batch, h head, q query, k key, d head width, m model width. `start` is the position
of the first token, which is the number of cached tokens.
"""

import math

import mpmath
import numpy as np
import torch
from torch import nn

from lab.models.gpt import Position
from lab.models.precision import wide


def sinusoids(positions, width, base=10000.0):
    """Interleaved sines and cosines, (len(positions), width). Vaswani 2017 §3.5.

    Pair i has frequency base^(-2i/width).
    """
    pairs = torch.arange(0, width, 2, dtype=positions.dtype, device=positions.device)
    angle = positions[:, None] * base ** (-pairs / width)  # (q, width / 2, rounded up)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :width]


def exact_sinusoids(n, width, base=10000):
    """`sinusoids` of positions 0..n-1, float64 (n, width), exact to 2e-14 for n up to 2^15.

    In floating point, position x frequency loses digits as positions grow. Here angles are integers
    in units of 2^-64 turns, so integer overflow drops only whole turns.
    """
    with mpmath.workprec(160):
        turns = [
            mpmath.power(base, -mpmath.mpf(i) / width) / (2 * mpmath.pi) for i in range(0, width, 2)
        ]
        fixed = np.array([int(turn * 2**64) for turn in turns], dtype=np.uint64)
    angle = np.arange(n, dtype=np.uint64)[:, None] * fixed * (2 * np.pi / 2**64)  # (n, pairs)
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(n, -1)[:, :width]


class Sinusoidal(Position, kind="sinusoidal"):
    """Sinusoidal codes, multiplied by `scale` and added to the embeddings. Vaswani 2017 §3.5."""

    def __init__(self, config, *, base=10000.0, scale=1.0):
        super().__init__(config)
        self.base = base
        self.scale = scale

    def at_input(self, x, start=0):
        positions = torch.arange(start, start + x.shape[1], dtype=torch.float64)
        return x + self.scale * sinusoids(positions, x.shape[2], self.base).to(x)


class Sinusoidal2D(Position, kind="sinusoidal-2d"):
    """Sinusoidal codes of row and column, for rows of `columns` tokens. Parmar 2018 §3.3.

    The first half of the features encodes the row, the second half the column. Raises ValueError
    for columns < 1.

    columns 4     1 2 3 +      row 0, columns 0..3
                  4 5 6 =      row 1: aligned digits have the same column
    """

    def __init__(self, config, *, columns=8, base=10000.0):
        super().__init__(config)
        if columns < 1:
            raise ValueError(f"columns must be at least 1, got {columns}")
        self.columns = columns
        self.base = base

    def axes(self, t):
        """The coordinates of positions t; each is encoded in its own part of the features."""
        return t // self.columns, t % self.columns

    def at_input(self, x, start=0):
        first, *others = self.axes(torch.arange(start, start + x.shape[1], dtype=torch.float64))
        share = x.shape[2] // (1 + len(others))
        codes = [sinusoids(first, x.shape[2] - share * len(others), self.base)]
        codes += [sinusoids(axis, share, self.base) for axis in others]
        return x + torch.cat(codes, 1).to(x)


class Learned(Position, kind="learned"):
    """A trained vector per position, added to the embeddings (chapter §1.3.3).

    Raises ValueError for sequences longer than block_size.
    """

    def __init__(self, config):
        super().__init__(config)
        self.embedding = nn.Embedding(config.block_size, config.d_model)

    def at_input(self, x, start=0):
        end = start + x.shape[1]
        if end > self.embedding.num_embeddings:
            raise ValueError(
                f"learned positions support up to {self.embedding.num_embeddings} positions, "
                f"got {end}"
            )
        return x + self.embedding.weight[start:end]


class Alibi(Position, kind="alibi"):
    """A score bias of -slope x distance, with one slope per head. Press 2021."""

    def __init__(self, config):
        super().__init__(config)
        self._slopes(config.n_heads, torch.empty(0, dtype=torch.float32))

    @torch.inference_mode(False)
    def _slopes(self, n_heads, like):
        """Register the slopes on the device of `like`, in its dtype but at least float32."""
        slope = alibi_slopes(n_heads, wide(like).dtype)
        self.register_buffer("slope", slope.to(like.device), persistent=False)

    def _apply(self, fn, recurse=True):
        """Move or cast the module, then recompute the slopes exactly."""
        super()._apply(fn, recurse)
        self._slopes(len(self.slope), self.slope)
        return self

    def of_layer(self, i, layer):
        return self if layer.n_heads == len(self.slope) else Alibi(layer)

    def bias(self, q_len, k_len):
        t = torch.arange(k_len, device=self.slope.device)
        return -self.slope[:, None, None] * (t[k_len - q_len :, None] - t).abs()  # (h, q, k)


def alibi_slopes(n_heads, dtype=torch.float32):
    """Slopes of h heads, (h,): 2^(-8i/h) for i = 1..h if h is a power of two. Press 2021.

    Otherwise they are the slopes for the next smaller power of two, followed by every second slope
    for twice that power.
    """
    power = 2 ** int(math.log2(n_heads))
    slopes = 2.0 ** (-8 * torch.arange(1, power + 1, dtype=dtype) / power)
    between = 2.0 ** (-4 * torch.arange(1, 2 * power + 1, 2, dtype=dtype) / power)
    return torch.cat([slopes, between[: n_heads - power]])


class T5(Position, kind="t5"):
    """A trained score bias per head and distance bucket, shared by all layers. Raffel 2019.

    Half of the buckets hold one distance each. The others widen logarithmically up to
    `max_distance`; the last also holds all larger distances. Without a causal mask, half of the
    buckets are for earlier keys and half for later keys. A layer with fewer heads uses the first
    heads of the table. Raises ValueError for too few buckets, and unless `max_distance` exceeds the
    number of distances with their own bucket.
    """

    undecayed = ("table.weight",)

    def __init__(self, config, *, buckets=32, max_distance=128):
        super().__init__(config)
        self.max_distance = max_distance
        self.causal = config.causal
        least = 2 if self.causal else 4  # without a causal mask, half are for later keys
        if buckets < least:
            raise ValueError(f"t5 needs at least {least} buckets here, got {buckets}")
        single = buckets // least
        if max_distance <= single:
            raise ValueError(
                f"t5 with {buckets} buckets gives {single} distances their own bucket; "
                f"max_distance must exceed that, got {max_distance}"
            )
        self.table = nn.Embedding(buckets, config.n_heads)

    def bias(self, q_len, k_len):
        t = torch.arange(k_len, device=self.table.weight.device)
        bucket = t5_bucket(
            t[k_len - q_len :, None] - t, self.table.num_embeddings, self.max_distance, self.causal
        )
        return self.table(bucket).permute(2, 0, 1)  # (h, q, k)

    def of_layer(self, i, layer):
        if layer.n_heads == self.table.embedding_dim:
            return self
        return FirstHeads(self, layer.n_heads)


class FirstHeads(Position):
    """The bias of the first `heads` heads of the encoding `whole`."""

    def __init__(self, whole, heads):
        nn.Module.__init__(self)
        self.whole = whole
        self.heads = heads

    def bias(self, q_len, k_len):
        return self.whole.bias(q_len, k_len)[: self.heads]


def t5_bucket(distance, buckets, max_distance, causal):
    """The bucket of each distance, which is query position minus key position.

    If not causal, half of the buckets are for later keys.
    """
    offset = 0
    if not causal:
        buckets //= 2
        offset = buckets * (distance < 0)
        distance = distance.abs()
    distance = distance.clamp(min=0)
    exact = buckets // 2
    log = exact + (distance.clamp(min=1) / exact).log() / math.log(max_distance / exact) * (
        buckets - exact
    )
    return offset + torch.where(distance < exact, distance, log.long().clamp(max=buckets - 1))


class Sinusoidal3D(Sinusoidal2D, kind="sinusoidal-3d"):
    """`Sinusoidal2D` with a third axis, as for the frames of a video. Parmar 2018 §3.3.

    Planes have `rows` x `columns` tokens. Each axis gets a third of the features; the plane axis
    also gets the remainder. Raises ValueError for rows < 1 or columns < 1.
    """

    def __init__(self, config, *, rows=4, columns=4, base=10000.0):
        super().__init__(config, columns=columns, base=base)
        if rows < 1:
            raise ValueError(f"rows must be at least 1, got {rows}")
        self.rows = rows

    def axes(self, t):
        line, column = super().axes(t)
        return line // self.rows, line % self.rows, column


class Hierarchical(Position, kind="hierarchical"):
    """Two-level learned positions: `unit` trained vectors p encode unit² positions.

    The code of position i · unit + j is alpha u_i + (1 - alpha) u_j, where
    u = (p - alpha p_0) / (1 - alpha), so that the codes of the first `unit` positions are p. `unit`
    defaults to block_size. Su 2020 (spaces.ac.cn 7947). Raises ValueError unless 0 < alpha < 1/2,
    and for sequences longer than unit².
    """

    def __init__(self, config, *, unit=None, alpha=0.4):
        super().__init__(config)
        if not 0 < alpha < 0.5:  # at 1/2, i and j would be interchangeable
            raise ValueError(f"alpha must be between 0 and 1/2, got {alpha}")
        self.embedding = nn.Embedding(unit or config.block_size, config.d_model)
        self.alpha = alpha

    def at_input(self, x, start=0):
        end, unit = start + x.shape[1], self.embedding.num_embeddings
        if end > unit**2:
            raise ValueError(
                f"hierarchical positions support up to {unit}² = {unit**2} positions, got {end}"
            )
        place = torch.arange(start, end, device=x.device)
        p = self.embedding.weight
        u = (p - self.alpha * p[0]) / (1 - self.alpha)
        return x + self.alpha * u[place // unit] + (1 - self.alpha) * u[place % unit]
