"""Linear, windowed, hashed and low-rank attention match their definitions.

Tests `lab.models.sparse_scores`.
"""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from helpers import close, randn

from lab.models import ModelConfig, Transformer
from lab.models.gpt import Mixer, Position
from lab.models.kernels import bigbird_blocks, block_sparse, hashes, sorted_lsh, windowed
from lab.models.linear import (  # fmt: skip
    bidirectional,
    chunked,
    log_positive_features,
    orthogonal_rows,
    parallel,
)
from lab.models.masks import Window


def score(choice, d_head=8, **fields):
    config = ModelConfig(vocab_size=9, block_size=64, d_model=4 * d_head, score=choice, position="none", **fields)
    return Transformer(config).blocks[0].mixer.score


def mixer(choice, d_head=8, **fields):
    config = ModelConfig(
        vocab_size=9, block_size=64, d_model=4 * d_head, mixer=choice, position="none", **fields
    ).layer(0)
    torch.manual_seed(0)
    return Mixer.build(choice, config, Position.build("none", config))


def features(n=50, d=8):
    return F.elu(randn(2, 3, n, d)) + 1, F.elu(randn(2, 3, n, d, seed=1)) + 1, randn(2, 3, n, d, seed=2)


# Linear attention and random features


@pytest.mark.parametrize("n", [1, 16, 50, 64])
@pytest.mark.parametrize("chunk", [1, 16, 64])
def test_chunked_parallel_and_bidirectional_linear_attention_agree(n, chunk):
    fq, fk, v = features(n)
    close(chunked(fq, fk, v, chunk), parallel(fq, fk, v, causal=True))
    close(bidirectional(fq, fk, v), parallel(fq, fk, v))


@torch.no_grad()
def test_linear_attention_equals_its_definition():
    part, x = mixer("linear", 4), randn(1, 5, 16)
    q, k, v = part.heads.split(x)  # (1, 4, 5, 4)
    fq, fk, mixed = F.elu(q) + 1, F.elu(k) + 1, torch.zeros(1, 4, 5, 4)
    for i in range(5):
        weights = [(fq[:, :, i] * fk[:, :, j]).sum(-1, keepdim=True) for j in range(i + 1)]
        mixed[:, :, i] = sum(w * v[:, :, j] for j, w in enumerate(weights)) / sum(weights)
    close(part(x), part.heads.join(mixed))


@pytest.mark.parametrize(
    "kind, mask",
    [*itertools.product(["linear", "performer"], ["causal", "none"]), ("delta", "causal"), ("gated-delta", "causal")],
)
def test_linear_mixers_never_materialize_an_n_by_n_matrix(kind, mask):
    n, largest = 50, 0
    part, quadratic = mixer({"kind": kind, "chunk": 16}, mask=mask), mixer("attention", score="additive", mask=mask)

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.shape[-2:] == (n, n):
                largest += 1
            return out

    with Sizes():
        part(randn(1, n, 32)).sum().backward()
        assert largest == 0
        quadratic(randn(1, n, 32))
        assert largest > 0, "the mode does not detect score matrices"


@torch.no_grad()
def test_performer_error_falls_with_the_number_of_features():
    q, k, v = (randn(1, 4, 40, 16, seed=i) / 2 for i in range(3))
    exact = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    errors = []
    for count in (16, 256, 4096):
        part = mixer({"kind": "performer", "features": count}, 16)
        errors.append((part.mix(q, k, v) - exact).square().mean().sqrt().item())
    slope = math.log(errors[2] / errors[0]) / math.log(256)
    assert -0.65 < slope < -0.3 and errors[2] < 0.1, errors


@torch.no_grad()
def test_performer_stabilizer_ignores_later_keys():
    """Keys with a large norm have tiny features, which would underflow if a later, small key set the maximum."""
    part = mixer({"kind": "performer", "chunk": 8})
    q, v = randn(1, 4, 20, 8) / 10, randn(1, 4, 20, 8, seed=1)
    k = 40 * F.normalize(1 + randn(1, 4, 20, 8, seed=2) / 100, dim=-1)
    with_short_key = k.clone()
    with_short_key[:, :, 13] /= 1000
    expected, got = (part.mix(q, each, v)[:, :, :13] for each in (k, with_short_key))
    assert expected.abs().amax(-1).min() > 0.1
    close(got, expected)


@torch.no_grad()
def test_performer_result_is_independent_of_chunk_size():
    part = mixer({"kind": "performer", "chunk": 8})
    q, k, v = (randn(2, 4, 30, 8, seed=i).double() for i in range(3))
    part.double()
    fq, fk = (log_positive_features(x, part.projection).exp() for x in (q, k))
    for chunk in (1, 8, 64):
        part.chunk = chunk
        close(part.mix(q, k, v), parallel(fq, fk, v, causal=True), 1e-9)


def test_orthogonal_rows_are_orthogonal_per_group_with_gaussian_norms():
    rows = orthogonal_rows(40, 16, torch.Generator().manual_seed(0))
    for group in (rows[:16], rows[16:32], rows[32:]):
        products = group @ group.T
        close(products, products.diag().diag(), 1e-4)
    long = orthogonal_rows(4000, 16, torch.Generator().manual_seed(0)).square().sum(1)
    assert abs(long.mean() - 16) < 0.5 and abs(long.var() - 32) < 3, (
        "squared row norms do not follow the chi-square distribution"
    )


# Windows, blocks, LSH and Linformer


