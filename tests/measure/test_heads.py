"""Tables about heads say what was put into them: known maps, known costs."""

import pytest
import torch
from helpers import small_model, tokens
from torch import nn

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
    with torch.no_grad(), heads.ablate_heads([], 1):
        slow = loss()
    with torch.no_grad():
        assert loss() != slow, "torch has a fast path here"


def test_silencing_a_head_that_is_not_there_is_an_error():
    model, x = small_model(), tokens(batch=3)
    with pytest.raises(LookupError, match=r"never met heads \[\(0, 4\)\] in 2 attention calls"):
        with torch.no_grad(), heads.ablate_heads([(0, 4), (1, 0)], 2):
            model(x)
