"""Heads of known maps and known costs."""

import pytest
import torch
from helpers import random_maps, small_model, tokens

from lab.measure import heads


def test_silencing_costs_are_those_of_a_head_cut_off():
    model, x = small_model(), tokens(batch=3)

    def losses():
        logits = model(x)
        return {
            "first": logits[0].square().mean().item(),
            "second": logits[1].square().mean().item(),
        }

    with torch.no_grad():
        whole = losses()
        table = heads.ablation_costs(losses, 2, 4).set_index(["layer", "head", "measure"]).value
        assert len(table) == 16
        model.blocks[1].mixer.heads.out.weight[:, 16:24] = 0  # what head 2 of the last layer writes
        cut = losses()
    for name in whole:
        assert table[1, 2, name] == pytest.approx(cut[name] - whole[name], abs=1e-6)
    assert table.abs().min() > 0


def test_silencing_a_head_that_is_not_there_is_an_error():
    model, x = small_model(), tokens(batch=3)
    with pytest.raises(LookupError, match=r"never met heads \[\(0, 4\)\] in 2 attention calls"):
        with torch.no_grad(), heads.ablate_heads([(0, 4), (1, 0)], 2):
            model(x)


def test_divergence_between_heads_is_zero_for_equal_and_one_bit_for_disjoint_patterns():
    maps = torch.eye(4).expand(2, 2, -1, -1).clone()
    maps[:, 1] = maps[:, 1].roll(1, -1)
    assert heads.divergence(maps, maps).tolist() == [[0, 1], [1, 0]]
    assert heads.divergence(random_maps(2, 3, 5), random_maps(2, 3, 5)).diagonal().abs().max() < 1e-9


def test_maps_are_made_as_sharp_as_others_and_keep_their_order():
    generator = torch.Generator().manual_seed(0)
    flat, sharp = (torch.softmax(scale * torch.randn(2, 3, 5, 5, generator=generator), -1) for scale in (0.1, 3))
    made = heads.match_entropy(flat, sharp)

    def entropy(m):
        return -(m * m.log()).sum(-1).mean()

    assert torch.isclose(entropy(made), entropy(sharp), atol=1e-3) and torch.allclose(made.sum(-1), torch.ones(2, 3, 5))
    assert (made.argmax(-1) == flat.argmax(-1)).all() and torch.allclose(
        heads.match_entropy(sharp, sharp), sharp, atol=1e-4
    )
    masked = flat.tril()
    assert (heads.match_entropy(masked / masked.sum(-1, keepdim=True), sharp).triu(1) == 0).all()
