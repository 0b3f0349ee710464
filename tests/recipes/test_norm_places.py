"""Models that differ in where their norms stand: each arm is what it is called, and its trial writes what is judged."""

import pytest
import torch

from lab.models.gpt import Norm
from lab.recipes.byte_model import byte_model
from lab.recipes.norm_places import ARMS, inside, model_of, text_model, untrained_probe

SIZES = {"n_layers": 3, "d_model": 16, "context": 16, "corpus": ""}


def made(arm):
    config, task, _ = byte_model(1, n_layers=3, d_model=16, context=16, ffn="relu", **ARMS[arm])
    return model_of(arm, config, seed=0), task


@pytest.mark.parametrize(
    ("arm", "norms"),
    [("pre", 7), ("post", 6), ("sandwich", 13), ("norm on q and k", 13), ("norm after FFN only", 3), ("rmsnorm", 7)],
)
def test_an_arm_has_its_norms(arm, norms):
    """Two in each of three layers, and one behind Pre-LN stacks."""
    model, _ = made(arm)
    found = [each for each in model.modules() if isinstance(each, Norm) and type(each) is not Norm]
    assert len(found) == norms


def test_no_gain_means_fewer_parameters_and_nothing_else():
    plain, bare = (made(arm)[0] for arm in ("pre", "no gain"))
    count = [sum(p.numel() for p in model.parameters()) for model in (plain, bare)]
    tokens = torch.arange(16)[None]
    assert count[0] > count[1] and torch.allclose(plain(tokens), bare(tokens))


def test_a_trial_writes_its_curve_beside_its_tables_and_looks_inside_at_the_end():
    rows = text_model(0, 0, "post", 0.01, batch=4, steps=8, **SIZES)
    assert [row["step"] for row in rows] == list(range(9)) and rows[-1]["loss"] < rows[0]["loss"]
    assert all(row["trigram"] < row["bigram"] < row["unigram"] for row in rows)
    assert "cosine" in rows[-1] and "cosine" not in rows[0]


def test_what_is_measured_inside_leaves_the_model_as_it_was():
    model, task = made("pre")
    before = [p.clone() for p in model.parameters()]
    found = inside(model, task)
    assert set(found) == {"cosine", "probe", "removal", "noise"} and 0 <= found["probe"] <= 1
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_an_untrained_stack_still_shows_its_input():
    found = untrained_probe(0, **SIZES)
    assert found["at_input"] >= found["behind"] > 0.1
