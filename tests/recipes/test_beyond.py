"""The trial of lesson 1.7: early stopping at the mark, and complete rows."""

import pandas as pd
import pytest
import torch
from definitions import definitions

from lab.tasks.lengths import Copy

TINY = {"d_model": 16, "n_layers": 1, "n_heads": 2}
COPY = {"kind": "copy", "symbols": 4, "longest": 4}
SUMS = {"kind": "sums", "longest": 1}
USUAL = {"seed": 0, "task": COPY, "position": "learned", "model": TINY, "steps": 4, "batch": 4, "learning_rate": 0.004,
         "lengths": [4, 6, 8], "mark": 0.95, "texts": 8, "every": 2}  # fmt: skip


@pytest.fixture(scope="module")
def cells():
    with definitions("07", "beyond") as module:
        yield module


@pytest.fixture
def run_beyond(cells):
    return lambda **changes: pd.DataFrame(cells.beyond(**USUAL | changes))


def test_run_stops_at_the_mark_or_after_its_steps(run_beyond):
    assert set(run_beyond(mark=0.0).steps_taken) == {0} and set(run_beyond(mark=0.0).steps_to_mark) == {0}
    unreached = run_beyond()
    assert set(unreached.steps_taken) == {4} and unreached.steps_to_mark.isna().all()
    assert list(unreached[unreached.what == "curve"].step) == [0, 2, 4]
    assert set(run_beyond(mark=0.0, until_mark=False).steps_taken) == {4}


def test_run_returns_complete_rows(run_beyond):
    table = run_beyond()
    assert set(table.what) == {"curve", "accuracy", "attention", "map", "cosine"}
    assert list(table[table.what == "accuracy"].length) == [4, 6, 8]
    assert list(table[table.what == "attention"].length) == [4, 6, 8]
    assert len(table[table.what == "cosine"]) == Copy(symbols=4, longest=4).length ** 2
    maps = table[table.what == "map"]
    assert maps.value.between(0, 1).all() and (maps.i >= maps.j).all() and maps.i.max() == 12
    assert set(run_beyond(seed=1).what) == {"curve", "accuracy", "attention"}
    assert set(run_beyond(task=SUMS, lengths=[1, 2], position="none").what) == {"curve", "accuracy"}
    assert table.order_before.notna().all() and run_beyond(position="none").order_before.isna().all()


def test_only_rotary_is_rescaled_and_only_beyond_the_training_length(run_beyond):
    table = run_beyond(position="rotary")
    lengths_by_way = table[table.what == "accuracy"].groupby("way").length.apply(list).to_dict()
    assert lengths_by_way == {"as trained": [4, 6, 8], "interpolated": [6, 8], "larger base": [6, 8]}
    assert set(run_beyond(position="t5").way.dropna()) == {"as trained"}


def test_t5_learns_to_copy(run_beyond):
    easy = {"task": {"kind": "copy", "symbols": 4, "longest": 2}, "position": "t5", "lengths": [2, 4]}
    size = {"steps": 400, "batch": 32, "every": 50, "texts": 64, "learning_rate": 0.02, "model": TINY | {"n_layers": 2}}
    table = run_beyond(**easy | size)
    assert table.in_range.min() >= 0.95 and table.steps_to_mark.max() == table.steps_taken.max() < 400


@pytest.mark.parametrize("order", ["forward", "reversed"])
def test_source_of_an_answer_is_the_position_of_the_copied_symbol(cells, order):
    tokens, targets = Copy(symbols=16, longest=5, order=order).of_length(torch.Generator().manual_seed(0), 8, 5)
    (key,) = cells.source_of_answer(order, 5)
    has_target = key >= 0
    assert has_target.sum() == 5 and torch.equal(tokens[:, key[has_target]], targets[:, has_target])
