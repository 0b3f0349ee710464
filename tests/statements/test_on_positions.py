"""Exact statements of the chapter (§1.3) and its notes about positions: verified, or corrected."""

import math

import pytest
import torch
from helpers import normal, small_config

from lab.measure.attention import attention_maps
from lab.models import Transformer
from lab.models.masks import Mask
from lab.models.positions import T5, alibi_slopes, sinusoids


def model(**fields):
    return Transformer(small_config(**{"position": "none"} | fields)).double().requires_grad_(False)


def parameters(module):
    return sum(p.numel() for p in module.parameters())


# No position encoding


def test_unmasked_attention_is_permutation_equivariant():
    """position-permutation-invariant. "The Transformer itself is permutation invariant: shuffling
    the input leaves the output unchanged." (chapter §1.3, summary)
    False: without a mask it is permutation equivariant; with a causal mask not even that.
    position-logits-content-only. "Attention weights depend only on products between vectors and not
    on where the tokens stand." (chapter §1.3.1)
    """
    tokens, order = torch.arange(12)[None], torch.arange(12).flip(0)
    free, causal = model(mask="none"), model()
    for maps, shuffled in zip(*(attention_maps(free, t) for t in (tokens, tokens[:, order])), strict=True):
        torch.testing.assert_close(shuffled, maps[..., order, :][..., order])
    torch.testing.assert_close(free(tokens[:, order]), free(tokens)[:, order])
    assert (free(tokens[:, order]) - free(tokens)).abs().max() > 0.1
    assert (causal(tokens[:, order]) - causal(tokens)[:, order]).abs().max() > 0.1


def test_causal_mask_distinguishes_word_orders():
    """position-cat-mat. "Without position information self-attention cannot tell 'The cat sat on
    the mat' from 'The mat sat on the cat'." (chapter §1.3.1)
    True without a mask. With a causal mask each token sees a different set of words.
    """
    words = ["the", "cat", "sat", "on", "mat"]
    first, second = (
        torch.tensor([[words.index(word) for word in sentence.split()]])
        for sentence in ("the cat sat on the mat", "the mat sat on the cat")
    )
    swap = [0, 5, 2, 3, 4, 1]
    free, causal = model(mask="none"), model()
    torch.testing.assert_close(free(first)[:, swap], free(second))
    assert (causal(first)[:, swap] - causal(second)).abs().max() > 0.1


# Sinusoids


def test_sinusoidal_index_counts_pairs():
    """Note 1 and the chapter: i is the i-th component of the code, given at 2i and 2i + 1 (细节讨论3; §1.3.2).
    False: i indexes pairs; as a component index it would exceed the width.
    """
    codes = sinusoids(torch.arange(20, dtype=torch.float64), 8)
    for i in range(4):  # d_model / 2 pairs, each on the unit circle
        sine, cosine = codes[:, 2 * i], codes[:, 2 * i + 1]
        torch.testing.assert_close(torch.hypot(sine, cosine), torch.ones(20).double())
    assert 2 * 7 + 1 >= codes.shape[1]


def test_sinusoids_beyond_training_leave_the_trained_range():
    """The chapter: sinusoidal codes extrapolate; they handle lengths never seen in training (§1.3.2).
    False: they can be computed there, but many components leave their training range.
    """
    codes = sinusoids(torch.arange(2048, dtype=torch.float64), 64)
    assert codes.isfinite().all()

    def unseen(trained):
        """Fraction of components that leave their training range within 4 times the training length."""
        low, high = codes[:trained].amin(0), codes[:trained].amax(0)
        beyond = codes[trained : 4 * trained]
        return ((beyond < low - 1e-3) | (beyond > high + 1e-3)).any(0).double().mean().item()

    assert unseen(64) == pytest.approx(0.7, abs=0.05) and 0.4 < unseen(512) < 0.5


# Learned and relative positions


def test_learned_positions_cost_one_row_per_position():
    """position-learned-params. "A learned table costs max_position x d_model parameters." (chapter
    §1.3.3)
    """
    more = parameters(model(position="learned")) - parameters(model())
    assert more == model().config.block_size * model().config.d_model


def t5():
    return T5(small_config(n_heads=8).layer(0)).requires_grad_(False)


def test_t5_bias_is_bucketed_and_per_head():
    """position-relative-bias-form. "T5-style bias adds B_ij = b_(i-j) to scaled logits, so the bias
    depends on the offset only." (chapter §1.3.4)
    position-relative-bias-params. "The relative bias needs only 2*max_relative_position - 1
    parameters." (chapter §1.3.4) False: T5 has 32 buckets per head.
    """
    bias = t5().bias(2001, 2001)
    assert torch.equal(bias[:, 1:, 1:], bias[:, :-1, :-1])
    assert parameters(t5()) == 32 * 8 != 2 * 128 - 1
    by_distance = bias[:, -1].flip(-1)
    same_as_farthest = (by_distance == by_distance[:, -1:]).all(0)
    assert same_as_farthest.nonzero()[0] == 113, "the last bucket must begin at distance 113"
    assert not torch.equal(by_distance[:, 3], by_distance[:, 4])


