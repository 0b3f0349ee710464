"""What a block adds to a stream, and what becomes of the output without it or with its weights
moved.
"""

import pytest
import torch
from helpers import close, loss_of, small_model, tokens

from lab.measure.depth import (
    layer_ablation_losses,
    layer_cosine_similarity,
    perturbed_weights,
)
from lab.measure.hooks import capture
from lab.training import TrainConfig, train


def test_a_moved_model_moves_back_even_after_an_error():
    model = small_model()
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(KeyError), perturbed_weights(model, 0.1):
        assert all((p != q).any() for p, q in zip(model.parameters(), before, strict=True))
        raise KeyError
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_a_block_left_out_is_a_block_that_is_not_there():
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


def test_likeness_is_one_for_equal_and_none_for_orthogonal_streams():
    streams = torch.stack([torch.eye(4), 2 * torch.eye(4), torch.eye(4).roll(1, 0)])
    close(layer_cosine_similarity(streams), torch.tensor([1.0, 0.0]))


def test_training_stops_where_it_is_told_to():
    def draw(generator, size):
        x = torch.randint(13, (size, 12), generator=generator)
        return x, x

    run = TrainConfig(steps=40, batch=4, warmup=0)
    whole = train(small_model(), draw, run, every=5)
    stopped = train(small_model(), draw, run, every=5, stop=lambda row: row["step"] >= 15)
    assert stopped.step.tolist() == [0, 5, 10, 15] and whole.step.iloc[-1] == 40
    assert stopped.equals(whole[:4])
