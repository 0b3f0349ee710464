"""Rotary positions and ALiBi give the same numbers in every kernel; what is stored differs."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import flex_attention

from lab.models.positions import alibi_slopes
from lab.recipes import bias_kernels
from lab.recipes.bias_kernels import inputs, kernel_call

KERNELS = "stored mask", "flex", "fused causal"
SIZES = {"n": 64, "d": 32, "heads": 4}


@pytest.fixture(autouse=True)
def no_compiler(monkeypatch):
    monkeypatch.setattr(bias_kernels, "compiled_flex_attention", lambda: flex_attention)


@pytest.mark.parametrize("position", ["none", "rotary", "alibi"])
def test_all_kernels_compute_the_same(position):
    results = [kernel_call(position, kernel, **SIZES)() for kernel in KERNELS]
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-4, atol=1e-4)


def test_alibi_is_the_softmax_of_scores_minus_slope_times_distance():
    q, k, v = inputs(**SIZES)
    i, j = torch.arange(64)[:, None], torch.arange(64)
    scores = q @ k.transpose(-1, -2) / 8**0.5 - alibi_slopes(4)[:, None, None] * (i - j)
    expected = F.softmax(scores.masked_fill(j > i, -torch.inf), -1) @ v
    for kernel in KERNELS:
        torch.testing.assert_close(kernel_call("alibi", kernel, **SIZES)(), expected, rtol=1e-4, atol=1e-4)
