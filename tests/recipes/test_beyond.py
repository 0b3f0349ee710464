"""The trial of lengths beyond training: who learns stops at the mark, and every row says what it is."""

import pandas as pd
import pytest
import torch

from lab.recipes.beyond import beyond, source_key, swept_rates, usual_rates
from lab.tasks.lengths import Copy

TINY = {"d_model": 16, "n_layers": 1, "n_heads": 2}
COPY = {"kind": "copy", "symbols": 4, "longest": 4}
SUMS = {"kind": "sums", "longest": 1}
USUAL = {"seed": 0, "task": COPY, "position": "learned", "model": TINY, "steps": 4, "batch": 4, "learning_rate": 0.004,
         "lengths": [4, 6, 8], "mark": 0.95, "texts": 8, "every": 2}  # fmt: skip


def ran(**changes):
    return pd.DataFrame(beyond(**USUAL | changes))


def test_a_run_ends_at_its_mark_or_with_its_steps():
    assert set(ran(mark=0.0).steps_taken) == {0} and set(ran(mark=0.0).steps_to_mark) == {0}
    idle = ran()
    assert set(idle.steps_taken) == {4} and idle.steps_to_mark.isna().all()
    assert list(idle[idle.what == "curve"].step) == [0, 2, 4]
    assert set(ran(mark=0.0, until_mark=False).steps_taken) == {4}


def test_what_is_kept_of_a_run():
    table = ran()
    assert set(table.what) == {"curve", "accuracy", "attention", "map", "cosine"}
    assert list(table[table.what == "accuracy"].length) == [4, 6, 8]
    assert list(table[table.what == "attention"].length) == [4, 6, 8]
    assert len(table[table.what == "cosine"]) == Copy(symbols=4, longest=4).length ** 2
    seen = table[table.what == "map"]
    assert seen.value.between(0, 1).all() and (seen.i >= seen.j).all() and seen.i.max() == 12
    assert set(ran(seed=1).what) == {"curve", "accuracy", "attention"}
    assert set(ran(task=SUMS, lengths=[1, 2], position="none").what) == {"curve", "accuracy"}
    assert table.order_before.notna().all() and ran(position="none").order_before.isna().all()


def test_only_rotary_is_stretched_and_only_beyond_training():
    table = ran(position="rotary")
    ways = table[table.what == "accuracy"].groupby("way").length.apply(list).to_dict()
    assert ways == {"as trained": [4, 6, 8], "interpolated": [6, 8], "larger base": [6, 8]}
    assert set(ran(position="t5").way.dropna()) == {"as trained"}


def test_an_encoding_that_suits_learns_to_copy():
    easy = {"task": {"kind": "copy", "symbols": 4, "longest": 2}, "position": "t5", "lengths": [2, 4]}
    size = {"steps": 400, "batch": 32, "every": 50, "texts": 64, "learning_rate": 0.02, "model": TINY | {"n_layers": 2}}
    table = ran(**easy | size)
    assert table.in_range.min() >= 0.95 and table.steps_to_mark.max() == table.steps_taken.max() < 400


@pytest.mark.parametrize("order", ["forward", "reversed"])
def test_the_source_of_an_answer_is_that_symbol(order):
    tokens, targets = Copy(symbols=16, longest=5, order=order).of_length(torch.Generator().manual_seed(0), 8, 5)
    (key,) = source_key(order, 5)
    asked = key >= 0
    assert asked.sum() == 5 and torch.equal(tokens[:, key[asked]], targets[:, asked])


def lowest_at(best):
    """run(rates) of a loss that is least at a rate."""
    return lambda rates: pd.DataFrame(
        {"learning_rate": r, "loss_in_range": abs(r / best - 1)} for r in [*rates, *rates]
    )


def test_rates_go_on_until_the_best_lies_between_two_others_or_enough_were_tried():
    assert sorted(swept_rates(lowest_at(2.0), [1, 2, 4]).learning_rate) == [1, 2, 4]
    assert sorted(swept_rates(lowest_at(0.5), [1, 2]).learning_rate) == [0.25, 0.5, 1, 2]
    assert sorted(swept_rates(lowest_at(8.0), [1, 2]).learning_rate) == [1, 2, 4, 8, 16]
    assert len(swept_rates(lowest_at(1e9), [1, 2], most=4)) == 4


def test_of_rates_as_good_as_the_best_the_lower_middle_one_is_used():
    found = pd.DataFrame({"arm": list("aaaabb"), "learning_rate": [1, 2, 4, 8, 1, 2],
                          "loss_in_range": [0.04, 0.0, 0.04, 0.2, 0.3, 0.2]})  # fmt: skip
    assert usual_rates(found, ["arm"]).to_dict() == {"a": 2, "b": 2}
    assert usual_rates(found, ["arm"], within=0.3).to_dict() == {"a": 2, "b": 1}
