"""Transformer-XL: segment-level recurrence."""

import pytest
import torch
from helpers import close, small_model, tokens

from lab.models.gpt import QKVProjection

VOCABULARY = 13


def build(**fields):
    return small_model(**({"position": "none"} | fields))


def segments(model, x, size):
    caches = model.caches(len(x))
    return [model(segment, caches=caches) for segment in x.split(size, 1)]


@pytest.mark.parametrize("position", ["rotary", "alibi", "t5", "none"])
@torch.no_grad()
def test_memory_extends_the_context_by_one_segment_per_layer(position):
    model, x = build(mixer={"kind": "transformer-xl", "memory": 24}, position=position), tokens(24)
    close(torch.cat(segments(model, x, 8), 1), model(x))
    close(model(x), build(mixer="attention", position=position)(x))
    short, perturbed = build(mixer={"kind": "transformer-xl", "memory": 4}, position=position), x.clone()
    perturbed[:, 4:8] = (
        perturbed[:, 4:8] + 1
    ) % VOCABULARY  # segment 1; with two layers it reaches two segments further
    changed = [
        (a - b).abs().max() > 1e-6 for a, b in zip(segments(short, x, 4), segments(short, perturbed, 4), strict=True)
    ]
    assert changed == [False, True, True, True, False, False]


def test_no_gradient_crosses_segments_but_memory_adds_to_the_gradient_of_w_k_and_w_v():
    model = build(mixer="transformer-xl")
    x = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7]])
    first, second = segments(model, x, 4)
    second.square().sum().backward()
    has_gradient = model.embedding.weight.grad.abs().sum(1) > 0
    assert has_gradient.nonzero().flatten().tolist() == [4, 5, 6, 7]
    with_memory = model.blocks[0].mixer.heads.qkv.weight.grad.clone()
    model.zero_grad()
    model(x[:, 4:]).square().sum().backward()
    assert (with_memory - model.blocks[0].mixer.heads.qkv.weight.grad)[32:].abs().max() > 1e-3
    first.square().sum().backward()  # the graph of the first segment is intact


@pytest.mark.parametrize("memory", [1, 3, 5])
@pytest.mark.parametrize("heads", [*sorted(QKVProjection.kinds), {"kind": "primer", "width": 5}], ids=str)
@torch.no_grad()
def test_single_token_segments_equal_window_attention(heads, memory):
    x, fields = tokens(20), {"projection": heads, "position": "rotary"}
    short = build(mixer={"kind": "transformer-xl", "memory": memory}, **fields)
    window = build(mask={"kind": "window", "size": memory + 1}, **fields)
    close(torch.cat(segments(short, x, 1), 1), window(x))
