"""Head ablation, divergence and entropy matching on known cases."""

import pytest
import torch
from helpers import random_maps, small_model, tokens

from lab.measure import heads


def test_ablation_costs_equal_zeroing_the_head_output():
    model, x = small_model(), tokens(batch=3)

    def losses():
        logits = model(x)
        return {
            "first": logits[0].square().mean().item(),
            "second": logits[1].square().mean().item(),
        }

    with torch.no_grad():
        intact = losses()
        table = heads.ablation_costs(losses, 2, 4).set_index(["layer", "head", "measure"]).value
        assert len(table) == 16
        model.blocks[1].mixer.heads.out.weight[:, 16:24] = 0  # output of head 2 in the last layer
        ablated = losses()
    for name in intact:
        assert table[1, 2, name] == pytest.approx(ablated[name] - intact[name], abs=1e-6)
    assert table.abs().min() > 0


def test_ablating_a_missing_head_raises():
    model, x = small_model(), tokens(batch=3)
    with pytest.raises(LookupError, match=r"these heads never ran: \[\(0, 4\)\] in 2 attention calls"):
        with torch.no_grad(), heads.ablate_heads([(0, 4), (1, 0)], 2):
            model(x)


def test_divergence_is_0_for_equal_and_1_bit_for_disjoint_maps():
    maps = torch.eye(4).expand(2, 2, -1, -1).clone()
    maps[:, 1] = maps[:, 1].roll(1, -1)
    assert heads.divergence(maps, maps).tolist() == [[0, 1], [1, 0]]
    assert heads.divergence(random_maps(2, 3, 5), random_maps(2, 3, 5)).diagonal().abs().max() < 1e-9


def test_match_entropy_matches_mean_entropy_and_keeps_order():
    generator = torch.Generator().manual_seed(0)
    flat, sharp = (torch.softmax(scale * torch.randn(2, 3, 5, 5, generator=generator), -1) for scale in (0.1, 3))
    matched = heads.match_entropy(flat, sharp)

    def entropy(m):
        return -(m * m.log()).sum(-1).mean()

    assert torch.isclose(entropy(matched), entropy(sharp), atol=1e-3) and torch.allclose(
        matched.sum(-1), torch.ones(2, 3, 5)
    )
    assert (matched.argmax(-1) == flat.argmax(-1)).all() and torch.allclose(
        heads.match_entropy(sharp, sharp), sharp, atol=1e-4
    )
    masked = flat.tril()
    assert (heads.match_entropy(masked / masked.sum(-1, keepdim=True), sharp).triu(1) == 0).all()
