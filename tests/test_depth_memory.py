"""The training step whose memory and time are measured by depth."""

import pytest
import torch
import torch.nn.functional as F

from lab.models import ModelConfig, Transformer
from lab.models.depth_memory import residual_step


@pytest.mark.parametrize("residual", ["pre", "post", "reversible"])
def test_a_step_gives_the_gradients_of_a_model_with_that_residual(residual):
    got = residual_step(residual, 2, 8, 16, 4)()
    model = Transformer(ModelConfig(vocabulary=256, context=8, d_model=16, n_layers=2, residual=residual))
    tokens = torch.randint(256, (4, 9), generator=torch.Generator().manual_seed(0))
    F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    for a, p in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)
        assert a.abs().max() > 0
