"""Hidden units of feed-forward layers: their activation functions, how often they fire, what they detect, which can be
spared, and how what they store is edited.

Letters: n tokens, u units, c concepts. Activations are (n, u), or (..., u) where a tap hands them over.
"""

import math
from contextlib import ExitStack
from functools import partial

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from scipy import optimize
from scipy.cluster.vq import kmeans2
from scipy.special import xlogy
from scipy.stats import rankdata

from lab.measure.probe import edit


@torch.no_grad()
def outputs(model, sites, *inputs):
    """{site: what the module of that name returned on model(*inputs), one row a token (n, u)}.

    Of a module that runs more than once, what it returned first.
    """
    kept = {}

    def keep(site, x):
        kept.setdefault(site, x)
        return x

    with ExitStack() as stack:
        for site in sites:
            stack.enter_context(edit(model, {site: partial(keep, site)}))
        model(*inputs)
    return {site: x.flatten(0, -2) for site, x in kept.items()}


def hidden(model, tokens, part="ffn.act"):
    """What a part of each feed-forward layer returns, on the CPU: (layers, n, u); "ffn_residual.norm" is its input."""
    sites = [f"blocks.{i}.{part}" for i in range(len(model.blocks))]
    tokens = tokens.to(next(model.parameters()).device)
    return torch.stack([x.cpu() for x in outputs(model, sites, tokens).values()])


def silenced(model, layer, units):
    """While this context is open, the `units` (a list or tensor of indices) of a feed-forward layer return 0."""
    units = torch.as_tensor(units, dtype=torch.long, device=next(model.parameters()).device)
    return edit(model, {f"blocks.{layer}.ffn.act": lambda x: x.index_fill(-1, units, 0)})


def idle_share(activations, held=0.01):
    """Share of the smallest activations (..., u) of each token that together hold `held` of its squared length."""
    squares = activations.cpu().double().square().sort(-1).values
    return (squares.cumsum(-1) <= held * squares.sum(-1, keepdim=True)).double().mean().item()


def nonzero_share(activations):
    """Share of entries that are not exactly zero."""
    return (activations != 0).cpu().double().mean()


def firing_rates(activations):
    """Share of tokens at which each unit is above zero: (u,). A unit with rate 0 is dead on these tokens."""
    return (activations > 0).cpu().double().flatten(0, -2).mean(0)


# What units detect


def auc(activations, labels):
    """(u, c): the chance that a unit is higher on a token of the concept than on one without it, ties counting half.

    activations (n, u), labels (n, c) of booleans; NaN for a concept that is nowhere or everywhere.
    """
    ranks = rankdata(np.asarray(activations, dtype=np.float64), axis=0)
    return _auc(ranks, np.asarray(labels, dtype=np.float64))


def _auc(ranks, labels):
    yes, n = labels.sum(0), len(labels)
    with np.errstate(invalid="ignore", divide="ignore"):
        return (ranks.T @ labels - yes * (yes + 1) / 2) / (yes * (n - yes))


