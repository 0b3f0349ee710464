"""Exact statements of the chapter (§1.1) and its notes about attention: verified, or corrected by a counterexample."""

import math

import pytest
import sympy
import torch
import torch.nn.functional as F
from helpers import config, heads, normal, small_config
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lab.measure.cost import attention_macs, block_macs
from lab.models import Transformer
from lab.models.encoder_decoder import EncoderDecoder
from lab.models.gpt import AttentionFn, attend
from lab.models.kernels import naive_attention, tiled_attention

# Weights


def weights_of(q, k):
    """Attention weights, read off by using unit vectors as values."""
    return attend(q, k, torch.eye(k.shape[-2], dtype=q.dtype).expand(*k.shape[:-1], -1))


def test_output_lies_in_the_convex_hull_of_the_values():
    """attention-convex-average. "For one query, softmax attention returns a mixture of the value
    vectors whose weights add up to one, so the result stays inside the convex hull of the values."
    (chapter §1.1.1; note 3, 核心理想, softmax)
    """
    q, k, v = normal(3, 1, 2, 32, 16)
    torch.testing.assert_close(weights_of(q, k).sum(-1), torch.ones(1, 2, 32).double())
    directions = normal(16, 500, seed=1)
    outputs, values = attend(q, k, v) @ directions, v @ directions
    assert (outputs <= values.amax(-2, keepdim=True)).all()
    assert (outputs >= values.amin(-2, keepdim=True)).all()


def test_attention_weights_increase_with_similarity():
    """attention-similarity-lookup. "Attention is a soft dictionary lookup: weights exp(q.k_i)/sum
    exp(q.k_i) increase with similarity and concentrate on the best matching key." (note 1, 注意力机制)
    The printed weights lack 1/√d_k; without it they are nearly one-hot.
    """
    q, k, v = normal(3, 1, 1, 32, 16)
    by_score = (q @ k.mT).argsort(-1)
    assert (weights_of(q, k).gather(-1, by_score).diff(dim=-1) > 0).all()
    keys = torch.zeros(1, 1, 32, 1).double()
    keys[0, 0, 0] = 40  # one matching key among 32
    output = attend(torch.ones(1, 1, 1, 1).double(), keys, v, scale=1.0)
    torch.testing.assert_close(output, v[:, :, :1], rtol=0, atol=1e-12)
    q, k = normal(2, 128, 64)
    unscaled = torch.softmax(q @ k.T, -1)
    assert unscaled.amax(-1).mean() > 5 * weights_of(q[None, None], k[None, None]).amax(-1).mean()


def test_dot_product_differs_from_cosine():
    """attention-dot-is-cosine. "The dot product of a query and a key is the same thing as their
    cosine similarity (the angle decides)." (note 1, 注意力机制, 细节讨论2)
    False: scaling up a key with a positive score makes it win, and the score is not symmetric.
    """
    q, k = normal(200, 64), normal(128, 64, seed=1)
    best = (q @ k.T).argmax(-1)
    assert (best == (q @ F.normalize(k, dim=-1).T).argmax(-1)).double().mean() < 0.9
    longer = k.clone()
    longer[0] *= 10
    moved = ((q @ longer.T).argmax(-1) != best) & (best != 0)
    assert moved.any() and (q @ k[0])[moved].gt(0).all()
    left, right = normal(2, 64, 16, seed=2)
    scores = (k @ left) @ (k @ right).T
    assert (scores - scores.T).abs().max() > 1, "scores must not be symmetric"


def test_softmax_depends_on_score_differences_only():
    """attention-negative-dot-unrelated. "A dot product can be any real number; a large one means
    relevance, a small positive or negative one means the words are unrelated." (note 3, dot
    production)
    False: softmax depends only on differences between scores.
    """
    scores = torch.tensor([-3.0, -2.0, -9.0])
    torch.testing.assert_close(torch.softmax(scores, 0), torch.softmax(scores + 100, 0))
    assert torch.softmax(scores, 0)[1] > 0.7


