"""The ten arms of exercise 1.14: causality, agreement of cached decoding with a full forward pass, and state size."""

import pytest
import torch
from definitions import definitions

from lab.models import ModelConfig, Transformer
from lab.models.gpt import AttentionFn, attend

DECODING = ["softmax", "bigbird", "performer", "linear", "delta", "gated delta", "hybrid"]  # also `window`
CAUSAL = ["softmax", "window", "bigbird", "lsh", "performer", "linear", "delta", "gated delta", "hybrid"]
ARMS = [*CAUSAL, "linformer"]


@pytest.fixture(scope="module")
def lesson():
    with definitions("14", "learned", "costs", "time_steps", "time_tokens") as module:
        yield module


@pytest.fixture
def model_of(lesson):
    def model(arm, n=64):
        start = {"vocab_size": 256, "block_size": n, "initialization": {"kind": "fan-in", "embedding": 0.3}}
        return Transformer(ModelConfig(**lesson.model_fields(arm, 64) | start)).eval()

    return model


def with_another_end(tokens):
    later = tokens.clone()
    later[:, 40:] = (later[:, 40:] + 1) % 256
    return later


@pytest.mark.parametrize("arm", CAUSAL)
@torch.no_grad()
def test_causal_arms_do_not_see_later_bytes(lesson, model_of, arm):
    tokens, _ = lesson.random_bytes(64)
    model = model_of(arm)
    changed = (model(tokens) - model(with_another_end(tokens))).abs().amax((0, 2))
    assert changed[:40].max() == 0 and changed[40:].min() > 0


@torch.no_grad()
def test_sorted_lsh_is_not_causal(lesson):
    """Later bytes move the borders of the sorted chunks. Therefore LSH is trained with a mask over its buckets."""
    tokens, _ = lesson.random_bytes(64)
    model = lesson.timed_model("lsh", 64, 64).eval()
    assert (model(tokens) - model(with_another_end(tokens)))[:, :40].abs().max() > 0


@pytest.mark.parametrize("arm", DECODING)
@torch.no_grad()
def test_cached_decoding_equals_full_forward(lesson, model_of, arm):
    model, (tokens, _) = model_of(arm), lesson.random_bytes(64)
    caches = model.caches(1)
    one_by_one = torch.cat([model(byte, caches=caches) for byte in tokens.split(1, 1)], 1)
    assert torch.allclose(one_by_one, model(tokens), atol=1e-4)


@torch.no_grad()
def test_blockwise_bigbird_equals_softmax_over_at_most_16_keys(lesson):
    config = ModelConfig(vocab_size=2, block_size=48, d_model=32, n_heads=1).layer(0)
    score, (q, k, v) = AttentionFn.build("bigbird-blocks", config), torch.randn(3, 1, 1, 48, 32).unbind(0)
    seen = torch.zeros(48, 48, dtype=torch.bool)
    for query in range(48):
        for block in score.blocks[query // 4]:
            if block >= 0:
                seen[query, 4 * block : 4 * block + 4] = True
    seen &= torch.ones(48, 48, dtype=torch.bool).tril()
    assert seen.sum(1).max() == 16 and seen.diagonal().all() and seen[:, 0].all()
    assert torch.allclose(score(q, k, v), attend(q, k, v, seen), atol=1e-5)
    one = score(q[:, :, 29:30], k[:, :, :30], v[:, :, :30])
    assert torch.allclose(one, attend(q, k, v, seen)[:, :, 29:30], atol=1e-5)


def test_state_bytes_grow_with_length_only_for_softmax_bigbird_lsh_and_hybrid(lesson):
    state = {arm: [lesson.state_bytes(arm, n, 64) for n in (64, 256)] for arm in ARMS}
    assert state["linformer"] == [None, None]
    numbers = 2 * 2 * 4  # layers, heads, bytes
    assert state["window"] == [numbers * 2 * 16 * 32] * 2 == state["delta"] == state["gated delta"]
    assert state["linear"] == [numbers * 32 * 33] * 2
    assert state["softmax"] == [numbers * 2 * n * 32 for n in (64, 256)] == state["bigbird"] == state["lsh"]
    assert state["hybrid"] == [(a + b) // 2 for a, b in zip(state["softmax"], state["linear"], strict=True)]


def test_timed_calls_return_gradients_or_next_byte_logits(lesson):
    for arm in ARMS:
        parameters = list(lesson.timed_model(arm, 64, 32).parameters())
        assert len(lesson.training_step(arm, 64, 32)()) == len(parameters)
    for arm in (*DECODING, "window"):
        assert lesson.writing_step(arm, 64, 32, 2)().shape == (2, 1, 256)


def test_timings_accept_a_second_softmax_arm_called_again(lesson):
    steps = lesson.time_steps({"softmax": [64], "again": [64], "linear": [64, 128]}, 32)
    tokens = lesson.time_tokens(["softmax", "again"], [32], 32, 2)
    assert len(steps) == 4 and len(tokens) == 2 and set(tokens.arm) == {"softmax", "again"}
