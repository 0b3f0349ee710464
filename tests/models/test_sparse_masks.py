"""Sparse attention masks: properties of all masks, then of single masks."""

import itertools

import numpy as np
import pytest
import torch

from lab.models import ModelConfig, Transformer
from lab.models.masks import Causal, Mask, Window, reachable
from lab.models.sparse_masks import (  # fmt: skip
    Band,
    BigBird,
    ByHead,
    Dilated,
    Filled,
    Global,
    Linked,
    Longformer,
    Marked,
    Periodic,
    Random,
    SameSpeaker,
    Seen,
    Strided,
    Tree,
)

SPEAKER = torch.tensor([[0, 0, 1, 1, 1, 0, 1, 0], [1, 0, 0, 0, 1, 1, 0, 0]])
PARENT = torch.tensor([[-1, 0, 1, 1, 0, 4, 5, 4], [-1, 0, 1, 2, 3, 4, 5, 6]])
PATTERNS = {
    "dilated": Dilated(dilation=2, size=3), "strided": Strided(stride=3), "periodic": Periodic(period=3, lead=1),
    "global": Global(tokens=2), "random": Random(links=2), "longformer": Longformer(size=2), "band": Band(size=2),
    "bigbird": BigBird(size=2), "both sides": BigBird(size=2, length=8), "speaker": SameSpeaker(SPEAKER),
    "by head": ByHead(masks=[{"kind": "dilated", "dilation": 2**i, "size": 3} for i in range(3)]),
    "marked": Marked(SPEAKER == 1), "linked": Linked(PARENT), "tree": Tree(PARENT),
    "filled": Filled(Dilated(dilation=3), 3), "composed": Window(size=2) | SameSpeaker(SPEAKER) & Dilated(dilation=2),
}  # fmt: skip
each_pattern = pytest.mark.parametrize("name", PATTERNS)


def seen(mask, n, **sizes):
    """Visible keys of each query, as sets."""
    return [set(np.flatnonzero(row)) for row in mask.dense(n, n, **sizes)[0, 0].numpy()]


# All masks


@each_pattern
def test_masks_are_causal_as_declared_and_align_queries_to_the_last_keys(name):
    mask = PATTERNS[name]
    full = mask.dense(8, 8, batch=2, heads=3)
    assert mask.causal == (not full.triu(1).any()) or name in ("linked", "tree")
    assert torch.equal(mask.dense(3, 8, batch=2, heads=3), full[:, :, 5:])
    assert mask.edges(8, batch=2, heads=3) == full.sum()
    assert mask.per_head == (full[:, :1] != full).any().item()


