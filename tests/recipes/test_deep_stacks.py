"""The trial of deep stacks: it distinguishes learning from failing runs, and arms match their names."""

import pytest
import torch

from lab.recipes import deep_stacks
from lab.recipes.deep_stacks import configured, learning, stack
from lab.training import fit

USUAL = {"seed": 0, "placement": "pre", "scheme": "xavier", "n_layers": 2, "d_model": 16, "steps": 60}


def test_stack_learns_only_at_a_reasonable_learning_rate():
    learned, failed = learning(**USUAL, learning_rate=0.01), learning(**USUAL, learning_rate=1e-6)
    assert learned["learnt"] and learned["steps_taken"] < 60
    assert not failed["learnt"] and failed["steps_taken"] == 60
    assert learned["loss"] < failed["loss"]


def test_mark_is_a_quarter_of_the_way_from_unigram_entropy_to_entropy_rate(monkeypatch):
    marks = []

    def recording_fit(*args, until, **options):
        marks.append(until)
        return fit(*args, until=until, **options)

    monkeypatch.setattr(deep_stacks, "fit", recording_fit)
    learning(**USUAL | {"steps": 10}, learning_rate=0.01)
    task, _ = stack(0, "pre", "xavier", 2, 16)
    (name, sign, mark), way = marks[0], task.unigram_entropy - task.entropy_rate
    assert (name, sign) == ("validation", "<") and (task.unigram_entropy - mark) / way == pytest.approx(1 / 4)
    assert "a quarter of the way" in learning.__doc__


@pytest.mark.parametrize("change", [{"clip": 0.01}, {"clamp": 0.1}, {"beta2": 0.5}, {"warmup": 50}, {"seed": 1}])
def test_each_option_changes_the_loss_and_repeats_do_not(change):
    usual = USUAL | {"learning_rate": 0.01, "steps": 10}
    assert learning(**usual)["loss"] == learning(**usual)["loss"] != learning(**usual | change)["loss"]


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "deepnorm", "no norm", "none", "neither"])
def test_only_placements_with_norm_have_norm_weights(placement):
    _, model = stack(0, placement, "xavier", 2, 16)
    gains = [name for name, _ in model.blocks.named_parameters() if "norm.norm" in name]
    assert bool(gains) == (placement not in ("no norm", "neither"))


@pytest.mark.parametrize("scheme", ["fixup", "learned scales", "fixup, readout not 0"])
def test_identity_schemes_start_as_the_identity(scheme):
    task, model = stack(0, "no norm", scheme, 3, 16)
    tokens, _ = task.batch(torch.Generator().manual_seed(0), 4)
    assert torch.equal(model.hidden(tokens), model.embedding(tokens))


def test_scheme_options_extend_the_placement():
    assert configured("no norm", "t-fixup") == {"residual": "plain", "norm": "none", "initialization": "t-fixup"}
    with pytest.raises(ValueError, match="xaver"):
        stack(0, "pre", "xaver", 2, 16)
