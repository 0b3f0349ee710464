"""Naive, tiled and fused attention agree, forward and backward, for small and extreme logits."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.models.kernels import KINDS, attention_call, naive_attention, tiled_attention


def tensors(*lengths, width=8):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, 3, n, width, generator=generator).requires_grad_() for n in lengths]  # (b, h, n, w)


lengths = st.integers(1, 24)


@settings(deadline=None, max_examples=25)
@given(n=lengths, keys=lengths, block=st.integers(1, 30), width=st.integers(1, 9), causal=st.booleans())
def test_naive_tiled_and_fused_attention_agree(n, keys, block, width, causal):
    q, k, v = tensors(n, n if causal else keys, n if causal else keys, width=width)
    outputs = [
        F.scaled_dot_product_attention(q, k, v, is_causal=causal),
        naive_attention(q, k, v, causal=causal),
        tiled_attention(q, k, v, block=block, causal=causal),
    ]
    weight = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(1))
    gradients = [torch.autograd.grad(output, (q, k, v), weight) for output in outputs]
    for output, gradient in zip(outputs[1:], gradients[1:], strict=True):
        torch.testing.assert_close(output, outputs[0], atol=1e-5, rtol=1e-5)
        for ours, theirs in zip(gradient, gradients[0], strict=True):
            torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(tiled_attention(q, k, v, block=block, causal=causal), outputs[2])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention_is_finite_for_logits_of_1e4(causal, dtype):
    q, k, v = tensors(32, 32, 32)
    with torch.no_grad():
        q *= 1e4 / ((q @ k.transpose(-2, -1)).abs().max() / q.shape[-1] ** 0.5)
    q, k, v = (tensor.detach().to(dtype).requires_grad_() for tensor in (q, k, v))
    reference = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=causal)
    for output in (naive_attention(q, k, v, causal=causal), tiled_attention(q, k, v, block=5, causal=causal)):
        # A float32 logit of 1e4 has an absolute precision of 1e-3, and so have the weights.
        torch.testing.assert_close(output.double(), reference, atol=1e-5 if dtype == torch.float64 else 1e-2, rtol=0)
        assert all(g.isfinite().all() for g in torch.autograd.grad(output.sum(), (q, k, v)))


def test_tiled_attention_saves_no_scores_for_backward():
    """For backward, tiled attention saves inputs and outputs, not the score matrix."""
    q, k, v = tensors(64, 64, 64, width=4)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
        tiled_attention(q, k, v, block=16)
    assert sum(saved) < 2 * 3 * 64 * 64


@pytest.mark.parametrize("kind", KINDS)
def test_attention_call_is_repeatable_and_matches_naive(kind):
    call = attention_call(kind, 16, 4, 2, backward=True)
    for first, again in zip(call(), call(), strict=True):
        assert torch.equal(first, again) and first.shape == (1, 2, 16, 4)
    torch.testing.assert_close(attention_call(kind, 16, 4, 2)(), attention_call("naive", 16, 4, 2)())


def test_invalid_kernel_arguments_raise():
    q, k, v = tensors(4, 6, 6)
    with pytest.raises(ValueError, match="4 and 6"):
        naive_attention(q, k, v, causal=True)
    with pytest.raises(ValueError, match="4 and 6"):
        tiled_attention(q, k, v, block=2, causal=True)
    with pytest.raises(ValueError, match="block"):
        tiled_attention(q, k, v, block=0)
    with pytest.raises(ValueError, match="fused.*naive.*tiled"):
        attention_call("flash", 4, 4, 1)
