"""The trial of lesson 1.7: who learns stops at the mark, and every row says what it is."""

import pandas as pd
import pytest
import torch

from lab.files import notebook_of
from lab.tasks.lengths import Copy
from lab.trials.cells import as_module

TINY = {"d_model": 16, "n_layers": 1, "n_heads": 2}
COPY = {"kind": "copy", "symbols": 4, "longest": 4}
SUMS = {"kind": "sums", "longest": 1}
USUAL = {"seed": 0, "task": COPY, "position": "learned", "model": TINY, "steps": 4, "batch": 4, "learning_rate": 0.004,
         "lengths": [4, 6, 8], "mark": 0.95, "texts": 8, "every": 2}  # fmt: skip


@pytest.fixture(scope="module")
def cells():
    with as_module(notebook_of("1.7"), ["beyond"]) as module:
        yield module


@pytest.fixture
def ran(cells):
    return lambda **changes: pd.DataFrame(cells.beyond(**USUAL | changes))


def test_a_run_ends_at_its_mark_or_with_its_steps(ran):
    assert set(ran(mark=0.0).steps_taken) == {0} and set(ran(mark=0.0).steps_to_mark) == {0}
    idle = ran()
    assert set(idle.steps_taken) == {4} and idle.steps_to_mark.isna().all()
    assert list(idle[idle.what == "curve"].step) == [0, 2, 4]
    assert set(ran(mark=0.0, until_mark=False).steps_taken) == {4}


def test_what_is_kept_of_a_run(ran):
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


def test_only_rotary_is_stretched_and_only_beyond_training(ran):
    table = ran(position="rotary")
    ways = table[table.what == "accuracy"].groupby("way").length.apply(list).to_dict()
    assert ways == {"as trained": [4, 6, 8], "interpolated": [6, 8], "larger base": [6, 8]}
    assert set(ran(position="t5").way.dropna()) == {"as trained"}


def test_an_encoding_that_suits_learns_to_copy(ran):
    easy = {"task": {"kind": "copy", "symbols": 4, "longest": 2}, "position": "t5", "lengths": [2, 4]}
    size = {"steps": 400, "batch": 32, "every": 50, "texts": 64, "learning_rate": 0.02, "model": TINY | {"n_layers": 2}}
    table = ran(**easy | size)
    assert table.in_range.min() >= 0.95 and table.steps_to_mark.max() == table.steps_taken.max() < 400


@pytest.mark.parametrize("order", ["forward", "reversed"])
def test_the_source_of_an_answer_is_that_symbol(cells, order):
    tokens, targets = Copy(symbols=16, longest=5, order=order).of_length(torch.Generator().manual_seed(0), 8, 5)
    (key,) = cells.source_of_answer(order, 5)
    asked = key >= 0
    assert asked.sum() == 5 and torch.equal(tokens[:, key[asked]], targets[:, asked])
