"""Errata of the chapter, §1.3: the statement fails, what experiments/errata.yaml puts in its place holds."""

import math

import pytest
import torch
from helpers import normal
from torch.utils._python_dispatch import TorchDispatchMode

from lab.measure.cost import block_macs
from lab.models import ModelConfig, Transformer
from lab.models.masks import Mask
from lab.models.positions import T5, alibi_slopes, sinusoids


def config(**fields):
    return ModelConfig(**({"vocab_size": 16, "block_size": 32, "d_model": 32, "n_layers": 2, "n_heads": 4} | fields))


def model(**fields):
    return Transformer(config(**fields)).double().requires_grad_(False)


def parameters(module):
    return sum(p.numel() for p in module.parameters())


def test_attention_is_equivariant_and_with_a_causal_mask_not_even_that():
    tokens = torch.randperm(16, generator=torch.Generator().manual_seed(0))[None]
    order = torch.arange(16).flip(0)
    free, causal = model(position="none", mask="none"), model(position="none")
    torch.testing.assert_close(free(tokens[:, order]), free(tokens)[:, order])
    assert (free(tokens[:, order]) - free(tokens)).abs().max() > 0.1, "shuffled, not unchanged"
    assert (causal(tokens[:, order]) - causal(tokens)[:, order]).abs().max() > 0.1


def test_a_causal_mask_tells_the_cat_from_the_mat():
    words = ["the", "cat", "sat", "on", "mat"]
    first, second = (
        torch.tensor([[words.index(word) for word in sentence.split()]])
        for sentence in ("the cat sat on the mat", "the mat sat on the cat")
    )
    swap = [0, 5, 2, 3, 4, 1]
    free, causal = model(position="none", mask="none"), model(position="none")
    torch.testing.assert_close(free(first)[:, swap], free(second))
    assert (causal(first)[:, -1] - causal(second)[:, -1]).abs().max() > 0.1
    assert (causal(first)[:, swap] - causal(second)).abs().max() > 0.1


def test_sinusoids_beyond_training_take_values_never_seen():
    codes = sinusoids(torch.arange(2048, dtype=torch.float64), 64)
    assert codes.isfinite().all(), "computable at any length"

    def unseen(trained):
        """Share of the components that leave the range of training within four times its length."""
        low, high = codes[:trained].amin(0), codes[:trained].amax(0)
        beyond = codes[trained : 4 * trained]
        return ((beyond < low - 1e-3) | (beyond > high + 1e-3)).any(0).double().mean().item()

    assert unseen(64) == pytest.approx(0.7, abs=0.05) and 0.4 < unseen(512) < 0.5


def test_t5_shares_buckets_and_has_a_table_for_every_head():
    torch.manual_seed(0)
    position = T5(config(n_heads=8).layer(0))
    assert parameters(position) == 32 * 8 != 2 * 128 - 1
    bias = position.bias(2001, 2001)[:, -1].flip(-1)  # by distance
    assert torch.equal(bias[:, 128], bias[:, 2000]) and not torch.equal(bias[:, 3], bias[:, 4])


def test_t5_does_not_scale():
    transformers = pytest.importorskip("transformers")
    from transformers.models.t5.modeling_t5 import T5Attention

    torch.manual_seed(0)
    sizes = {"d_model": 32, "num_heads": 2, "d_kv": 16, "dropout_rate": 0.0}
    layer = T5Attention(transformers.T5Config(**sizes), has_relative_attention_bias=True).eval()
    assert layer.relative_attention_bias.weight.numel() == 32 * 2
    x = normal(1, 6, 32).float()
    q, k, v = (part(x).unflatten(-1, (2, 16)).transpose(1, 2) for part in (layer.q, layer.k, layer.v))
    bias = layer.compute_bias(6, 6)

    def attend(scale):
        return layer.o((torch.softmax(q @ k.transpose(-2, -1) * scale + bias, -1) @ v).transpose(1, 2).flatten(2))

    torch.testing.assert_close(layer(x)[0], attend(1.0), rtol=1e-4, atol=1e-4)
    assert (attend(1.0) - attend(1 / 4)).abs().max() > 1e-2


