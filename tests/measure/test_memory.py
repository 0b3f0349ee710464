"""Peak memory: of a known call, of attention, and of the probe, which holds a block of weights at a time; and sizes
that do not fit."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from lab.measure import attention as at
from lab.measure import cost
from lab.measure.attention import attention_probe
from lab.measure.memory import peak_memory, within_memory
from lab.models.kernels import run_attention


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


@pytest.mark.slow
def test_sixteen_thousand_positions_and_eight_heads_need_less_than_two_gigabytes():
    """Eight whole maps would take 8.6 GB."""
    assert peak_memory(probed_entropy, [(16384, 8)], warmup_args=(64, 8))[0] < 0.5e9


@pytest.mark.slow
def test_naive_memory_is_the_scores_and_tiled_memory_is_not():
    heads, width, tiny = 4, 16, 64
    lengths = (1024, 2048)
    extra = {}
    for kind in ("naive", "tiled"):
        calls = [(kind, n, width, heads) for n in lengths]
        extra[kind] = peak_memory(run_attention, calls, warmup_args=(kind, tiny, width, heads))
    for n, found in zip(lengths, extra["naive"], strict=True):  # the scores and their softmax are alive at once
        assert 1.5 < found / (4 * heads * n * n) < 2.5
    assert extra["tiled"][1] < extra["naive"][1] / 5


def hold_mebibytes(count):
    print("printing does no harm")
    return torch.ones(count, 2**18)


def fail():
    raise KeyError("a reason")


@pytest.mark.slow
def test_peak_memory_of_a_known_tensor():
    found = peak_memory(hold_mebibytes, [(100,), (50,), (200,)], warmup_args=(1,))
    assert [peak / 2**20 for peak in found] == pytest.approx([100, 50, 200], abs=10)
    assert peak_memory(hold_mebibytes, [()], count=100)[0] / 2**20 == pytest.approx(100, abs=10)


def test_peak_memory_says_what_went_wrong():
    with pytest.raises(RuntimeError, match="a reason"):
        peak_memory(fail, [()])
    for unreachable in (lambda: 0, partial(fail), torch.ones):
        with pytest.raises(ValueError, match="top of a module"):
            peak_memory(unreachable, [()])


# Whether sizes fit

MODERATE = {"d_model": 64, "n_layers": 2, "context": 64, "batch": 8, "lengths": [64], "score_heads": 2, "widths": [64],
            "longest": 64, "texts": 8, "windows": 8}  # fmt: skip


@pytest.mark.parametrize("need", [cost.training_bytes, cost.window_bytes, cost.score_bytes,
                                  cost.block_bytes, cost.copy_bytes], ids=lambda f: f.__name__)  # fmt: skip
def test_each_size_that_exhausts_memory_is_named(need, eight_gib):
    sizes = {name: MODERATE[name] for name in need.__code__.co_varnames[: need.__code__.co_argcount]}
    within_memory(need, **sizes)
    for name, value in sizes.items():
        huge = sizes | {name: [2, 10**9] if isinstance(value, list) else 10**9}
        with pytest.raises(ValueError, match=rf"{name} = {10**9}\b.* GiB are available; .*\b{name} that fits is \d+"):
            within_memory(need, **huge)


def test_where_no_single_size_helps_memory_says_so(eight_gib):
    with pytest.raises(ValueError, match="a = 9, b = 9 needs about 90.0 GiB, 8.0 GiB .* no single size makes it fit"):
        within_memory(lambda a, b: (9 + a * b) * 2**30, a=9, b=9)
