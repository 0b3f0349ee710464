"""The trials of exercise 1.9: models that differ only in their activation, dead units, and gradients in deep stacks."""

import pytest
import torch
from definitions import definitions
from torch import nn


@pytest.fixture(scope="module")
def lesson():
    names = ["next_byte", "gradients", "mean_field", "redrawn", "time_alone", "time_inside"]
    with definitions("09", *names) as module:
        yield module


@pytest.fixture
def learned(lesson, tmp_path):
    (tmp_path / "text.py").write_text("".join(f"value_{i} = {i * i % 97}\n" for i in range(3000)))
    sizes = {"steps": 16, "batch": 4, "context": 16, "d_model": 16, "n_layers": 1, "corpus": str(tmp_path)}
    return lambda ffn, **more: lesson.next_byte(0, ffn, 0.01, **sizes | more)


def test_ungated_activations_have_equal_data_and_parameter_counts(learned):
    relu, gelu, none = (learned(ffn) for ffn in ("relu", "gelu", "none"))
    assert relu[0]["data_hash"] == gelu[0]["data_hash"] == none[0]["data_hash"]
    assert relu[0]["parameters"] == gelu[0]["parameters"] == none[0]["parameters"]
    assert relu[-1]["trigram"] == gelu[-1]["trigram"]
    assert len({relu[0]["fingerprint"], gelu[0]["fingerprint"]}) == 2
    assert relu[0]["step"] == 0 and relu[-1]["step"] == 16 and relu[-1]["loss"] < relu[0]["loss"]
    assert abs(gelu[-1]["swapped"]) < 1e-3 and "swapped" not in relu[-1]
    assert learned("relu", order=5)[0]["data_hash"] != relu[0]["data_hash"]


def test_only_gated_layers_report_statistics_of_gate_and_linear_factor(learned):
    rises = learned("swiglu")[-1]
    assert {"gate_mean", "gate_size", "gate_sign", "linear_mean", "linear_size", "linear_sign"} <= set(rises)
    assert rises["linear_size"] != 0 and "gate_mean" not in learned("relu")[-1]


def test_deaths_counts_units_that_died_revived_and_stayed_dead(lesson):
    silent = torch.tensor([[0, 1, 0, 1], [0, 1, 0, 0], [0, 1, 1, 0], [0, 1, 1, 1]], dtype=torch.bool)
    assert lesson.deaths(silent) == {"fell": 75.0, "woke": 25.0, "lasting": 25.0}


def test_redrawn_weights_depend_on_the_seed(lesson):
    nets = [lesson.redrawn(nn.Linear(400, 300), seed) for seed in (1, 1, 2)]
    assert torch.equal(nets[0].weight, nets[1].weight) and not torch.equal(nets[0].weight, nets[2].weight)
    assert nets[0].weight.std().item() == pytest.approx(1 / 20, rel=0.05)


def test_gradients_match_mean_field_theory_in_wide_mlps(lesson):
    for kind, act in (("relu", torch.relu), ("silu", torch.nn.functional.silu)):
        rows = lesson.gradients(0, "plain", kind, 2**0.5, 6, 512)
        assert [row["layer"] for row in rows] == [1, 2, 3, 4, 5, 6] and rows[-1]["relative"] == 1
        expected = lesson.mean_field(act, 2**0.5, 6)
        assert rows[0]["relative"] == pytest.approx(expected[0], rel=0.25)
    assert lesson.mean_field(torch.relu, 2**0.5, 9) == pytest.approx(1, rel=1e-4)


def test_activation_hardly_changes_gradients_in_residual_blocks(lesson):
    first = [lesson.gradients(0, "blocks", kind, 1.0, 6, 32)[0]["relative"] for kind in ("relu", "gelu")]
    assert first[0] == pytest.approx(first[1], rel=0.2)


def test_timings_cover_every_activation_forward_and_backward(lesson):
    alone = lesson.time_alone(["relu", "gelu"], [64, 128])
    inside = lesson.time_inside(["relu", "swiglu"], [32])
    assert len(alone) == 3 * 2 * 2 and len(inside) == 2 * 2, "ReLU twice"
    assert set(inside.passes) == set(alone.passes) == {"forward", "both"} and set(inside.n) == {32}