def test_t5_does_not_scale_scores():
    """The chapter: T5 adds its bias to scores divided by √d_k (§1.3.4). False: T5 does not scale scores."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.t5.modeling_t5 import T5Attention

    torch.manual_seed(0)
    sizes = {"d_model": 32, "num_heads": 2, "d_kv": 16, "dropout_rate": 0.0}
    layer = T5Attention(transformers.T5Config(**sizes), has_relative_attention_bias=True).eval()
    x = normal(1, 6, 32).float()
    q, k, v = (part(x).unflatten(-1, (2, 16)).transpose(1, 2) for part in (layer.q, layer.k, layer.v))

    def attend(scale):
        scores = q @ k.transpose(-2, -1) * scale + layer.compute_bias(6, 6)
        return layer.o((torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(2))

    torch.testing.assert_close(layer(x)[0], attend(1.0), rtol=1e-4, atol=1e-4)
    assert (attend(1.0) - attend(1 / 4)).abs().max() > 1e-2


def test_symmetric_bias_loses_direction():
    """position-relative-bias-symmetry. "That b_k = b_(-k) can be enforced is an advantage: nothing
    is lost by it." (chapter §1.3.4)
    False: reversing the input then only reverses the outputs. Under a causal mask b_-k is unused.
    """
    tokens = torch.randint(13, (4, 12), generator=torch.Generator().manual_seed(0))

    def direction_effect(position):  # whether the model distinguishes a sequence from its reverse
        free = model(mask="none", position=position)
        return (free(tokens.flip(1)) - free(tokens).flip(1)).abs().max().item()

    assert direction_effect("alibi") < 1e-10 and direction_effect("t5") > 1e-3

    def attend(bias):
        scores = normal(9, 9) + bias[distance + 8]
        return torch.softmax(scores.masked_fill(distance < 0, -math.inf), -1)

    distance = torch.arange(9)[:, None] - torch.arange(9)
    free = normal(17, seed=1)
    assert torch.equal(attend(free), attend(torch.cat([normal(8, seed=2), free[8:]])))


# Rotary


def test_rotary_score_needs_conjugate_and_real_part():
    """position-rope-formula. "With f_q(x,m) = x e^(im theta) and f_k(x,n) = x e^(in theta), the
    product f_q^T f_k equals x_m^T x_n e^(i(m-n) theta)." (chapter §1.3.5)
    False: this product depends on m + n; with the conjugate it depends on m - n.
    """
    q, k = torch.view_as_complex(normal(2, 16, 2))
    theta = 10000.0 ** (-torch.arange(16, dtype=torch.float64) / 16)

    def rotated(x, position):
        return x * torch.exp(1j * position * theta)

    def with_conjugate(m, n):
        return (rotated(q, m) * rotated(k, n).conj()).sum()

    def printed(m, n):
        return (rotated(q, m) * rotated(k, n)).sum()

    torch.testing.assert_close(with_conjugate(3, 1), with_conjugate(12, 10))
    torch.testing.assert_close(printed(3, 1), printed(1, 3))
    assert (printed(3, 1) - printed(12, 10)).abs() > 0.1
    assert with_conjugate(3, 1).imag.abs() > 0.1, "the score must be the real part"


def test_half_of_the_rotary_pairs_never_complete_a_rotation_in_training():
    """The chapter: RoPE unites the generalisation of relative codes with the extrapolation of sinusoids (§1.3.5).
    False: at larger distances low-frequency pairs reach angles not seen in training.
    """
    wavelength = 2 * math.pi * 10000.0 ** (torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    assert (wavelength > 512).sum() == 16 and wavelength.max() > 47_000


# ALiBi


def test_alibi_bias_follows_from_one_slope_per_head():
    """The chapter: ALiBi adds -|i-j| times a slope and has to store a bias of the size of the scores (§1.3.6,
    exercise 1.8).
    False: head i has slope 2^(-8i/h), and the h slopes determine the whole bias.
    """
    slopes = alibi_slopes(8)
    assert slopes.tolist() == [2.0**-i for i in range(1, 9)]
    distance = (torch.arange(24)[:, None] - torch.arange(24)).double()
    bias = model(position="alibi", n_heads=8).position.bias(24, 24)
    visible = Mask.build("causal").dense(24, 24)[0, 0]
    expected = -(slopes[:, None, None] * distance)
    torch.testing.assert_close(bias[:, visible], expected[:, visible], check_dtype=False)
