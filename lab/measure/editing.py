"""Editing what a feed-forward layer stores (ROME): the target output and the weight update."""

import torch
import torch.nn.functional as F

from lab.measure.hooks import capture, edit


def target_output(model, site, tokens, answer, *, sure=0.9, rate=0.1, steps=100, keep=1e-3):
    """The output (o,) of module `site` at the last position that makes model(tokens) give `answer`.

    tokens: (b, t). Found by Adam, starting from the mean output, until class `answer` has
    probability `sure` in every row, or after `steps`. `keep` weights the squared distance from the
    start, relative to the squared norm of the start. The weights of the model are unchanged.
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
    """`weight` (o, i) plus a rank-one update that maps `key` (i,) to `value` (o,). Meng 2022.

    W + (v - W k) (C^-1 k)^T / (k^T C^-1 k): of all such updates the one with the smallest mean
    square effect on other keys, whose second moments are C = `covariance` (i, i). `ridge` times the
    mean of its diagonal is added to the diagonal. Raises ValueError if that is not above 0.
    """
    size = ridge * covariance.diagonal().mean()
    if size <= 0:
        raise ValueError("the covariance of the keys is zero, or ridge is not above 0")
    direction = torch.linalg.solve(covariance + size * torch.eye(len(key)).to(covariance), key)
    return weight + torch.outer(value - weight @ key, direction) / (key @ direction)
