"""The probe holds a block of weights at a time: its numbers are those of the whole map, its memory is not."""

import pytest
import torch
import torch.nn.functional as F

from lab.measure import attention as at
from lab.measure.attention import attention_probe
from lab.measure.cost import peak_memory


def probed_entropy(n, heads, d_head=16):
    """Entropy of each head of causal attention over n positions, as the probe measures it."""
    rng = torch.Generator().manual_seed(0)
    query, key, value = (1.5 * torch.randn(1, heads, n, d_head, generator=rng) for _ in range(3))
    with torch.no_grad(), attention_probe([at.entropy, at.distance]) as probe:
        F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return probe.table().query("measure == 'entropy'").value.tolist(), query, key


def test_entropy_in_blocks_is_that_of_the_whole_map():
    found, query, key = probed_entropy(2048, 8)
    for head, entropy in enumerate(found):
        scores = query[0, head].double() @ key[0, head].double().T / 4
        weights = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
        assert entropy == pytest.approx(torch.special.entr(weights).sum(-1).mean().item(), abs=1e-4)


def test_sixteen_thousand_positions_and_eight_heads_need_less_than_two_gigabytes():
    """Eight whole maps would take 8.6 GB."""
    assert peak_memory(probed_entropy, 16384, 8, warmup_args=(64, 8)) < 0.5e9