@pytest.mark.parametrize("n, size", [(1, 4), (7, 4), (8, 4), (50, 8), (5, 64)])
def test_windowed_attention_equals_masked_attention(n, size):
    inputs = [randn(2, 3, n, 8, seed=i, dtype=torch.double).requires_grad_() for i in range(3)]
    exact = F.scaled_dot_product_attention(*inputs, Window(size=size).dense(n, n))
    close(windowed(*inputs, size), exact, 1e-12)
    weight = randn(2, 3, n, 8, seed=4, dtype=torch.double)
    got, expected = (torch.autograd.grad((x * weight).sum(), inputs) for x in (windowed(*inputs, size), exact))
    for a, b in zip(got, expected, strict=True):
        close(a, b, 1e-12)


def test_windowed_attention_does_not_allocate_all_scores():
    q = randn(1, 1, 4096, 4)
    with torch.profiler.profile(profile_memory=True) as profile:
        windowed(q, q, q, 16)
    allocated = sum(max(0, event.self_cpu_memory_usage) for event in profile.events())
    assert allocated < 4096 * 4096, "bytes; a float32 score matrix takes four times as many"


def test_block_sparse_attention_equals_masked_attention():
    blocks, size = bigbird_blocks(12, links=2, seed=1), 4
    q, k, v = (randn(2, 3, 48, 8, seed=i) for i in range(3))
    visible_blocks = torch.zeros(12, 12, dtype=torch.bool)
    for i, row in enumerate(blocks.tolist()):
        linked = [j for j in row if j >= 0]
        assert (
            len(set(linked)) == len(linked) == min(i + 1, 5)
            and {0, max(i - 1, 0), i} <= set(linked)
            and max(linked) == i
        )
        visible_blocks[i, linked] = True
    pairs = visible_blocks.repeat_interleave(size, 0).repeat_interleave(size, 1).tril()
    close(block_sparse(q, k, v, blocks, size), F.scaled_dot_product_attention(q, k, v, pairs))


def test_local_score_equals_softmax_with_window_mask():
    for extra in ({"causal": True}, {"mask": torch.ones(20, 20, dtype=torch.bool).tril()}):
        q, k, v = (randn(2, h, 20, 8, seed=i) for i, h in enumerate((4, 2, 2)))
        local = score({"kind": "local", "size": 3}, kv_heads=2)(q, k, v, **extra)
        close(local, score("softmax", kv_heads=2)(q, k, v, mask=Window(size=3).dense(20, 20)))


def test_lsh_collisions_fall_with_distance():
    x, rotations = F.normalize(randn(1, 1, 2000, 16), dim=-1), randn(1, 16, 4, seed=1)
    noise = F.normalize(randn(1, 1, 2000, 16, seed=2), dim=-1)
    collision_rates = [
        (hashes(x, rotations) == hashes(F.normalize(x + t * noise, dim=-1), rotations)).float().mean().item()
        for t in (0.0, 0.3, 1.0, 3.0)
    ]
    assert (
        collision_rates[0] == 1
        and sorted(collision_rates, reverse=True) == collision_rates
        and collision_rates[3] < 0.5
    )
    assert not (hashes(x, rotations) == hashes(-x, rotations)).any()
    share = torch.bincount(hashes(x, rotations).flatten(), minlength=8) / 2000
    assert share.min() > 0.05, "a bucket is nearly empty"


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 8])
def test_sorted_lsh_equals_masked_lsh_for_equal_q_and_k_if_every_bucket_fits_in_a_chunk(rounds):
    q, k, v = (randn(2, 4, 64, 8, seed=i) for i in range(3))
    part = score({"kind": "lsh", "buckets": 8, "rounds": rounds})
    sizes = [torch.bincount(h, minlength=8).max() for h in hashes(k, part.rotations).flatten(0, 2)]
    assert max(sizes) <= 32
    q = k + 0  # equal queries and keys get the same sort order
    close(sorted_lsh(q, k, v, part.rotations, 32), part(q, k, v, causal=True))


def test_sorted_lsh_counts_repeated_pairs_once():
    """Identical rounds equal one round, even where a chunk border splits a bucket."""
    q, k, v = (randn(2, 4, 64, 8, seed=i) for i in range(3))
    rotations = score({"kind": "lsh", "buckets": 4, "rounds": 1}).rotations
    for chunk in (8, 16, 32, 64):
        close(sorted_lsh(q, k, v, rotations.repeat(3, 1, 1), chunk), sorted_lsh(q, k, v, rotations, chunk))


def test_linformer_equals_its_formula_and_rejects_causal_use():
    part, (q, k, v) = (
        score({"kind": "linformer", "rank": 5}, mask="none"),
        (randn(2, 4, 64, 8, seed=i) for i in range(3)),
    )
    keys, values = (torch.einsum("rn,bhnd->bhrd", p.weight, x) for p, x in ((part.keys, k), (part.values, v)))
    close(part(q, k, v), (q @ keys.transpose(-2, -1) / math.sqrt(8)).softmax(-1) @ values)
    for wrong in ({"causal": True}, {"mask": torch.ones(64, 64, dtype=torch.bool)}, {"bias": torch.zeros(4, 64, 64)}):
        with pytest.raises(ValueError, match="no causal form"):
            part(q, k, v, **wrong)
    with pytest.raises(ValueError, match="supports up to 64 positions, got 65"):
        part(*(randn(1, 4, 65, 8),) * 3)
