"""Hidden units of feed-forward layers."""

import torch

from lab.measure import neurons
from lab.models import ModelConfig, Transformer


def test_hidden_units_equal_activations_of_their_layer_inputs():
    model = Transformer(ModelConfig(vocab_size=9, block_size=6, d_model=16, n_layers=2, ffn="relu"), seed=0).eval()
    tokens = torch.arange(12).view(2, 6) % 9
    units, inputs = neurons.hidden(model, tokens), neurons.hidden(model, tokens, "ffn_norm")
    assert units.shape == (2, 12, 64) and units.min() == 0
    for layer, block in enumerate(model.blocks):
        torch.testing.assert_close(torch.relu(block.ffn.up(inputs[layer])), units[layer])
