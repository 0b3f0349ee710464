"""Sequences of several lengths in one batch: the probe measures each as if it had run alone, or says what it needs."""

import pytest
import torch
import torch.nn.functional as F
from helpers import huggingface, local_mass, max_weight, row_sum, sink_mass, tensors

from lab.measure import attention as at
from lab.measure.attention import attention_probe

MEASURES = [at.entropy, at.distance, sink_mass, max_weight, row_sum, local_mass(1)]
LENGTHS = [11, 4, 7, 1]


@pytest.mark.parametrize("kind, side", [("bert", "right"), ("llama", "left"), ("llama", "right"), ("gpt2", "left")])
def test_padded_sequences_measure_as_each_alone(kind, side):
    model, _ = huggingface(kind)
    draw, real = torch.Generator().manual_seed(0), torch.zeros(4, 11, dtype=torch.bool)
    tokens = torch.zeros(4, 11, dtype=torch.long)
    totals, counts = 0, 0
    for i, n in enumerate(LENGTHS):
        place = slice(0, n) if side == "right" else slice(11 - n, 11)
        tokens[i, place], real[i, place] = torch.randint(1, 50, (n,), generator=draw), True
        sums = alone(model, tokens[i, place])
        totals, counts = totals + sums[0], counts + sums[1]
    positions = (real.cumsum(1) - 1).clamp(min=0) if kind != "bert" else torch.arange(11).expand(4, -1)
    inputs = {"attention_mask": real.long(), "position_ids": positions}
    with torch.no_grad(), attention_probe(MEASURES, padding_mask=real, block_bytes=500) as probe:
        model(tokens, **inputs)
    assert probe.table().value.tolist() == pytest.approx((totals / counts).tolist(), abs=1e-5)
    with pytest.warns(UserWarning, match="give the probe padding_mask="), attention_probe(MEASURES) as careless:
        with torch.no_grad():
            model(tokens, **inputs)
    if kind == "bert":  # whose padded queries look somewhere; those of the others see nothing or are kept apart
        assert (careless.table().value - probe.table().value).abs().max() > 0.01


@torch.no_grad()
def alone(model, tokens):
    """Sum of every number of the probe's table over the queries of one sequence, and the number of queries."""
    with attention_probe(MEASURES) as probe:
        model(tokens[None])
    table = probe.table()
    return len(tokens) * torch.tensor(table.value.to_numpy()), len(tokens)


def test_targets_are_indices_into_the_padded_batch():
    (query, key, value), rng = tensors(2, 1, 1, 5, 5, 4)
    real = torch.tensor([[False, False, True, True, True], [True] * 5])
    mask = real[:, None, None]
    targets = torch.tensor([[4, 4, 4, 2, -1], [0, 1, -1, 3, 4]])
    with attention_probe([at.mass_on(targets)], padding_mask=real, keep_maps=True) as probe:
        F.scaled_dot_product_attention(query, key, value, mask)
    weights = probe.maps[0][:, 0]
    wanted = [weights[0, 2, 4], weights[0, 3, 2], *(weights[1, q, q if q else 0] for q in (0, 1, 3, 4))]
    assert probe.table().value.item() == pytest.approx(sum(wanted).item() / 6)


def test_what_does_not_fit_a_call_is_refused():
    (query, key, value), _ = tensors(2, 1, 1, 5, 5, 4)
    for real in (torch.ones(2, 4).bool(), torch.ones(1, 5).bool(), torch.ones(2, 6).bool()):
        with pytest.raises(ValueError, match=r"call 0 has 2 sequences, 5 queries, 5 keys"):
            with attention_probe([at.entropy], padding_mask=real):
                F.scaled_dot_product_attention(query, key, value)
    for wrong in (torch.ones(2, 5), torch.ones(5).bool()):
        with (
            pytest.raises(ValueError, match="padding_mask is booleans"),
            attention_probe([at.entropy], padding_mask=wrong),
        ):
            pass


def test_masks_that_hide_keys_for_other_reasons_do_not_warn(recwarn):
    (query, key, value), _ = tensors(2, 1, 1, 4, 6, 4)
    cache = (torch.arange(6) < 5).expand(2, 1, 4, 6)  # its last place is not filled yet
    with attention_probe([at.entropy]):
        F.scaled_dot_product_attention(query, key, value, cache)
        F.scaled_dot_product_attention(key, key, value, torch.ones(6, 6).tril(-1).bool())  # the last key is for none
        F.scaled_dot_product_attention(key, key, value, torch.zeros(2, 1, 6, 6))
    assert not recwarn
