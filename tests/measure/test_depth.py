"""Layer ablation, layer similarity, weight perturbation and linear probes."""

import pytest
import torch
from helpers import close, generator, loss_of, small_model, tokens

from lab.measure.depth import (
    layer_ablation_losses,
    layer_cosine_similarity,
    perturbed_weights,
    probe_accuracy,
)
from lab.measure.hooks import capture


def test_perturbed_weights_are_restored_after_an_error():
    model = small_model()
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(KeyError), perturbed_weights(model, 0.1):
        assert all((p != q).any() for p, q in zip(model.parameters(), before, strict=True))
        raise KeyError
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_layer_ablation_equals_deleting_the_block():
    model, shorter = small_model(n_layers=3), small_model(n_layers=3)
    del shorter.blocks[1]
    base = loss_of(model).item()
    rises = layer_ablation_losses(model.blocks, lambda: loss_of(model).item())
    assert rises[1] == pytest.approx(loss_of(shorter).item() - base, abs=1e-6) and abs(rises[1]) > 1e-3
    assert loss_of(model).item() == base
    with torch.no_grad(), capture(model.blocks) as streams:
        model(tokens())
    close(streams[0], model.blocks[0](model.embedding(tokens()), causal=True))
    close(model.lm_head(model.norm(streams[-1])), model(tokens()))


def test_layer_similarity_is_1_for_parallel_and_0_for_orthogonal_streams():
    streams = torch.stack([torch.eye(4), 2 * torch.eye(4), torch.eye(4).roll(1, 0)])
    close(layer_cosine_similarity(streams), torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize("unit", [0.01, 1, 100])
def test_probe_accuracy_is_invariant_to_feature_scale(unit):
    rng = generator()
    labels = torch.randint(4, (600,), generator=rng)
    features = torch.randn(600, 12, generator=rng)
    features[:, :4] += 1.2 * torch.eye(4)[labels]
    accuracy = probe_accuracy(features, labels)
    assert 0.5 < accuracy < 0.95
    assert probe_accuracy(unit * features, labels) == accuracy
    assert probe_accuracy(features * torch.tensor([unit, 1.0] * 6), labels) == accuracy
    assert probe_accuracy(torch.cat([features, torch.ones(600, 1)], 1), labels) == pytest.approx(accuracy)
