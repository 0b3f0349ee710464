"""Editing what a feed-forward layer stores: the wanted output and the update that gives it (ROME)."""

import torch
import torch.nn.functional as F

from lab.measure.hooks import capture, edit


def wanted_output(model, site, tokens, answer, *, sure=0.9, rate=0.1, steps=100, keep=1e-3):
    """The output (o,) of module `site` at the last position that makes model(tokens) answer so.

    tokens: (b, t). Found by Adam from the present mean output, until the class `answer` has
    probability `sure` in every row; `keep` weighs the squared distance from the start, relative to
    its square. The model's weights stay as they are.
    """
    with torch.no_grad(), capture([model.get_submodule(site)]) as kept:
        model(tokens)
    start = kept[0][:, -1].mean(0)
    value = start.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([value], lr=rate * float(start.square().mean().sqrt()))
    targets = torch.full((len(tokens),), answer, device=tokens.device)
    with edit(model, {site: lambda x: torch.cat([x[:, :-1], value.expand(len(x), 1, -1)], 1)}):
        for _ in range(steps):
            logits = model(tokens)[:, -1]
            if logits.softmax(-1)[:, answer].min() > sure:
                break
            loss = (
                F.cross_entropy(logits, targets)
                + keep * (value - start).square().sum() / start.square().sum()
            )
            (value.grad,) = torch.autograd.grad(loss, value)
            optimizer.step()
    return value.detach()


@torch.no_grad()
def rome_update(weight, key, value, covariance, *, ridge=1e-3):
    """The weight (o, i) changed by one outer product so that it sends `key` (i,) to `value` (o,).

    W + (v - W k) (C^-1 k)^T / (k^T C^-1 k), Meng 2022: of all such changes the one that moves the
    outputs on other keys, with second moments C = `covariance` (i, i), least in the mean square.
    `ridge` (of the mean of its diagonal) is added.
    """
    size = ridge * covariance.diagonal().mean()
    if size <= 0:
        raise ValueError("the covariance of the keys is zero, or ridge is not above 0")
    direction = torch.linalg.solve(covariance + size * torch.eye(len(key)).to(covariance), key)
    return weight + torch.outer(value - weight @ key, direction) / (key @ direction)
