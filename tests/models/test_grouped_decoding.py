"""Grouped-query attention in decoding: cache layout, kernel inputs, and agreement with repeated key-value heads."""

import pytest
import torch
from helpers import randn, row_sum

from lab.measure.attention import attention_probe
from lab.models import ModelConfig, Transformer
from lab.models.gpt import QKVProjection, Softmax
from lab.models.kernels import naive_attention
from lab.recipes.timed_calls import decode_call

SIZES = {"vocab_size": 11, "block_size": 16, "d_model": 32, "n_heads": 8}


def softmax(**options):
    return Softmax(ModelConfig(**SIZES).layer(0), **options)


@pytest.mark.parametrize("g", [1, 2, 4, 8])
@pytest.mark.parametrize("scale", ["rsqrt", "inverse"])
def test_single_query_gqa_equals_repeated_kv_heads(g, scale):
    q, k, v = randn(3, 8, 1, 4), randn(3, g, 16, 4, seed=1), randn(3, g, 16, 4, seed=2)
    repeated = [x.repeat_interleave(8 // g, dim=1) for x in (k, v)]
    expected = naive_attention(q, *repeated, scale={"rsqrt": 0.5, "inverse": 0.25}[scale])
    torch.testing.assert_close(softmax(scale=scale)(q, k, v), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("mask_heads", [1, 8])
@pytest.mark.parametrize("biased", [False, True])
def test_gqa_applies_masks_and_biases_per_query_head(mask_heads, biased):
    q, k, v = randn(3, 8, 1, 4), randn(3, 2, 16, 4, seed=1), randn(3, 2, 16, 4, seed=2)
    mask = randn(3, mask_heads, 1, 16, seed=3) > 0
    bias = randn(8, 1, 16, seed=4) if biased else None
    full = softmax()(q, *(x.repeat_interleave(4, dim=1) for x in (k, v)), mask=mask, bias=bias)
    torch.testing.assert_close(softmax()(q, k, v, mask=mask, bias=bias), full, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("g", [1, 2, 4])
def test_decoding_passes_the_cache_to_sdpa_without_a_copy(g, monkeypatch):
    calls, fused = [], torch.nn.functional.scaled_dot_product_attention

    def spy(q, k, v, **options):
        calls.append((tuple(q.shape), k.data_ptr(), options["enable_gqa"]))
        return fused(q, k, v, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    model = Transformer(ModelConfig(**SIZES, kv_heads=g, n_layers=1)).eval()
    caches = model.caches(2)
    for _ in range(3):
        model(torch.ones(2, 1, dtype=torch.long), caches=caches)
    assert calls == 3 * [((2, g, 8 // g, 4), caches[0].keys.data_ptr(), False)]


@pytest.mark.parametrize("g", [1, 2, 4, 8])
def test_probe_observes_every_query_head_without_changing_results(g):
    model = Transformer(ModelConfig(**SIZES, kv_heads=g, n_layers=1, position="t5")).eval()
    tokens = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        results = []
        for watched in (False, True):
            caches = model.caches(2)
            model(tokens[:, :-1], caches=caches)
            if watched:
                with attention_probe([row_sum], keep_maps=True) as probe:
                    results.append(model(tokens[:, -1:], caches=caches))
            else:
                results.append(model(tokens[:, -1:], caches=caches))
    assert probe.maps[0].shape == (2, 8, 1, 9) and len(probe.table()) == 8
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


def test_decode_call_fills_the_context_and_is_repeatable():
    call = decode_call(8, 32, 4, 2, B=3, tokens=2)
    first = call()
    assert first.shape == (3, 1, 256) and torch.equal(first, call())
    for tokens in (0, 9):
        with pytest.raises(ValueError, match="1..8"):
            decode_call(8, 32, 4, 2, tokens=tokens)


def test_full_value_heads_reproduce_standard_heads():
    config = ModelConfig(**SIZES)
    standard, full = (QKVProjection.build(kind, config.layer(0)) for kind in ("full", "full-value"))
    x = randn(2, 6, 32)
    q, k, v = standard.matrices()
    with torch.no_grad():
        full.qkv.weight.copy_(torch.cat([q, k]))
        up, down = standard.out.weight.unflatten(1, (8, 4)), v.unflatten(0, (8, 4))  # (m, h, d), (h, d, m)
        full.out.weight.copy_(torch.einsum("ohd,hdm->ohm", up, down).flatten(1))
        mixed = [each.join(naive_attention(*each.split(x))) for each in (standard, full)]
        torch.testing.assert_close(*mixed, atol=1e-5, rtol=1e-5)
        assert torch.linalg.matrix_rank(full.out.weight[:, :32]) == 4
    assert sum(p.numel() for p in full.parameters()) == 2 * 32 * 32 + 8 * 32 * 32
    with pytest.raises(ValueError, match="kv_heads"):
        QKVProjection.build("full-value", ModelConfig(**SIZES, kv_heads=2).layer(0))