@each_pattern
def test_reach_equals_the_gradient_receptive_field(name):
    """Hidden states depend on exactly the inputs within the two-layer receptive field."""
    mask = PATTERNS[name] | Seen(torch.eye(8, dtype=torch.bool)[None, None])
    config = ModelConfig(vocab_size=9, block_size=8, d_model=24, n_heads=3, n_layers=2, position="none", mask="none")
    model = Transformer(config).double()
    model.mask = mask
    changed = {}
    tokens = torch.randint(9, (2, 8), generator=torch.Generator().manual_seed(0))
    model.embedding.register_forward_hook(lambda module, args, out: changed.setdefault("x", out.requires_grad_()))
    out = model.hidden(tokens, mask=Mask())  # per batch
    direction = torch.randn(24, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    depends = torch.stack(
        [
            torch.autograd.grad((out[:, q] @ direction).sum(), changed["x"], retain_graph=True)[0].norm(dim=-1) > 0
            for q in range(8)
        ],
        1,
    )
    assert torch.equal(depends, mask.reach(8, 2, batch=2, heads=3))


def test_reach_grows_linearly_for_windows_and_exponentially_for_doubling_dilations():
    assert [Window(size=4).reach(32, layers)[0, -1].sum() for layers in (1, 2, 3)] == [4, 7, 10]
    doubling = [Dilated(dilation=2**i, size=2).dense(64, 64) for i in range(5)]
    assert [reachable(doubling[:layers])[0, -1].sum() for layers in range(1, 6)] == [2, 4, 8, 16, 32]
    same = [Dilated(dilation=2, size=2).dense(64, 64)] * 5
    assert reachable(same)[0, -1].sum() == 6, "with one dilation the receptive field grows linearly"


# Single patterns


def test_strided_mask_reaches_everything_in_two_hops_with_n_sqrt_n_pairs():
    assert Strided(stride=32).edges(1024) == 48_144
    local, column = Window(size=32).dense(1024, 1024), Dilated(dilation=32).dense(1024, 1024)
    assert torch.equal(reachable([local, column])[0], Causal().dense(1024, 1024)[0, 0])
    assert torch.equal(Strided(stride=32).dense(99, 99), local[..., :99, :99] | column[..., :99, :99])
    edges = [Strided(stride=int(n**0.5)).edges(n) for n in (256, 1024, 4096)]
    slopes = np.diff(np.log(edges)) / np.log(4)
    assert (abs(slopes - 1.5) < 0.04).all()


def test_position_based_patterns():
    assert seen(Dilated(dilation=3, size=2), 8)[7] == {7, 4} and seen(Dilated(dilation=3), 8)[7] == {7, 4, 1}
    assert seen(Periodic(period=4, lead=1), 10)[9] == {6, 2}, "keys one after earlier tokens of the same phase"
    assert seen(Band(size=2), 5)[2] == {1, 2, 3}
    assert seen(Global(tokens=1), 4) == [{0, 1, 2, 3}, {0}, {0}, {0}]
    assert seen(Longformer(size=2, tokens=1), 6)[4] == {0, 3, 4}
    assert seen(Longformer(size=2, tokens=1, causal=False), 6)[4] == {0, 3, 4, 5}


def test_random_mask_key_count_uniformity_and_seed():
    n, links = 512, 8
    table = Random(links=links).dense(n, n)[0, 0]
    rows = table.sum(1)[64:].float()
    assert abs(rows.mean() - links) < 0.5 and abs(rows.var() - links) < 2.5, "key counts are not binomial"
    where = (table[64:].float() @ torch.arange(n).float() / table[64:].sum(1).clamp(min=1) / torch.arange(64, n)).mean()
    assert abs(where - 0.5) < 0.03
    halves = table[:, ::2].sum() / table.sum()
    assert abs(halves - 0.5) < 0.05
    assert not torch.equal(table, Random(links=links, seed=1).dense(n, n)[0, 0])
    shared = (table & Random(links=links, seed=1).dense(n, n)[0, 0])[64:].sum(1).float().mean()
    assert shared < 1, "two seeds overlap more than chance"
    both_sides = Random(links=links, length=n).dense(n, n)[0, 0].sum(1).float()
    assert abs(both_sides.mean() - links) < 0.5


def test_input_dependent_patterns():
    assert seen(SameSpeaker(SPEAKER), 8)[6] == {2, 3, 4, 6}
    assert seen(Marked(SPEAKER == 1), 8)[5] == {2, 3, 4}
    assert seen(Linked(PARENT), 8) == [set(), {0}, {1}, {1}, {0}, {4}, {5}, {4}]
    assert seen(Tree(PARENT), 8) == [set(), {0}, {0, 1}, {0, 1}, {0}, {0, 4}, {0, 4, 5}, {0, 4}]
    assert Tree(PARENT).dense(8, 8, batch=2)[1].sum() == 28, "a chain sees all earlier positions"


@each_pattern
@pytest.mark.parametrize("size", [1, 3, 5])
def test_filled_masks_have_equal_row_sums_and_keep_pattern_keys(name, size):
    pattern = PATTERNS[name].dense(8, 8, batch=2, heads=3)
    for causal in (True, False):
        filled = Filled(PATTERNS[name], size, causal=causal).dense(8, 8, batch=2, heads=3)
        assert torch.equal(
            filled.sum(-1)[0, 0], (torch.arange(8) + 1).clamp(max=size) if causal else torch.full((8,), size)
        )
        assert (filled.sum(-1) == filled.sum(-1)[:1, :1]).all()
        own = (pattern.tril() if causal else pattern).sum(-1)
        kept = (filled & pattern).sum(-1)
        assert torch.equal(kept, own.clamp(max=size)), "a key of the pattern was displaced by a filler"
        assert not (causal and filled.triu(1).any())


def test_by_head_cycles_masks_over_heads():
    mask = ByHead(masks=["causal", {"kind": "window", "size": 2}])
    full = mask.dense(6, 6, heads=4)[0]
    for head, expected in enumerate([Causal(), Window(size=2)] * 2):
        assert torch.equal(full[head], expected.dense(6, 6)[0, 0])
    config = ModelConfig(
        vocab_size=9, block_size=8, mask={"kind": "by-head", "masks": ["causal", {"kind": "window", "size": 1}]}
    )
    model, tokens = Transformer(config).eval(), torch.arange(8)[None]
    plain = Transformer(config.model_copy(update={"mask": "causal"})).eval()
    assert not torch.allclose(model(tokens), plain(tokens))
    caches = model.caches(1)
    steps = torch.cat([model(tokens[:, i : i + 1], caches=caches) for i in range(8)], 1)
    torch.testing.assert_close(steps, model(tokens), atol=1e-5, rtol=1e-5)


# In a model


@pytest.mark.parametrize("choice", [{"kind": "window", "size": 3}, {"kind": "strided", "stride": 2}])
def test_batch_mask_equals_configured_mask(choice):
    sizes = {"vocab_size": 9, "block_size": 8, "position": "t5"}
    fixed = Transformer(ModelConfig(mask=choice, **sizes)).eval()
    open_, tokens = Transformer(ModelConfig(mask="causal", **sizes)).eval(), torch.randint(9, (2, 8))
    mask = Mask.build(choice)
    torch.testing.assert_close(open_(tokens, mask=mask), fixed(tokens))
    torch.testing.assert_close(open_(tokens, mask=Seen(mask.dense(8, 8))), fixed(tokens))
    real = torch.arange(8) < torch.tensor([[8], [5]])
    torch.testing.assert_close(open_(tokens, mask=mask, padding_mask=real), fixed(tokens, padding_mask=real))


def test_batch_masks_are_per_sequence():
    model = Transformer(ModelConfig(vocab_size=9, block_size=8)).eval()
    tokens = torch.randint(9, (2, 8), generator=torch.Generator().manual_seed(0))
    together = model(tokens, mask=SameSpeaker(SPEAKER))
    for i, j in itertools.product(range(2), repeat=2):
        alone = model(tokens[i : i + 1], mask=SameSpeaker(SPEAKER[j : j + 1]))
        assert torch.allclose(together[i], alone[0], atol=1e-6) == (i == j)
