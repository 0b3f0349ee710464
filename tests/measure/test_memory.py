"""Peak memory of known calls, of attention kernels, and of the probe, which stores one block of weights at a time."""

import pytest
import torch
import torch.nn.functional as F

from lab.measure import attention as at
from lab.measure.attention import attention_probe
from lab.measure.memory import peak_memory
from lab.models.kernels import run_attention


def probed_entropy(n, heads, d_head=16):
    """(entropy per head as probed, query, key) of causal attention over n positions."""
    rng = torch.Generator().manual_seed(0)
    query, key, value = (1.5 * torch.randn(1, heads, n, d_head, generator=rng) for _ in range(3))
    with torch.no_grad(), attention_probe([at.entropy, at.distance]) as probe:
        F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return probe.table().query("measure == 'entropy'").value.tolist(), query, key


def test_blockwise_entropy_equals_entropy_of_the_whole_map():
    entropies, query, key = probed_entropy(2048, 8)
    for head, entropy in enumerate(entropies):
        scores = query[0, head].double() @ key[0, head].double().T / 4
        weights = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)
        assert entropy == pytest.approx(torch.special.entr(weights).sum(-1).mean().item(), abs=1e-4)


@pytest.mark.slow
def test_probing_16384_positions_and_8_heads_takes_less_than_100_mb():
    """Eight whole maps would take 8.6 GB."""
    assert peak_memory(probed_entropy, [(16384, 8)])[0] < 0.1e9


def test_naive_attention_peak_memory_is_exact():
    """Alive at once: scores and softmax, n^2 numbers each, and q, k, v and the scaled q."""
    calls = [("naive", n, 64, heads) for n, heads in ((1024, 1), (2048, 1), (512, 3))]
    for _ in range(2):
        peaks = peak_memory(run_attention, calls)
        assert peaks == [4 * heads * (2 * n * n + 4 * n * w) for _, n, w, heads in calls]


def test_tiled_attention_peak_memory_excludes_scores():
    naive, tiled = (peak_memory(run_attention, [(kind, 2048, 16, 4)])[0] for kind in ("naive", "tiled"))
    assert tiled < naive / 5


def hold_mebibytes(count):
    return torch.ones(count, 2**18)


def test_peak_memory_of_known_tensors():
    assert peak_memory(hold_mebibytes, [(7,), (3,), (20,)]) == [7 * 2**20, 3 * 2**20, 20 * 2**20]
    assert peak_memory(hold_mebibytes, [()], count=5) == [5 * 2**20]
    assert peak_memory(lambda: hold_mebibytes(5) + hold_mebibytes(3).sum(), [()])[0] == 10 * 2**20 + 4
    assert peak_memory(lambda: None, [()]) == [0]


def test_warmup_allocations_do_not_count():
    kept = []

    def call(count):
        kept.append(hold_mebibytes(10)) if not kept else None
        return hold_mebibytes(count)

    assert peak_memory(call, [(3,)], warmup_args=(1,)) == [3 * 2**20]


def test_peak_memory_prints_nothing(capfd):
    peak_memory(hold_mebibytes, [(1,)])
    assert capfd.readouterr() == ("", "")
