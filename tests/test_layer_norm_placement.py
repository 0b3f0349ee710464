"""The trials of exercise 1.11 and of its appendix 1.19."""

import pytest
import torch
from definitions import definitions

from lab.measure.depth import moments
from lab.models.gpt import Norm
from lab.recipes.byte_model import byte_model

SIZES = {"n_layers": 3, "d_model": 16, "context": 16, "corpus": ""}
SHARED = ["at_start", "gradient_profile", "output_change", "text_model"]


@pytest.fixture(scope="module")
def lesson():
    with definitions("11", *SHARED) as module:
        yield module


@pytest.fixture(scope="module")
def appendix():
    with definitions("19", *SHARED, "untrained_probe") as module:
        yield module


# Initial weights


@pytest.mark.parametrize(("placement", "column"), [("pre", "S"), ("post", "sum")])
def test_residual_stream_at_initialization_matches_moments(lesson, placement, column):
    found, predicted = lesson.at_start(0, placement, 1, 4, 256), moments(placement, 1, 4)
    assert [row[column] for row in found] == pytest.approx(predicted[column].to_numpy()[1:], rel=0.1)


def test_gradients_vanish_without_norm_and_skip(lesson):
    first = {kind: lesson.gradient_profile(0, kind, "none", 12, 32)[0] for kind in ("plain", "none")}
    assert first["plain"]["w2_gradient"] > 1000 * first["none"]["w2_gradient"]


def test_one_step_changes_post_ln_output_more_than_pre_ln(lesson):
    pre, post, deep = (lesson.output_change(0, kind, 1, 16, 64)["change"] for kind in ("pre", "post", "deepnorm"))
    assert post > 2 * pre > 2 * deep


# Models of source code


def made(lesson, arm):
    config, task, _ = byte_model(1, n_layers=3, d_model=16, context=16, ffn="relu", **lesson.norm_fields(arm))
    return lesson.built(arm, config, seed=0), task


@pytest.mark.parametrize(
    ("arm", "norms"),
    [("pre", 7), ("post", 6), ("sandwich", 13), ("norm on q and k", 13), ("norm after FFN only", 3), ("rmsnorm", 7)],
)
def test_each_arm_has_the_expected_number_of_norms(lesson, arm, norms):
    """Pre-LN has two norms in each of three layers, and a final norm."""
    model, _ = made(lesson, arm)
    found = [each for each in model.modules() if isinstance(each, Norm) and type(each) is not Norm]
    assert len(found) == norms


def test_norms_without_gain_have_fewer_parameters_and_equal_initial_outputs(lesson):
    plain, bare = (made(lesson, arm)[0] for arm in ("pre", "no gain"))
    count = [sum(p.numel() for p in model.parameters()) for model in (plain, bare)]
    tokens = torch.arange(16)[None]
    assert count[0] > count[1] and torch.allclose(plain(tokens), bare(tokens))


def test_trial_returns_a_loss_curve_whose_last_row_has_ngram_baselines_and_layer_measures(lesson):
    rows = lesson.text_model(0, 0, "post", 0.01, batch=4, steps=8, **SIZES)
    assert [row["step"] for row in rows] == list(range(9)) and rows[-1]["loss"] < rows[0]["loss"]
    assert all(row["trigram"] < row["bigram"] < row["unigram"] for row in rows)
    assert "cosine" in rows[-1] and "cosine" not in rows[0]


def test_measuring_layers_does_not_change_the_model(lesson):
    model, task = made(lesson, "pre")
    before = [p.clone() for p in model.parameters()]
    found = lesson.layer_measures(model, task)
    assert set(found) == {"cosine", "probe", "removal", "noise"} and 0 <= found["probe"] <= 1
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_linear_probe_reads_the_input_from_an_untrained_stack(appendix):
    found = appendix.untrained_probe(0, **SIZES)
    assert found["at_input"] >= found["behind"] > 0.1
