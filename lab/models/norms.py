"""Normalisation over the features of each token, or over a batch (chapter §1.5.2, §1.5.4)."""

import torch
from torch import nn

from lab.models.gpt import Norm


class RmsNorm(Norm, kind="rmsnorm"):
    """x / sqrt(mean(x^2) + eps), then a gain. Zhang 2019."""

    def __init__(self, config, *, eps=1e-5, affine=True):
        super().__init__(config)
        self.norm = nn.RMSNorm(config.d_model, eps=eps, elementwise_affine=affine)

    def forward(self, x):
        return self.norm(x)


class BatchNorm(Norm, kind="batchnorm"):
    """Each feature over all tokens of the batch in training, by running statistics afterwards.

    Ioffe 2015.

    Padding is left out and comes back as 0, unless `padding_aware` is off. In training a token
    sees, through the statistics, every other one, later ones included: no causal model.
    """

    repeatable = False

    def __init__(self, config, *, eps=1e-5, momentum=0.1, padding_aware=True):
        super().__init__(config)
        self.norm = nn.BatchNorm1d(config.d_model, eps, momentum)
        self.sees_padding = padding_aware

    def forward(self, x):  # (b, t, m), or queries and keys (b, h, t, d)
        if self.padding_mask is None:
            return self.norm(x.flatten(0, -2)).view_as(x)
        padding_mask = self.padding_mask[:, -x.shape[-2] :]
        padding_mask = padding_mask.reshape(len(x), *[1] * (x.ndim - 3), -1).expand(x.shape[:-1])
        out = torch.zeros_like(x)
        out[padding_mask] = self.norm(x[padding_mask])
        return out