def detectors(activations, labels, *, shifts=100, level=0.05, seed=0) -> pd.DataFrame:
    """The best unit for each concept, against chance: columns concept, unit, auc, null, share.

    A unit is chosen on the first half of the tokens and its AUC taken on the second, so choosing among many cannot
    flatter it. `null` is what the same choice reaches with probability `level` in ANY of the concepts when the labels
    are rotated against the tokens by random amounts: rotation keeps the runs of real text, which shuffling would
    break. labels: {concept: (n,) booleans}; activations (n, u); share is that of the concept among the tokens.
    """
    names, n = list(labels), len(activations)
    half, rng = n // 2, np.random.default_rng(seed)
    truth = np.stack([np.asarray(labels[name], dtype=np.float64) for name in names], 1)  # (n, c)
    turns = [0, *rng.integers(n // 10, n - n // 10, size=shifts)]
    columns = np.concatenate([np.roll(truth, turn, axis=0) for turn in turns], 1)  # (n, (1 + shifts) c)
    values = np.asarray(activations, dtype=np.float64)
    first, second = (
        _auc(rankdata(values[part], axis=0), columns[part]) for part in (slice(None, half), slice(half, None))
    )
    chosen = np.nan_to_num(first).argmax(0)
    held_out = np.take_along_axis(second, chosen[None], 0)[0].reshape(1 + shifts, -1)  # (1 + shifts, c)
    null = np.nanquantile(np.nanmax(held_out[1:], axis=1), 1 - level)
    rows = zip(names, chosen[: len(names)], held_out[0], truth.mean(0), strict=True)
    table = pd.DataFrame(rows, columns=["concept", "unit", "auc", "share"])
    return table.assign(null=float(null))


def mutual_information(values, labels, *, bins=8, shuffles=100, seed=0) -> pd.DataFrame:
    """What each column of values tells of the labels, in bits: columns unit, plugin, chance, information, p.

    values (n, u) or (n,): activations, or the attention that keys receive from each head. labels (n,): classes. Values
    are cut at their ranks into `bins` of equal size, equal ones into one bin, so any rising function of them tells as
    much. plugin: sum p(l, v) log2 [p(l, v) / p(l) p(v)] over shares of the tokens, which few tokens make too high;
    chance: its mean over labels rotated against the tokens by random amounts, which keeps the runs of real text (for
    independent tokens about (classes - 1)(bins - 1) / (2 n ln 2), Miller 1955); information: plugin - chance; p: the
    share of rotations, and the labels as they stand, that tell as much. ValueError unless each row has a label.
    """
    values, labels = np.asarray(values, dtype=np.float64), np.asarray(labels)
    values = values[:, None] if values.ndim == 1 else values
    n, u = values.shape
    if labels.shape != (n,):
        raise ValueError(f"{n} rows of values need as many labels, not {labels.shape}")
    binned = ((rankdata(values, axis=0) - 0.5) * bins / n).astype(int) + bins * np.arange(u)  # (n, u)
    classes, labels = np.unique(labels, return_inverse=True)
    turns = np.random.default_rng(seed).integers(n // 10, n - n // 10, size=shuffles)

    def plugin(labels):
        counts = np.bincount((binned + bins * u * labels[:, None]).ravel(), minlength=len(classes) * u * bins)
        joint = counts.reshape(len(classes), u, bins) / n
        apart = joint.sum(0) * joint.sum(2, keepdims=True)
        return xlogy(joint, joint / np.where(apart, apart, 1)).sum((0, 2)) / math.log(2)

    found, null = plugin(labels), np.stack([plugin(np.roll(labels, turn)) for turn in turns])  # (u,), (shuffles, u)
    chance, p = null.mean(0), (1 + (null >= found).sum(0)) / (1 + shuffles)
    columns = {"unit": range(u), "plugin": found, "chance": chance, "information": found - chance, "p": p}
    return pd.DataFrame(columns)


def adjusted_rand(a, b):
    """Agreement of two partitions beyond chance: 1 equal up to names, 0 on average by chance (Hubert 1985)."""
    table = pd.crosstab(np.asarray(a), np.asarray(b)).to_numpy().astype(float)

    def pairs(x):
        return (x * (x - 1) / 2).sum()

    both, rows, columns, total = pairs(table), pairs(table.sum(1)), pairs(table.sum(0)), pairs(table.sum())
    expected = rows * columns / total
    return float((both - expected) / ((rows + columns) / 2 - expected))


def cluster_agreement(vectors, labels, *, seed=0, clusters=None):
    """Adjusted Rand index of k-means clusters of the vectors, scaled to length 1, with labels (n,) of classes."""
    vectors = np.asarray(vectors, dtype=np.float64)
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    clusters = clusters or len(np.unique(labels))
    _, found = kmeans2(vectors, clusters, minit="++", rng=seed, missing="warn")
    return adjusted_rand(found, labels)


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

    The map is that of `held_out`, on one-hot labels.
    """
    labels = labels.cpu()
    found = held_out(features, F.one_hot(labels, int(labels.max()) + 1), ridge=ridge)
    return (found.argmax(1) == labels[-len(found) :]).double().mean().item()


def held_out(features, wanted, *, ridge):
    """What a linear map, fitted on the first half of the rows, says of the second: from features (n, m) to wanted
    (n,) or (n, w). Ridge regression in closed form.

    Features are standardised, so `ridge` is the penalty per row in units of their variance, whatever theirs.
    """
    features, wanted = (torch.as_tensor(x).cpu().double() for x in (features, wanted))
    half = len(features) // 2
    mean, spread = features[:half].mean(0), features[:half].std(0) + 1e-9
    x = torch.cat([(features - mean) / spread, torch.ones(len(features), 1, dtype=torch.float64)], 1)
    eye = torch.eye(x.shape[1], dtype=torch.float64)
    return x[half:] @ torch.linalg.solve(x[:half].T @ x[:half] + ridge * half * eye, x[:half].T @ wanted[:half])


@torch.no_grad()
def rank_one(weight, key, value, covariance, *, ridge=1e-3):
    """The weight (o, i), changed by one outer product so that it sends `key` (i,) to `value` (o,) exactly.

    W + (v - W k) (C^-1 k)^T / (k^T C^-1 k): of all such changes the one that moves the outputs on other keys, with
    second moments C = `covariance` (i, i), least in the mean square. `ridge` (of the mean of its diagonal) is added.
    """
    size = ridge * covariance.diagonal().mean()
    if size <= 0:
        raise ValueError("the covariance of the keys is zero, or ridge is not above 0")
    direction = torch.linalg.solve(covariance + size * torch.eye(len(key)).to(covariance), key)
    return weight + torch.outer(value - weight @ key, direction) / (key @ direction)


def wanted_output(model, site, tokens, answer, *, sure=0.9, rate=0.1, steps=100, keep=1e-3):
    """The output (o,) of module `site` at the last position of tokens (b, t) that makes model(tokens) answer so.

    Found by Adam from the present mean output, until the class `answer` has probability `sure` in every row; `keep`
    weighs the squared distance from the start, relative to its square. The model's weights stay as they are.
    """
    seen = []
    with torch.no_grad(), edit(model, {site: lambda x: seen.append(x) or x}):
        model(tokens)
    start = seen[0][:, -1].mean(0)
    value = start.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([value], lr=rate * float(start.square().mean().sqrt()))
    targets = torch.full((len(tokens),), answer, device=tokens.device)
    with edit(model, {site: lambda x: torch.cat([x[:, :-1], value.expand(len(x), 1, -1)], 1)}):
        for _ in range(steps):
            logits = model(tokens)[:, -1]
            if logits.softmax(-1)[:, answer].min() > sure:
                break
            loss = F.cross_entropy(logits, targets) + keep * (value - start).square().sum() / start.square().sum()
            (value.grad,) = torch.autograd.grad(loss, value)
            optimizer.step()
    return value.detach()
