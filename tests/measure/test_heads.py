"""Tables about heads say what was put into them: known maps, known costs."""

import pytest
import torch
import torch.nn.functional as F
from helpers import small_model, tokens, uniform_maps
from torch import nn

from lab.measure import heads
from lab.measure.attention import attention_maps


@pytest.mark.parametrize("position", ["rotary", "alibi"])
def test_a_hidden_key_gets_no_weight_from_the_last_query_alone(position):
    model, x = small_model(position=position), tokens(10, batch=1)[0]
    real = F.scaled_dot_product_attention
    with torch.no_grad(), heads.attention_knockout(1, 2):
        model(x.expand(10, -1))
        q = torch.zeros(10, 1, 10, 1)
        real(q, q, q)  # call 0 of the next forward: untouched
        values = torch.eye(10).expand(10, 1, -1, -1)
        seen = real(q, q, values, is_causal=True)  # call 1: the weights themselves
    wanted = (1 - torch.eye(10)) / 9
    torch.testing.assert_close(seen[:, 0, -1], wanted)
    torch.testing.assert_close(seen[:, 0, :-1], uniform_maps(10, 1, 10)[:, 0, :-1].float())


def test_a_key_is_hidden_under_a_mask_that_is_no_tensor():
    from torch.nn.attention.bias import causal_lower_right

    draw = torch.Generator().manual_seed(0)
    q, k, values = (
        torch.randn(6, 1, 3, 4, generator=draw),
        torch.randn(6, 1, 6, 4, generator=draw),
        torch.eye(6),
    )
    values = values.expand(6, 1, 6, 6)
    plain = torch.ones(3, 6, dtype=torch.bool).tril(3)
    with heads.attention_knockout(0, 1):
        seen = F.scaled_dot_product_attention(q, k, values, causal_lower_right(3, 6))
    with heads.attention_knockout(0, 1):
        wanted = F.scaled_dot_product_attention(q, k, values, plain)
    torch.testing.assert_close(seen, wanted)


@pytest.mark.parametrize("position", ["rotary", "alibi"])
def test_key_effects_are_those_of_masking_by_hand(position):
    model, x = small_model(position=position), tokens(10, batch=1)[0]
    table = heads.key_effects(model, x[None], attention_maps(model, x[None]))
    effects = table.pivot(index="layer", columns="key", values="effect").to_numpy()
    assert effects.shape == (2, 10) and (effects >= -1e-6).all() and effects.max() > 1e-4
    whole = model(x[None])[0, -1].log_softmax(-1)
    key, edited = 4, []
    real = F.scaled_dot_product_attention

    def blind(query, key_, value, attn_mask=None, is_causal=False, **others):
        edited.append(1)
        if len(edited) == 2:
            n = query.shape[2]
            mask = torch.zeros(n, n).masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
            bias = 0 if attn_mask is None else attn_mask
            mask = (mask + bias).clone()
            mask[..., -1, key] = -torch.inf
            return real(query, key_, value, mask, **others)
        return real(query, key_, value, attn_mask, is_causal=is_causal, **others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", blind)
        without = model(x[None])[0, -1].log_softmax(-1)
    assert effects[1, key] == pytest.approx((whole.exp() * (whole - without)).sum().item(), abs=1e-6)


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


def test_pruning_costs_are_those_of_the_cheapest_heads_together():
    model, x = small_model(), tokens(batch=3)

    def loss():
        return model(x).square().mean().item()

    table = heads.pruning_costs(loss, 2, 4)
    alone = heads.ablation_costs(lambda: {"loss": loss()}, 2, 4)
    assert table.removal_cost.tolist() == alone.value.tolist()
    ranked = table.sort_values("importance_rank")
    assert ranked.importance_rank.tolist() == list(range(8)) and ranked.removal_cost.is_monotonic_increasing
    assert ranked.pruned_cost.iloc[0] == ranked.removal_cost.iloc[0]
    cheapest = list(zip(ranked.layer, ranked["head"], strict=True))[:3]
    with torch.no_grad(), heads.ablate_heads(cheapest, 2):
        together = loss()
    with torch.no_grad():
        assert ranked.pruned_cost.iloc[2] == together - loss()


def test_costs_do_not_hold_what_the_fast_path_of_torch_does_otherwise():
    """Heads that write nothing cost nothing, although outputs at padding are 0 on the fast path
    alone.
    """
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0)
    encoder, x = nn.TransformerEncoder(layer, 1).eval(), torch.ones(2, 5, 8).cumsum(1).cos()
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    nn.init.zeros_(encoder.layers[0].self_attn.out_proj.weight)

    def loss():
        return encoder(x, src_key_padding_mask=padding).abs().sum().item()

    assert heads.ablation_costs(lambda: {"loss": loss()}, 1, 2).value.tolist() == [0, 0]
    assert heads.pruning_costs(loss, 1, 2).pruned_cost.tolist() == [0, 0]
    with torch.no_grad(), heads.ablate_heads([], 1):
        slow = loss()
    with torch.no_grad():
        assert loss() != slow, "torch has a fast path here"


def test_silencing_a_head_that_is_not_there_is_an_error():
    model, x = small_model(), tokens(batch=3)
    with pytest.raises(LookupError, match=r"never met heads \[\(0, 4\)\] in 2 attention calls"):
        with torch.no_grad(), heads.ablate_heads([(0, 4), (1, 0)], 2):
            model(x)


def test_key_effects_pair_weight_and_loss_of_every_key():
    model, x = small_model().double(), tokens()
    table = heads.key_effects(model, x, attention_maps(model, x))
    assert len(table) == 2 * 2 * 12 and (table.effect >= -1e-12).all()
    sums = table.groupby(["sequence", "layer"]).weight.sum()
    assert sums.tolist() == pytest.approx([1] * 4)
    alone = heads.key_effects(model, x[1:], attention_maps(model, x[1:]))
    assert table[table.sequence == 1].effect.tolist() == pytest.approx(alone.effect.tolist())
