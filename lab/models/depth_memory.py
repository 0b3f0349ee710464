"""A training step of a stack whose residual is chosen, for its time and its memory by depth (chapter §1.5.7)."""

import torch
import torch.nn.functional as F

from lab.models.transformer import ModelConfig, Transformer


def residual_step(residual, n_layers, n, d, batch, device="cpu"):
    """A call that returns the gradients of the loss of a causal model of bytes, n_layers deep."""
    config = ModelConfig(vocabulary=256, context=n, d_model=d, n_layers=n_layers, residual=residual)
    model = Transformer(config).to(device)
    tokens = torch.randint(256, (batch, n + 1), generator=torch.Generator().manual_seed(0)).to(device)

    def call():
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        return torch.autograd.grad(loss, tuple(model.parameters()))

    return call


def run_residual_step(residual, n_layers, n, d, batch, device="cpu"):
    """Makes a model and runs one training step; for `peak_memory`, so weights and gradients count in the peak."""
    residual_step(residual, n_layers, n, d, batch, device)()
