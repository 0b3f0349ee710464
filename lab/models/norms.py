"""Normalisation over the features of each token (chapter §1.5.2, §1.5.4)."""

from torch import nn

from lab.models.seams import Seam


class Norm(nn.Module, Seam):
    """The identity."""

    def __init__(self, config):
        super().__init__()

    def forward(self, x):  # (b, t, m)
        return x


Norm.kinds["none"] = Norm


class LayerNorm(Norm, kind="layernorm"):
    """(x - mean) / sqrt(var + eps), then a gain (and a shift where the model has biases). Ba 2016."""

    def __init__(self, config, *, eps=1e-5, affine=True):
        super().__init__(config)
        self.norm = nn.LayerNorm(config.d_model, eps=eps, elementwise_affine=affine, bias=config.bias)

    def forward(self, x):
        return self.norm(x)


class RmsNorm(Norm, kind="rmsnorm"):
    """x / sqrt(mean(x^2) + eps), then a gain. Zhang 2019."""

    def __init__(self, config, *, eps=1e-5):
        super().__init__(config)
        self.norm = nn.RMSNorm(config.d_model, eps=eps)

    def forward(self, x):
        return self.norm(x)
