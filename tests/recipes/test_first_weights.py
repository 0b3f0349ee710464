"""Stacks at their first weights do what the recursion says, and gradients vanish where nothing keeps them."""

import pytest

from lab.measure.depth import moments
from lab.recipes.first_weights import at_start, gradient_profile, output_change


@pytest.mark.parametrize(("placement", "column"), [("pre", "S"), ("post", "sum")])
def test_the_stream_follows_the_recursion(placement, column):
    found, predicted = at_start(0, placement, 1, 4, 256), moments(placement, 1, 4)
    assert found[column].to_numpy() == pytest.approx(predicted[column].to_numpy()[1:], rel=0.1)


def test_gradients_vanish_without_norm_and_skip():
    first = {kind: gradient_profile(0, kind, "none", 12, 32)[0]["w2_gradient"] for kind in ("plain", "none")}
    assert first["plain"] > 1000 * first["none"]


def test_a_step_moves_a_post_ln_stack_further():
    pre, post, deep = (output_change(0, kind, 1, 16, 64)["change"] for kind in ("pre", "post", "deepnorm"))
    assert post > 2 * pre > 2 * deep