def test_weights_do_not_depend_on_values():
    """attention-v-in-weights. "Attention weights come from dot products between queries, keys and
    values." (note 4, §3.1)
    False: the output is linear in the values, so the weights cannot depend on them.
    """
    q, k, v, other = normal(4, 1, 1, 6, 8)

    def nonlinearity(attention):
        return (attention(v + other) - attention(v) - attention(other)).abs().max()

    assert nonlinearity(lambda v: attend(q, k, v)) < 1e-12
    assert nonlinearity(lambda v: torch.softmax(q @ (k * v).mT, -1) @ v) > 0.1, (
        "the check must detect weights that depend on values"
    )


def test_output_depends_on_values_given_the_weights():
    """attention-conditional-independence. "Given the attention weights, the output is conditionally
    independent of the original input." (chapter §1.1.5)
    False: the output depends on the values too. Nor are n vectors compressed into one: n queries give n outputs.
    """
    weights, values = torch.softmax(normal(24, 24), -1), normal(24, 24, seed=1)
    assert torch.linalg.matrix_rank(weights @ values) == 24
    other = values.clone()
    other[3] += 1
    assert ((weights @ other - weights @ values).abs() > 1e-6).all()


def test_value_width_can_differ_from_key_width():
    """attention-equal-qkv-dims. "Queries, keys and values must all share one embedding width; the
    number of queries may differ but keys and values must be equal in number." (note 1, 注意力机制;
    note 3, Value matrix)
    The first half is false: only queries and keys need equal widths.
    """
    q, k, v = normal(1, 1, 3, 8), normal(1, 1, 7, 8), normal(1, 1, 7, 5)
    assert naive_attention(q, k, v).shape == (1, 1, 3, 5)
    for keys, values in ((k[..., :5], v), (k, v[..., :6, :])):
        with pytest.raises(RuntimeError):
            naive_attention(q, keys, values)


def test_weights_are_normalized_per_query():
    """Note 3: where the product of key and query is large, the key attends to the query (dot production).
    False: weights sum to 1 per query, and a larger score changes the output of the query.
    """
    scores, v = normal(5, 5), normal(5, 8, seed=1)  # (query, key)
    weights = torch.softmax(scores, -1)
    torch.testing.assert_close(weights.sum(-1), torch.ones(5).double())
    assert (weights.sum(0) - 1).abs().max() > 0.1, "weights per key need not sum to 1"
    scores[4, 2] += 1
    change = (torch.softmax(scores, -1) @ v - weights @ v).abs().amax(-1)
    assert change[4] > 0.01 and change[:4].max() == 0


# Scores and their scale


def test_softmax_goes_from_uniform_to_argmax_with_score_variance():
    """attention-temperature-limits. "Very large logit variance turns softmax into argmax; very
    small variance turns it into a uniform distribution without discrimination." (note 1, 细节讨论2)
    """
    scores = normal(50, 128)

    def entropy(spread):
        return torch.special.entr(torch.softmax(spread * scores, -1)).sum(-1).mean() / math.log(128)

    assert entropy(1000) < 0.01 and entropy(0.001) > 0.99 and 0.5 < entropy(1) < 0.99


