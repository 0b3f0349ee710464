"""Edits of rank one give the wanted output, and disturb other keys little."""

import pytest
import torch
from helpers import randn

from lab.measure.editing import rome_update, target_output
from lab.measure.hooks import edit
from lab.models import ModelConfig, Transformer


def test_an_update_of_rank_one_sends_the_key_to_the_value_and_leaves_orthogonal_keys():
    keys, weight, value = torch.linalg.qr(randn(12, 12))[0][:6], randn(5, 12, seed=1), randn(5, seed=2)
    covariance = keys.T @ keys / 6
    edited = rome_update(weight, keys[0], value, covariance, ridge=1e-6)
    torch.testing.assert_close(edited @ keys[0], value, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(edited @ keys[1:].T, weight @ keys[1:].T, atol=1e-4, rtol=1e-4)
    assert torch.linalg.matrix_rank(edited - weight, atol=1e-5) == 1


def test_the_covariance_makes_an_edit_quieter_on_correlated_keys():
    keys = randn(40, 12) + 2 * randn(1, 12, seed=3)
    weight, value = randn(5, 12, seed=1), randn(5, seed=2)

    def moved(covariance):
        edited = rome_update(weight, keys[0], value, covariance)
        torch.testing.assert_close(edited @ keys[0], value, atol=1e-3, rtol=1e-3)
        return ((edited - weight) @ keys[1:].T).square().sum().item()

    assert moved(keys.T @ keys / 40) < 0.5 * moved(torch.eye(12))
    with pytest.raises(ValueError, match="zero"):
        rome_update(weight, keys[0], value, torch.zeros(12, 12))


def test_the_wanted_output_gives_the_wanted_answer_and_leaves_the_model():
    model = Transformer(ModelConfig(vocab_size=9, block_size=4, d_model=32, ffn="relu")).eval()
    tokens = torch.tensor([[1, 2, 3], [3, 2, 1]])
    before = model(tokens).detach()
    value = target_output(model, "blocks.1.ffn.down", tokens, 7, sure=0.7, steps=1000)
    torch.testing.assert_close(model(tokens), before)
    with edit(model, {"blocks.1.ffn.down": lambda x: torch.cat([x[:, :-1], value.expand(2, 1, -1)], 1)}):
        assert (model(tokens)[:, -1].softmax(-1)[:, 7] > 0.7).all()
