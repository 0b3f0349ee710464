"""Hidden units: what they return, and a layer without some of them."""

import torch

from lab.measure import neurons
from lab.models import ModelConfig, Transformer


def test_what_is_silenced_returns_zero_and_the_rest_of_hidden_stays():
    model = Transformer(ModelConfig(vocab_size=9, block_size=6, d_model=16, n_layers=2, ffn="relu"), seed=0).eval()
    tokens = torch.arange(12).view(2, 6) % 9
    before = neurons.hidden(model, tokens)
    assert before.shape == (2, 12, 64) and before.min() == 0
    busy = before[0].mean(0).topk(3).indices
    with neurons.ablate_units(model, 0, busy):
        after = neurons.hidden(model, tokens)
    others = [unit for unit in range(64) if unit not in busy.tolist()]
    assert (after[0][:, busy] == 0).all() and torch.equal(after[0][:, others], before[0][:, others])
    assert not torch.equal(after[1], before[1]), "what a later layer reads has changed"
    with neurons.ablate_units(model, 1, []):
        assert torch.equal(neurons.hidden(model, tokens), before)
    inputs = neurons.hidden(model, tokens, "ffn_norm")
    assert torch.allclose(torch.relu(model.blocks[1].ffn.up(inputs[1])), before[1], atol=1e-5)
