"""RMSNorm and batch norm (chapter §1.5.2, §1.5.4)."""

import torch
from torch import nn

from lab.models.gpt import Norm
from lab.models.padding import SeesPadding


class RmsNorm(Norm, kind="rmsnorm"):
    """x / sqrt(mean(x^2) + eps), with gain. Zhang 2019."""

    def __init__(self, config, *, eps=1e-5, affine=True):
        super().__init__(config)
        self.norm = nn.RMSNorm(config.d_model, eps=eps, elementwise_affine=affine)

    def forward(self, x):
        return self.norm(x)


class BatchNorm(SeesPadding, Norm, kind="batchnorm"):
    """Normalizes each feature over all tokens of the batch. Ioffe 2015.

    Evaluation uses running statistics. Padding is excluded and its output is 0, unless
    `padding_aware` is False. In training the model is not causal: through the batch statistics,
    every token affects the outputs at all other tokens, including earlier ones.
    """

    repeatable = False

    def __init__(self, config, *, eps=1e-5, momentum=0.1, padding_aware=True):
        super().__init__(config)
        self.norm = nn.BatchNorm1d(config.d_model, eps, momentum)
        self.padding_aware = padding_aware

    def forward(self, x):  # (b, t, m), or queries and keys (b, h, t, d)
        if self.padding_mask is None or not self.padding_aware:
            return self.norm(x.flatten(0, -2)).view_as(x)
        padding_mask = self.padding_mask[:, -x.shape[-2] :]
        padding_mask = padding_mask.reshape(len(x), *[1] * (x.ndim - 3), -1).expand(x.shape[:-1])
        out = torch.zeros_like(x)
        out[padding_mask] = self.norm(x[padding_mask])
        return out
