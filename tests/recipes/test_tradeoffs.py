"""The ten arms of 1.14: what each may see, that writing says what reading says, and what each keeps."""

import pytest
import torch

from lab.models.gpt import AttentionFn, attend
from lab.recipes import tradeoffs
from lab.recipes.tradeoffs import ARMS, HEAD, KEYS, UNTIMED, WHOLE, ModelConfig, Transformer, fields


def model_of(arm, n=64, **changes):
    start = {"vocabulary": 256, "context": n, "initialization": {"kind": "fan-in", "embedding": 0.3}}
    return Transformer(ModelConfig(**fields(arm, 64) | start | changes)).eval()


@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm not in WHOLE])
@torch.no_grad()
def test_no_arm_that_writes_learns_from_the_future(arm):
    tokens = tradeoffs.bytes_read(64)[0]
    later = tokens.clone()
    later[:, 40:] = (later[:, 40:] + 1) % 256
    model = model_of(arm)
    changed = (model(tokens) - model(later)).abs().amax((0, 2))
    assert changed[:40].max() == 0 and changed[40:].min() > 0


@torch.no_grad()
def test_where_sorted_chunks_are_cut_depends_on_the_future():
    """So LSH learns by a mask over its buckets."""
    tokens = tradeoffs.bytes_read(64)[0]
    later = tokens.clone()
    later[:, 40:] = (later[:, 40:] + 1) % 256
    model = tradeoffs.model_of("lsh", 64, 64).eval()
    assert (model(tokens) - model(later))[:, :40].abs().max() > 0


@pytest.mark.parametrize("arm", [arm for arm in ARMS if arm not in (*UNTIMED, "window")])
@torch.no_grad()
def test_writing_byte_by_byte_says_what_reading_at_once_does(arm):
    model, tokens = model_of(arm), tradeoffs.bytes_read(64)[0]
    caches = model.caches(1)
    one_by_one = torch.cat([model(byte, caches=caches) for byte in tokens.split(1, 1)], 1)
    assert torch.allclose(one_by_one, model(tokens), atol=1e-4)


@torch.no_grad()
def test_bigbird_in_blocks_is_softmax_over_sixteen_keys_or_fewer():
    config = ModelConfig(vocabulary=2, context=48, d_model=32, n_heads=1).layer(0)
    score, (q, k, v) = AttentionFn.build("bigbird-blocks", config), torch.randn(3, 1, 1, 48, 32).unbind(0)
    seen = torch.zeros(48, 48, dtype=torch.bool)
    for query in range(48):
        for block in score.blocks[query // 4]:
            if block >= 0:
                seen[query, 4 * block : 4 * block + 4] = True
    seen &= torch.ones(48, 48, dtype=torch.bool).tril()
    assert seen.sum(1).max() == KEYS and seen.diagonal().all() and seen[:, 0].all()
    assert torch.allclose(score(q, k, v), attend(q, k, v, seen), atol=1e-5)
    one = score(q[:, :, 29:30], k[:, :, :30], v[:, :, :30])
    assert torch.allclose(one, attend(q, k, v, seen)[:, :, 29:30], atol=1e-5)


def test_a_window_and_a_memory_keep_equally_much_and_the_rest_grows():
    state = {arm: [tradeoffs.state_bytes(arm, n, 64) for n in (64, 256)] for arm in ARMS}
    assert state["linformer"] == [None, None]
    numbers = 2 * (64 // HEAD) * 4  # layers, heads, bytes
    assert state["window"] == [numbers * 2 * KEYS * HEAD] * 2 == state["delta"] == state["gated delta"]
    assert state["linear"] == [numbers * HEAD * (HEAD + 1)] * 2
    assert state["softmax"] == [numbers * 2 * n * HEAD for n in (64, 256)] == state["bigbird"] == state["lsh"]
    assert state["hybrid"] == [(a + b) // 2 for a, b in zip(state["softmax"], state["linear"], strict=True)]


def test_every_arm_learns_both_tasks_and_can_be_timed(tmp_path):
    letters = torch.randint(97, 123, (20, 2000), generator=torch.Generator().manual_seed(0)).tolist()
    for i, text in enumerate(letters):
        (tmp_path / f"{i}.py").write_bytes(bytes(text))
    sizes = {"learning_rate": 0.01, "steps": 2, "pairs": 4, "context": 32, "d_model": 32, "batch": 2}
    for arm in ARMS:
        for task in ("recall", "code") if arm not in WHOLE else ("recall",):
            rows = tradeoffs.learned(0, task, arm, corpus=str(tmp_path), **sizes)
            assert rows[-1]["step"] == 2 and {"nats", "accuracy", "margin", "steps_to_mark"} <= rows[-1].keys()
        assert len(tradeoffs.step_call(arm, 64, 32)()) == len(list(tradeoffs.model_of(arm, 64, 32).parameters()))
        if arm in UNTIMED:
            with pytest.raises(ValueError, match="no way to decode"):
                tradeoffs.token_call(arm, 64, 32, 2)
        else:
            assert tradeoffs.token_call(arm, 64, 32, 2)().shape == (2, 1, 256)
    with pytest.raises(ValueError, match="unknown arm"):
        fields("sparse", 64)


def test_rounds_of_timings_hold_the_control():
    steps = tradeoffs.time_steps({"softmax": [64], "again": [64], "linear": [64, 128]}, 32, 2)
    tokens = tradeoffs.time_tokens(["softmax", "again"], [32], 32, 2, 2)
    assert len(steps) == 8 and len(tokens) == 4 and set(tokens.arm) == {"softmax", "again"}
