"""Parts of a block and training steps that are timed: they are the real ones, and each is charged its own."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lab.measure.cost import attention_macs, feedforward_macs
from lab.models import ModelConfig, Transformer
from lab.models.kernels import attention_call
from lab.recipes import timed_calls


def counted(call):
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        call()
    return counter.get_total_flops() // 2


@pytest.mark.parametrize("n, d, heads", [(7, 64, 1), (32, 128, 4)])
def test_operations_add_up_to_the_block(n, d, heads):
    parts = {name: counted(call) for name, call in timed_calls.block_operations(n, d, heads).items()}
    macs = attention_macs(n, d, heads, heads, d // heads)
    assert parts["scores"] == macs["scores"] and parts["mix"] == macs["mix"] and parts["softmax"] == 0
    assert parts["projections"] == macs["q"] + macs["k"] + macs["v"] + macs["out"]
    assert parts["feedforward"] == feedforward_macs(n, d, 4 * d)
    assert sum(parts.values()) == counted(timed_calls.block_call(n, d, heads))


@pytest.mark.parametrize("n, d, heads", [(7, 64, 1), (32, 128, 4)])
def test_operations_write_to_memory_that_is_kept_and_make_up_attention(n, d, heads):
    calls = timed_calls.block_operations(n, d, heads)
    for name in ("scores", "softmax", "mix"):
        first, again = calls[name](), calls[name]()
        assert first.data_ptr() == again.data_ptr(), "no memory is asked for between calls"
    config = ModelConfig(vocab_size=1, block_size=n, d_model=d, n_layers=1, n_heads=heads, position="none", mask="none")
    block, x = Transformer(config).blocks[0], torch.randn(1, n, d, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(calls["projections"]()[1], block.mixer(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("buffer", [torch.empty(3 * 24 * 24 + 5), None])
def test_where_scores_are_stored_changes_nothing(buffer):
    stored = timed_calls.stored_call(24, 16, 3, buffer=buffer)
    for _ in range(2):
        torch.testing.assert_close(stored(), attention_call("naive", 24, 16, 3)()[0])


def test_fresh_memory_is_new_pages_at_every_call():
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        assert timed_calls.fresh_memory(2**20).fill_(1).sum() == 2**20
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults > 5 * 2**22 / 2**16, "at the least one for each 64 KiB, the largest usual page"


def test_checkpoints_keep_less_and_change_no_gradient():
    plain, checkpointed = (timed_calls.training_step(3, 16, 64, 2, flag) for flag in (False, True))
    assert all(torch.equal(*pair) for pair in zip(plain(), checkpointed(), strict=True))
    assert timed_calls.saved_bytes(checkpointed) < timed_calls.saved_bytes(plain) / 2


@pytest.mark.parametrize("residual", ["pre", "post", "reversible"])
def test_a_step_gives_the_gradients_of_a_model_with_that_residual(residual):
    got = timed_calls.training_step(2, 8, 16, 4, residual=residual)()
    config = ModelConfig(vocab_size=256, block_size=8, d_model=16, n_layers=2, n_heads=1, residual=residual)
    model = Transformer(config)
    tokens = torch.randint(256, (4, 9), generator=torch.Generator().manual_seed(0))
    F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    for a, p in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)
        assert a.abs().max() > 0


@pytest.mark.parametrize("kind", timed_calls.CORES)
def test_cores_are_causal_but_linformer_and_their_calls_run(kind):
    n, changed = 256, 200
    mixed = timed_calls.CORES[kind](n, 16)
    q, k, v = torch.randn(3, 1, 2, n, 16, generator=torch.Generator().manual_seed(0))
    later = v.clone()
    later[:, :, changed:] += 1
    before, after = mixed(q, k, v), mixed(q, k, later)
    assert torch.equal(before[:, :, :changed], after[:, :, :changed]) == (kind != "linformer")
    assert not torch.equal(before, after)
    assert [x.shape for x in timed_calls.core_call(kind, n, 16, 2, backward=True)()] == [(1, 2, n, 16)] * 3
    with pytest.raises(ValueError, match="unknown core 'nonsuch'"):
        timed_calls.core_call("nonsuch", n)
