"""Constants of activations, units and what they detect, rank-one edits, tables of facts."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from lab.measure import neurons
from lab.measure.neurons import gaussian_moments, lowest, slope
from lab.measure.probe import edit
from lab.models import ModelConfig, Transformer
from lab.models.feedforward import FeedForward
from lab.tasks.facts import Facts, recalled
from lab.training import TrainConfig, train


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def act(kind):
    return FeedForward.kinds[kind].activation()


# Functions: exact values (§7.2 of the yardsticks), with closed forms where there are some


@pytest.mark.parametrize(
    ("kind", "square", "slope_square"),
    [("relu", 0.5, 0.5), ("gelu", 0.42522, 0.45585), ("silu", 0.35578, 0.37948), ("relu2", 1.5, 2.0)],
)
def test_moments_under_a_gaussian(kind, square, slope_square):
    found = gaussian_moments(act(kind))
    assert found["square"] == pytest.approx(square, abs=1e-5)
    assert found["slope_square"] == pytest.approx(slope_square, abs=1e-5)


def test_moments_scale_with_the_spread_of_a_homogeneous_function():
    one, three = gaussian_moments(nn.ReLU()), gaussian_moments(nn.ReLU(), std=3.0)
    assert one["mean"] == pytest.approx((2 * np.pi) ** -0.5, abs=1e-8)
    assert three["square"] == pytest.approx(9 * one["square"], rel=1e-8)
    assert three["slope_square"] == pytest.approx(one["slope_square"], rel=1e-8)


@pytest.mark.parametrize(
    ("kind", "x", "least", "x_slope", "largest_slope"),
    [("gelu", -0.75179, -0.169971, 2**0.5, 1.128904), ("silu", -1.27846, -0.278465, 2.39936, 1.099839)],
)
def test_minima_and_steepest_slopes(kind, x, least, x_slope, largest_slope):
    assert lowest(act(kind), -6, 6) == pytest.approx((x, least), abs=1e-5)
    at, negative = lowest(lambda z: -slope(act(kind))(z), -6, 6)
    assert (at, -negative) == pytest.approx((x_slope, largest_slope), abs=1e-4)


def test_slopes_are_derivatives():
    x = torch.linspace(-3, 3, 50, dtype=torch.float64)
    s = torch.sigmoid(x)
    torch.testing.assert_close(slope(nn.SiLU())(x), s * (1 + x * (1 - s)))
    torch.testing.assert_close(slope(slope(torch.sin))(x), -torch.sin(x))


# Units


def test_firing_and_nonzero_shares():
    a = torch.tensor([[[0.0, -1.0, 2.0], [0.0, 1.0, 3.0]]])
    assert neurons.nonzero_share(a).item() == pytest.approx(4 / 6)
    assert neurons.firing_rates(a).tolist() == [0, 0.5, 1]


def test_what_is_silenced_returns_zero_and_the_rest_of_hidden_stays():
    model = Transformer(ModelConfig(vocabulary=9, context=6, d_model=16, n_layers=2, ffn="relu"), seed=0).eval()
    tokens = torch.arange(12).view(2, 6) % 9
    before = neurons.hidden(model, tokens)
    assert before.shape == (2, 12, 64) and before.min() == 0
    busy = before[0].mean(0).topk(3).indices
    with neurons.silenced(model, 0, busy):
        after = neurons.hidden(model, tokens)
    others = [unit for unit in range(64) if unit not in busy.tolist()]
    assert (after[0][:, busy] == 0).all() and torch.equal(after[0][:, others], before[0][:, others])
    assert not torch.equal(after[1], before[1]), "what a later layer reads has changed"
    with neurons.silenced(model, 1, []):
        assert torch.equal(neurons.hidden(model, tokens), before)
    inputs = neurons.hidden(model, tokens, "ffn_residual.norm")
    assert torch.allclose(torch.relu(model.blocks[1].ffn.up(inputs[1])), before[1], atol=1e-5)


def test_idle_are_the_smallest_that_hold_a_hundredth_of_the_square():
    assert neurons.idle_share(torch.tensor([2.0, 1.0, 0.0])) == pytest.approx(1 / 3)
    assert neurons.idle_share(torch.tensor([[0.05, 0.05, -1.0, 1.0], [1.0, 1.0, 1.0, 1.0]])) == pytest.approx(0.25)
    assert neurons.idle_share(torch.ones(7, 8), held=0.5) == pytest.approx(0.5)


def test_auc_counts_pairs_and_halves_ties():
    a, y = torch.tensor([[0.0], [0.0], [1.0], [2.0]]), torch.tensor([[0], [1], [1], [0]])
    assert neurons.auc(a, y)[0, 0] == pytest.approx((0.5 + 0 + 1 + 0) / 4)
    rng = np.random.default_rng(1)
    a, y = rng.integers(0, 4, (60, 3)), rng.random((60, 2)) < 0.4
    for u in range(3):
        for c in range(2):
            yes, no = a[y[:, c], u], a[~y[:, c], u]
            statistic = stats.mannwhitneyu(yes, no).statistic / (len(yes) * len(no))
            assert neurons.auc(a, y)[u, c] == pytest.approx(statistic)


def test_detectors_find_a_planted_unit_and_not_the_best_of_many_noisy_ones():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((2000, 300))
    planted, absent = rng.random(2000) < 0.1, rng.random(2000) < 0.01
    a[:, 17] += 3 * planted
    found = neurons.detectors(a, {"planted": planted, "absent": absent}).set_index("concept")
    assert found.unit["planted"] == 17
    assert found.auc["planted"] > max(0.95, found.null["planted"])
    assert neurons.auc(a, absent[:, None]).max() > 0.7  # the best of 300 looks good where it was chosen
    assert found.auc["absent"] < found.null["absent"]
    assert found.share["planted"] == pytest.approx(planted.mean())


def test_the_null_of_detectors_holds_its_level():
    rng = np.random.default_rng(2)
    beats = 0
    for draw in range(40):
        runs = np.repeat(rng.random(100) < 0.2, 10)  # labels come in runs, as in text
        drift = np.cumsum(rng.standard_normal((1000, 20)), 0)  # and so do activations
        found = neurons.detectors(drift, {"runs": runs}, seed=draw)
        beats += int(found.auc[0] > found.null[0])
    assert beats <= 8  # 2 expected at 5 %; a shuffled null would be beaten far more often


def test_adjusted_rand_is_one_for_renamed_partitions_and_nought_by_chance():
    rng = np.random.default_rng(0)
    a = rng.integers(0, 4, 2000)
    assert neurons.adjusted_rand(a, (a + 1) % 4) == pytest.approx(1)
    assert abs(neurons.adjusted_rand(a, rng.integers(0, 4, 2000))) < 0.01
    assert neurons.adjusted_rand([0, 0, 1, 1], [0, 0, 1, 2]) == pytest.approx(4 / 7)


def test_clusters_agree_with_labels_that_directions_carry():
    labels = np.arange(300) % 3
    vectors = np.eye(3)[labels] * np.random.default_rng(0).uniform(1, 9, (300, 1))
    noisy = vectors + 0.05 * np.random.default_rng(1).standard_normal((300, 3))
    assert neurons.cluster_agreement(noisy, labels) > 0.95
    assert abs(neurons.cluster_agreement(noisy, np.random.default_rng(2).permutation(labels))) < 0.05


def test_outputs_are_those_of_the_modules():
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    x = randn(3, 5, 4)
    found = neurons.outputs(net, ["0", "1"], x)
    torch.testing.assert_close(found["1"], net[0](x).relu().flatten(0, 1).detach())
    assert found["0"].shape == (15, 6)


# Editing


def test_outputs_leave_a_model_alone_whose_module_runs_twice():
    block = torch.nn.Linear(4, 4)
    model, x = torch.nn.Sequential(block, torch.nn.Tanh(), block), torch.randn(3, 4)
    seen = []
    model.register_forward_hook(lambda _module, _inputs, out: seen.append(out))
    found = neurons.outputs(model, ["0"], x)["0"]
    torch.testing.assert_close(found, block(x))
    torch.testing.assert_close(seen[0], model(x))


@pytest.mark.parametrize("unit", [0.01, 1, 100])
def test_a_probe_sees_no_unit(unit):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(4, (600,), generator=generator)
    features = torch.randn(600, 12, generator=generator)
    features[:, :4] += 1.2 * torch.eye(4)[labels]
    found = neurons.probe_accuracy(features, labels)
    assert 0.5 < found < 0.95
    assert neurons.probe_accuracy(unit * features, labels) == found
    assert neurons.probe_accuracy(features * torch.tensor([unit, 1.0] * 6), labels) == found
    assert neurons.probe_accuracy(torch.cat([features, torch.ones(600, 1)], 1), labels) == pytest.approx(found)


def test_a_rank_one_edit_sends_the_key_to_the_value_and_leaves_orthogonal_keys():
    keys, weight, value = torch.linalg.qr(randn(12, 12))[0][:6], randn(5, 12, seed=1), randn(5, seed=2)
    covariance = keys.T @ keys / 6
    edited = neurons.rank_one(weight, keys[0], value, covariance, ridge=1e-6)
    torch.testing.assert_close(edited @ keys[0], value, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(edited @ keys[1:].T, weight @ keys[1:].T, atol=1e-4, rtol=1e-4)
    assert torch.linalg.matrix_rank(edited - weight, atol=1e-5) == 1


def test_the_covariance_makes_an_edit_quieter_on_correlated_keys():
    keys = randn(40, 12) + 2 * randn(1, 12, seed=3)
    weight, value = randn(5, 12, seed=1), randn(5, seed=2)

    def moved(covariance):
        edited = neurons.rank_one(weight, keys[0], value, covariance)
        torch.testing.assert_close(edited @ keys[0], value, atol=1e-3, rtol=1e-3)
        return ((edited - weight) @ keys[1:].T).square().sum().item()

    assert moved(keys.T @ keys / 40) < 0.5 * moved(torch.eye(12))
    with pytest.raises(ValueError, match="zero"):
        neurons.rank_one(weight, keys[0], value, torch.zeros(12, 12))


def test_the_wanted_output_gives_the_wanted_answer_and_leaves_the_model():
    model = Transformer(ModelConfig(vocabulary=9, context=4, d_model=32, ffn="relu")).eval()
    tokens = torch.tensor([[1, 2, 3], [3, 2, 1]])
    before = model(tokens).detach()
    value = neurons.wanted_output(model, "blocks.1.ffn.down", tokens, 7, sure=0.7, steps=1000)
    torch.testing.assert_close(model(tokens), before)
    with edit(model, {"blocks.1.ffn.down": lambda x: torch.cat([x[:, :-1], value.expand(2, 1, -1)], 1)}):
        assert (model(tokens)[:, -1].softmax(-1)[:, 7] > 0.7).all()


# Facts


def test_facts_are_one_table_in_every_wording():
    task = Facts(subjects=5, relations=3, objects=4, wordings=2)
    x, y = task.batch(torch.Generator().manual_seed(0), 200)
    table = task.table()
    assert table.shape == (2, 15, 4)
    assert task.bits == 30
    assert int(x.max()) == task.vocabulary - 1
    assert torch.equal(table[0, :, 1:3], table[1, :, 1:3].flip(1))  # turned round
    told = {}
    for tokens, answer in zip(x.tolist(), y[:, -1].tolist(), strict=True):
        told.setdefault(tuple(sorted(tokens[1:3])), set()).add(answer)
    assert len(told) == 15
    assert all(len(answers) == 1 for answers in told.values())
    assert (y[:, :-1] == -100).all()
    assert not torch.equal(task.answers, Facts(subjects=5, relations=3, objects=4, table_seed=1).answers)


def test_a_small_model_learns_a_small_table_by_heart():
    task = Facts(subjects=6, relations=2, objects=8)
    model = Transformer(ModelConfig(vocabulary=task.vocabulary, context=4, d_model=32, n_layers=1, ffn="relu"))
    assert recalled(model, task).double().mean() < 0.6
    train(model, task.batch, TrainConfig(steps=150, batch=32, learning_rate=5e-3, warmup=10))
    assert recalled(model, task).all()


# Mutual information


def told(values, labels, **options):
    return neurons.mutual_information(values, labels, **options).iloc[0]


def test_information_of_known_sources_is_their_closed_form():
    rng, n = np.random.default_rng(0), 20_000
    label = rng.integers(0, 4, n)
    assert told(label, label).plugin == pytest.approx(2, abs=1e-3), "the whole entropy of four classes"
    bit = rng.integers(0, 2, n)
    for wrong in (0.05, 0.2):  # a channel that flips bits: 1 - H(wrong)
        flipped = bit ^ (rng.random(n) < wrong)
        entropy = -wrong * np.log2(wrong) - (1 - wrong) * np.log2(1 - wrong)
        found = told(flipped, bit)
        assert found.information == pytest.approx(1 - entropy, abs=0.02) and found.p < 0.02
    signal = np.where(bit, 1.0, -1.0) + rng.standard_normal(n)
    density = lambda x, m: stats.norm.pdf(x, m)  # noqa: E731
    x = np.linspace(-8, 8, 4001)
    both = (density(x, 1) + density(x, -1)) / 2
    exact = np.trapezoid(density(x, 1) * np.log2(density(x, 1) / both), x)
    few, many = (told(signal, bit, bins=bins).information for bins in (2, 32))
    assert few < many < exact + 0.01 and many == pytest.approx(exact, abs=0.015), "bins lose information"


def test_information_of_nothing_is_nothing_where_the_plug_in_finds_some():
    rng, n = np.random.default_rng(1), 400
    values, labels = rng.standard_normal((n, 60)), rng.integers(0, 5, n)
    table = neurons.mutual_information(values, labels, bins=8)
    assert table.plugin.min() > 0.02 and table.information.mean() == pytest.approx(0, abs=0.004)
    assert table.chance.mean() == pytest.approx(4 * 7 / (2 * n * np.log(2)), rel=0.1)
    assert 0.3 < table.p.mean() < 0.7 and (table.p < 0.05).mean() < 0.15


def test_information_sees_no_scale_and_keeps_equal_values_together():
    rng, n = np.random.default_rng(2), 3000
    label = rng.integers(0, 2, n)
    values = rng.standard_normal(n) + label
    plain, bent = told(values, label), told(np.exp(3 * values), label)
    assert plain.tolist() == bent.tolist()
    silent = np.where(rng.random(n) < 0.97, 0.0, rng.random(n))  # of a ReLU: mostly 0
    fires = (silent > 0).astype(int)
    entropy = -sum(p * np.log2(p) for p in (fires.mean(), 1 - fires.mean()))
    assert told(silent, fires).plugin == told(-silent, fires).plugin == pytest.approx(entropy)
    with pytest.raises(ValueError, match="3000 rows of values need as many labels"):
        neurons.mutual_information(values, label[:-1])


def test_runs_of_real_text_make_no_information():
    """Two slow random walks agree by chance, and so do their rotations: shuffled labels would call it certain."""
    rng, small = np.random.default_rng(3), 0
    for seed in range(40):
        value, walk = np.cumsum(rng.standard_normal((2, 600)), axis=1)
        small += told(value, (walk > np.median(walk)).astype(int), shuffles=60, seed=seed).p < 0.05
    assert small <= 8