def test_d_k_is_the_head_width():
    """attention-dk-typical-512. "In practice the d_k inside the root is very large, typically 512
    and that still counts as small." (note 1, 细节讨论2)
    False: heads are 64 to 128 wide.
    """
    transformers = pytest.importorskip("transformers")
    configs = (transformers.BertConfig(), transformers.GPT2Config(), transformers.LlamaConfig())
    assert [each.hidden_size // each.num_attention_heads for each in configs] == [64, 64, 128]


def test_scale_can_be_absorbed_by_w_q():
    """Note 1: a smaller factor makes the softmax too soft; √d_k is optimal (细节讨论2).
    False: half the scale with twice W_Q is the same function, though with other training dynamics.
    """
    x = normal(1, 6, 128)
    q, k, v = heads().split(x)
    by_root, by_half = (AttentionFn.build({"kind": "softmax", "scale": scale}, config()) for scale in ("rsqrt", "half"))
    sharper = heads()
    sharper.qkv.weight[:128] *= 2  # W_Q
    torch.testing.assert_close(by_half(*sharper.split(x)), by_root(q, k, v))
    assert not torch.allclose(by_half(q, k, v), by_root(q, k, v))

    def step(w_q, scale):
        """Change of the scores by one gradient step on W_Q."""
        w_q = w_q.clone().requires_grad_()
        scores = scale * x[0] @ w_q @ k[0, 0].T
        return -scale * x[0] @ torch.autograd.grad(scores.square().sum(), w_q)[0] @ k[0, 0].T

    w_q = normal(128, 32, seed=1)
    torch.testing.assert_close(step(2 * w_q, 0.5), step(w_q, 1.0) / 4)


def test_dot_product_variance():
    """attention-dot-variance. "For independent zero-mean entries of variance s^2 the dot product
    has variance d_k s^4; dividing by sqrt(d_k) removes the dependence on d_k." (chapter §1.1.2;
    note 1, 细节讨论2; note 3, softmax)
    Zero mean is required: in general the variance is d_k (s⁴ + 2 μ² s²). So is independence: if
    queries equal keys, scaled scores have mean √d_k.
    """
    mu, s = sympy.symbols("mu sigma")
    second = s**2 + mu**2  # E q², E k²
    assert sympy.expand(second**2 - mu**4 - (s**4 + 2 * mu**2 * s**2)) == 0
    q, k = normal(2, 40_000, 16)
    for a, b, variance in ((q, k, 1), (2 * q.sign(), 2 * k.sign(), 2**4), (q + 1, k + 1, 1 + 2)):
        assert (a * b).sum(-1).var().item() == pytest.approx(16 * variance, rel=0.04)
    assert (q * q).sum(-1).div(4).mean().item() == pytest.approx(4, abs=0.05)


def test_additive_scores_are_pairwise_and_unnormalized():
    """The chapter: the weights are α(q, k) = vᵀ tanh(W_q q + W_k k) (§1.1.2).
    Note 1: in matrices, softmax(W tanh(W_q Q + W_k K)) V (细节讨论2).
    False: these are scores; the weights are their softmax, and each pair has its own sum.
    attention-additive-parameters. "Additive scoring needs three additional matrices (W, W_q, W_k)
    and therefore more parameters and storage than dot-product scoring." (note 1, 细节讨论2)
    """
    torch.manual_seed(0)
    score = AttentionFn.build("additive", config(d_model=8, n_heads=1)).double()
    assert sorted(p.shape for p in score.parameters()) == [(1, 8), (8, 8), (8, 8)]
    q, k = normal(1, 1, 3, 8), normal(1, 1, 7, 8, seed=1)
    with pytest.raises(RuntimeError):
        score.query(q) + score.key(k)  # 3 queries, 7 keys
    of_one = score.sum(torch.tanh(score.query(q[0, 0, 2]) + score.key(k[0, 0]))).squeeze(-1)
    assert of_one.min() < 0 and abs(of_one.sum().item() - 1) > 0.1
    weights = score(q, k, torch.eye(7, dtype=q.dtype)[None, None])
    torch.testing.assert_close(weights[0, 0, 2], torch.softmax(of_one, -1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_softmax_does_not_overflow(dtype):
    """attention-exp-overflow. "Unscaled logits make exp overflow (values like e^100); subtracting
    the row maximum before softmax gives numerical stability." (note 1, 细节讨论2; chapter §1.5.6)
    """
    largest = 1.01 * math.log(torch.finfo(dtype).max)
    logits = torch.tensor([largest, largest - 1, -largest], dtype=dtype)
    assert logits.exp().isinf().any()
    below = (logits - logits.max()).exp()
    torch.testing.assert_close(torch.softmax(logits, 0), below / below.sum())
    assert torch.softmax(50 * logits, 0)[0] == 1, "softmax must saturate"


# Cost


def test_projections_dominate_attention_macs_until_n_equals_2d():
    """The chapter: self-attention takes O(n²d) time; where d far exceeds n, the bottleneck lies in the d
    dimension of those products (§1.1.3, exercise 1.1).
    False: projections take 4nd² MACs, scores and mixing 2n²d; projections dominate until n = 2d.
    """
    d = 512
    long, short = (attention_macs(n, d, 8, 8, d // 8) for n in (2 * d, d // 8))
    assert 2 * (long["scores"] + long["mix"]) == sum(long.values())
    pairs = short["scores"] + short["mix"]
    assert pairs == 2 * (d // 8) ** 2 * d and pairs / sum(short.values()) < 0.06


def test_attention_takes_n2d_operations():
    """attention-flops-n2d. "Computing QK^T: O(n²d); softmax: each row takes O(n), there are n rows in all:
    O(n²); multiplying with V: O(n²d); the total time complexity is O(n²d) + O(n²) + O(n²d) = O(n²d)."
    (chapter §1.1.3, exercise 1.1)
    attention-softmax-lower-order. The term that the sum drops is below a tenth of the operations with heads 64 wide,
    however long the text.
    """
    n, d, h = sympy.symbols("n d h", positive=True)
    macs = attention_macs(n, d, h, h, d / h)
    assert [sympy.expand(macs[name]) for name in ("scores", "mix")] == [n**2 * d] * 2
    softmax = sympy.expand(h * n * (5 * n - 2))  # a row: maximum, subtractions, exponentials, sum, divisions
    total = sympy.expand(2 * (macs["scores"] + macs["mix"]) + softmax)  # a multiply-add is two operations
    assert [sympy.degree(softmax, symbol) for symbol in (n, d)] == [2, 0]
    assert [sympy.degree(total, symbol) for symbol in (n, d)] == [2, 1]
    share = (softmax / total).subs(h, d / 64)
    assert sympy.limit(share, n, sympy.oo) == sympy.Rational(5, 5 + 4 * 64) < 0.1


def test_products_with_weights_dominate_wide_blocks():
    """attention-wide-regime. "For d >> n (such as a short sequence in a very wide model) the bottleneck of computing
    is in the d dimension of the matrix products." (chapter §1.1.3, exercise 1.1)
    True of the products with weights, which the chapter leaves out, false of the two that it counts: at n = d/8 those
    with weights are 98 % of a block. attention-n-dominates. "For n >> d the n² term dominates": 73 % at n = 16 d.
    """
    d = sympy.Symbol("d", positive=True)
    for n, expected in ((d / 8, sympy.Rational(1, 49)), (16 * d, sympy.Rational(8, 11))):
        macs = block_macs(n, d, 1, 1, d, 4 * d)
        assert sympy.simplify((macs["scores"] + macs["mix"]) / sum(macs.values())) == expected


class LargestTensor(TorchDispatchMode):
    """Records the element count of the largest tensor created in the context."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        made = result if isinstance(result, tuple | list) else [result]
        self.elements = max([self.elements, *(r.numel() for r in made if isinstance(r, torch.Tensor))])
        return result


def test_exact_attention_needs_no_n_by_n_matrix():
    """The chapter: self-attention takes O(n²) memory (exercise 1.1).
    False: naive attention stores n² weights per head; tiled attention no tensor larger than the output.
    """
    q, k, v = normal(3, 1, 4, 512, 8)
    with LargestTensor() as stored:
        naive = naive_attention(q, k, v)
    with LargestTensor() as tiled:
        tiles = tiled_attention(q, k, v, block=32)
    torch.testing.assert_close(tiles, naive, rtol=0, atol=1e-12)
    assert stored.elements == 4 * 512**2 and tiled.elements == 4 * 512 * 8


@pytest.mark.parametrize("largest", [1, 100, 10_000])
def test_tiled_attention_is_exact_and_stable(largest):
    """attention-flash-exact. "Tiled attention with an online softmax computes mathematically the
    same result and takes care of numerical stability by itself." (chapter §1.2.6, §1.5.6, §1.6.3)
    """
    q, k, v = normal(3, 1, 2, 64, 16)
    q *= largest / ((q @ k.mT).abs().max() / 4)
    naive, tiled = naive_attention(q, k, v), tiled_attention(q, k, v, block=24)
    torch.testing.assert_close(tiled, naive, rtol=0, atol=1e-9)
    unshifted = torch.exp(q @ k.mT / 4)  # without subtracting the maximum
    assert (unshifted / unshifted.sum(-1, keepdim=True)).isnan().any() == (largest > 1000)


def test_sorting_counting_and_bracket_matching_are_global():
    """The chapter: bracket matching, sorting and counting call for local attention; counting an element calls
    for global attention (exercise 1.2).
    False: the last element can determine the first sorted one and a count; brackets match at any distance.
    """
    x = list(range(1, 101))
    changed = [*x[:-1], 0]
    assert sorted(changed)[0] == 0 != sorted(x)[0] and changed.count(0) == 1 != x.count(0)

    def distances(brackets):
        opened, result = [], []
        for at, bracket in enumerate(brackets):
            result.append(at - opened.pop()) if bracket == ")" else opened.append(at)
        return result

    assert distances("((()))") == [1, 3, 5] and max(distances("(" * 50 + ")" * 50)) == 99


# Masks


def test_infilling_needs_bidirectional_attention():
    """The chapter: self-attention needs a causal mask so that no information leaks (§1.1.6).
    False for encoders: predicting a masked token can require tokens to its right.
    """
    answers = torch.arange(1, 9)
    texts = torch.stack([torch.zeros_like(answers), answers], 1)  # a masked token, then its value

    def accuracy(mask):
        net = Transformer(small_config(d_model=16, n_layers=1, mask=mask))
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        for _ in range(40):
            optimizer.zero_grad()
            F.cross_entropy(net(texts)[:, 0], answers).backward()
            optimizer.step()
        return (net(texts)[:, 0].argmax(-1) == answers).double().mean().item()

    assert accuracy("none") == 1 and accuracy("causal") <= 1 / 8


def test_causal_mask_is_upper_triangle_only_if_rows_are_queries():
    """attention-mask-triangle. "The masked part is the upper triangle (note 1), a lower-triangular
    matrix is built (note 2), or the lower left must vanish and columns sum to one (note 3)." (note
    1, 细节讨论1; note 2, §2.2.2; note 3, masking, softmax)
    False for note 3: in softmax(QKᵀ)V masking the lower triangle exposes the future; it is right for KQᵀ.
    """
    x, w = normal(6, 4), normal(4, 4, seed=1)
    upper, lower = torch.ones(6, 6).triu(1).bool(), torch.ones(6, 6).tril(-1).bool()

    def rows(x, hidden):  # softmax(Q Kᵀ) V: queries are rows
        return torch.softmax((x @ w @ x.mT).masked_fill(hidden, -math.inf), -1) @ x

    def columns(x, hidden):  # the figure: K Qᵀ, queries are columns
        return torch.softmax((x @ (x @ w).mT).masked_fill(hidden, -math.inf), -2).mT @ x

    torch.testing.assert_close(rows(x, upper), columns(x, lower))

    def future(mixed):  # largest gradient of an output with respect to a later input
        jacobian = torch.autograd.functional.jacobian(mixed, x)  # (t, m, t', m)
        return jacobian.abs().amax((1, 3)).triu(1).max()

    assert future(lambda x: rows(x, upper)) == 0
    assert future(lambda x: columns(x, lower)) == 0
    assert future(lambda x: rows(x, lower)) > 0.1


def test_masked_weights_are_exactly_zero():
    """Note 3: after the softmax masked weights are close to 0 (masking). False: they are exactly 0."""
    weights = torch.softmax(torch.tensor([3.0, -math.inf, 1.0]), 0)
    assert weights[1] == 0 and weights.sum().item() == pytest.approx(1)


@torch.no_grad()
def test_cross_attention_needs_no_causal_mask():
    """attention-cross-needs-no-mask. "Cross-attention needs no mask because the query may see the
    whole source." (chapter §1.1.6; note 1, 细节讨论1; note 3, Cross-attention)
    True for the causal mask: every output depends on the whole source and on no later target token.
    """
    net = EncoderDecoder(small_config()).double()
    source, target = torch.arange(1, 6)[None], torch.arange(1, 5)[None]
    before = net((source, target))
    for at in range(5):
        other = source.clone()
        other[0, at] = 9
        assert ((net((other, target)) - before).abs().amax(-1) > 1e-9).all()
    for at in range(4):
        other = target.clone()
        other[0, at] = 9
        moved = (net((source, other)) - before).abs().amax(-1)[0] > 1e-9
        assert moved.tolist() == [place >= at for place in range(4)]


@torch.no_grad()
def test_cross_attention_needs_a_padding_mask():
    """The chapter and note 3: cross-attention needs no mask (§1.1.6; Cross-attention).
    False for sources of unequal length: without a padding mask, padding changes the output.
    """
    net = EncoderDecoder(small_config()).double()
    source, target = torch.tensor([[3, 4, 5, 0, 0]]), torch.tensor([[1, 2]])

    def outputs():
        open_ = net((source, target))
        return open_, net((source, target), source_padding_mask=source != 0)

    open_before, masked_before = outputs()
    net.encoder.embedding.weight[0] *= -1  # change the padding embedding
    open_after, masked_after = outputs()
    assert (open_after - open_before).abs().max() > 1e-2
    assert torch.equal(masked_after, masked_before)


# Comparison with convolution and recurrence


def test_attention_connects_any_two_positions_in_one_layer():
    """stack-path-length. "Self-attention connects any two positions directly (path length one),
    solving long-range dependence at the root." (note 3, 为什么需要Transformer; note 4, §2)
    """
    layer = Transformer(config(position="none")).double().blocks[0].mixer
    x = normal(1, 16, 128).requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x, causal=True)[0, -1].sum(), x)
    assert (gradient[0].norm(dim=-1) > 1e-9).all()


@pytest.mark.parametrize(("n", "width", "layers"), [(16, 3, 8), (64, 3, 32), (64, 5, 16)])
def test_convolutions_need_many_layers_to_connect_distant_positions(n, width, layers):
    """stack-cnn-depth. "CNNs need many layers to connect distant positions, at the cost of
    parameters, and early information fades on the way." (note 3, 为什么需要Transformer)
    Causal kernels of width k need ⌈(n - 1) / (k - 1)⌉ layers.
    """
    x, kernel = F.pad(torch.ones(1, 1, 1), (0, n - 1)), torch.ones(1, 1, width)
    for _ in range(layers):
        assert x[0, 0, -1] == 0
        x = F.conv1d(F.pad(x, (width - 1, 0)), kernel).sign()
    assert x[0, 0, -1] == 1 and layers == math.ceil((n - 1) / (width - 1))


def test_convolutions_and_rnns_accept_any_length():
    """stack-cnn-fixed-length. "CNNs are limited to inputs of fixed length and RNN/LSTM by sequence
    length." (note 4, §1.1)
    False: only a dense layer after the convolutions fixes the length.
    """
    convolution = nn.Conv1d(4, 4, 3, padding=1)
    dense = nn.Sequential(convolution, nn.Flatten(), nn.Linear(4 * 5, 4))
    assert [convolution(torch.zeros(1, 4, n)).shape[-1] for n in (5, 50)] == [5, 50]
    assert nn.LSTM(4, 4, batch_first=True)(torch.zeros(1, 50, 4))[0].shape == (1, 50, 4)
    dense(torch.zeros(1, 4, 5))
    with pytest.raises(RuntimeError):
        dense(torch.zeros(1, 4, 50))
