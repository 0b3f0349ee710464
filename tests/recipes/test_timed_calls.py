"""Parts of a block and training steps that are timed: they are the real ones, and each is charged its own."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lab.measure.cost import attention_macs, feedforward_macs
from lab.models import ModelConfig, Transformer
from lab.models.explicit import attention_call
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


def test_reused_memory_changes_nothing():
    reused = timed_calls.reused_call(24, 16, 3, torch.empty(3 * 24 * 24 + 5))
    for _ in range(2):
        torch.testing.assert_close(reused(), attention_call("explicit", 24, 16, 3)()[0])


def test_checkpoints_keep_less_and_change_no_gradient():
    plain, checkpointed = (timed_calls.training_step(3, 16, 64, 2, flag) for flag in (False, True))
    assert all(torch.equal(*pair) for pair in zip(plain(), checkpointed(), strict=True))
    assert timed_calls.saved_bytes(checkpointed) < timed_calls.saved_bytes(plain) / 2


@pytest.mark.parametrize("residual", ["pre", "post", "reversible"])
def test_a_step_gives_the_gradients_of_a_model_with_that_residual(residual):
    got = timed_calls.training_step(2, 8, 16, 4, residual=residual)()
    config = ModelConfig(vocabulary=256, context=8, d_model=16, n_layers=2, n_heads=1, residual=residual)
    model = Transformer(config)
    tokens = torch.randint(256, (4, 9), generator=torch.Generator().manual_seed(0))
    F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    for a, p in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad)
        assert a.abs().max() > 0