def test_a_symmetric_bias_loses_direction():
    x, distance = normal(1, 2, 9, 8), torch.arange(9)[:, None] - torch.arange(9)

    def attend(x, by_distance, causal=False):
        scores = x @ x.mT + by_distance[distance + 8]
        scores = scores.masked_fill(distance < 0, -math.inf) if causal else scores
        return torch.softmax(scores, -1) @ x

    free = normal(17, seed=1)
    symmetric = (free + free.flip(0)) / 2
    torch.testing.assert_close(attend(x.flip(-2), symmetric), attend(x, symmetric).flip(-2))
    assert (attend(x.flip(-2), free) - attend(x, free).flip(-2)).abs().max() > 0.1
    free_of_past = torch.cat([normal(8, seed=2), free[8:]])  # other biases for keys to come
    assert torch.equal(attend(x, free, causal=True), attend(x, free_of_past, causal=True))


def test_rotary_needs_the_conjugate_and_the_real_part():
    q, k = torch.view_as_complex(normal(2, 16, 2))
    theta = 10000.0 ** (-torch.arange(16, dtype=torch.float64) / 16)

    def turned(x, position):
        return x * torch.exp(1j * position * theta)

    def right(m, n):
        return (turned(q, m) * turned(k, n).conj()).sum()

    def printed(m, n):
        return (turned(q, m) * turned(k, n)).sum()

    torch.testing.assert_close(right(3, 1), right(12, 10))
    assert (printed(3, 1) - printed(12, 10)).abs() > 0.1
    torch.testing.assert_close(printed(3, 1), printed(1, 3))  # the sum of the positions counts
    assert right(3, 1).imag.abs() > 0.1, "a score is the real part"


def test_half_of_the_rotary_pairs_never_complete_a_turn_in_training():
    wavelength = 2 * math.pi * 10000.0 ** (torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    assert (wavelength > 512).sum() == 16 and wavelength.max() > 47_000


def test_alibi_has_a_slope_for_each_head_and_no_matrix_to_keep():
    slopes = alibi_slopes(8)
    assert slopes.tolist() == [2.0**-i for i in range(1, 9)]
    distance = (torch.arange(64)[:, None] - torch.arange(64)).double()
    bias = model(position="alibi", n_heads=8).position.bias(64, 64)
    visible = Mask.build("causal").dense(64, 64)[0, 0]
    torch.testing.assert_close(bias[:, visible], -(slopes[:, None, None] * distance)[:, visible], check_dtype=False)


class Arithmetic(TorchDispatchMode):
    """Sums and products of elements made inside."""

    operations = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.overloadpacket in (torch.ops.aten.mul, torch.ops.aten.add):
            self.operations += result.numel()
        return result


def test_rotary_costs_less_arithmetic_than_alibi_on_long_sequences():
    h, width = 4, 8

    def rotary(n):
        position, q = model(position="rotary", block_size=n).position, normal(1, h, n, width)
        with Arithmetic() as done:
            position.at_query_key(q, q)
        return done.operations

    def alibi(n):
        bias, scores = model(position="alibi", block_size=n).position.bias(n, n), normal(1, h, n, n)
        with Arithmetic() as done:
            scores + bias
        return done.operations

    assert (rotary(512), alibi(512)) == (2 * 3 * h * 512 * width, h * 512**2)
    assert rotary(16) > alibi(16) and rotary(512) < alibi(512) / 10
    assert rotary(512) < sum(block_macs(512, 32, h, h, width, 128).values()) / 100, "and both are small in the block"
    assert alibi(512) < sum(block_macs(512, 32, h, h, width, 128).values()) / 10
