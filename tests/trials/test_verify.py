"""Recorded trials, run again: what must be equal, on the arithmetic that recorded them and on another one."""

import pytest
from helpers import noisy

from lab.trials import arithmetic, verify


def body_of(here, **fields):
    """A finished trial as the record has it."""
    labels = {"threads": 1, "arithmetic": arithmetic.digest("cpu", 1)}
    about = {"trial": "noisy", "parameters": {"seed": 0, "width": 4, "steps": 40}, "labels": labels}
    return about | here | fields


@pytest.fixture
def recorded():
    parameters = {"seed": 0, "width": 4, "steps": 40}
    return body_of(verify.run_trial(noisy, parameters, device="cpu", threads=1))


def test_on_the_same_arithmetic_every_digit_is_compared(recorded):
    assert verify.of_trial(noisy, recorded).found == verify.EQUAL
    recorded["columns"]["loss"] += 2**-30
    result = verify.of_trial(noisy, recorded)
    assert result.differs and f"recorded {recorded['columns']['loss']!r}" in str(result)


def test_on_another_arithmetic_the_first_steps_decide(recorded):
    recorded["labels"]["arithmetic"] = "another"
    recorded["columns"]["loss"] += 0.5
    assert verify.of_trial(noisy, recorded).found == verify.ROUNDING, "the end of a training may round anywhere"
    recorded["curve"][1][1] *= 1.01
    assert verify.of_trial(noisy, recorded).differs


def test_a_trial_that_fails_here_differs(recorded):
    def noisy(seed, width, steps):
        raise ValueError("no such thing")

    result = verify.of_trial(noisy, recorded)
    assert result.differs and "fails here: ValueError: no such thing" in str(result)


CURVE = [[step, 2.0 - step / 10] for step in (0, 1, 2, 9, 16, 32)]


@pytest.mark.parametrize(
    "step, by, batch, exact, fault",
    [
        (0, 0, "b", True, ""),
        (0, 1e-6, "b", True, "loss"),
        (0, 1e-6, "b", False, ""),
        (0, 1e-4, "b", False, "loss"),
        (9, 1e-4, "b", False, ""),
        (9, 1e-2, "b", False, "loss"),
        (16, 0.5, "b", False, ""),
        (16, 1e-6, "b", True, "loss"),
        (9, None, "b", False, "diverges at step 9"),
        (16, None, "b", False, ""),
        (0, 0, "c", True, "trains on other data"),
        (0, 1e-6, "c", False, ""),
    ],
)
def test_what_a_training_may_differ_by(step, by, batch, exact, fault):
    """On another arithmetic drawn numbers round otherwise too: losses then tell whether the data are the same."""
    here = [[at, loss] for at, loss in CURVE]
    place = next(i for i, (at, _) in enumerate(CURVE) if at == step)
    here[place][1] = None if by is None else CURVE[place][1] * (1 + by)
    found = verify.of_training({"curve": CURVE, "batch": "b"}, {"curve": here, "batch": batch}, exact=exact)
    assert found.startswith(fault) and bool(found) is bool(fault)


def test_another_first_batch_is_found_where_no_losses_tell():
    one = {"curve": CURVE[:1], "batch": "b"}
    assert verify.of_training(one, one | {"batch": "c"}, exact=False) == "trains on other data"


@pytest.mark.parametrize(
    "value, differs", [(1.5 * 1.1, True), (1.5 * 1.001, False), (None, True)], ids=["another", "rounded", "gone"]
)
def test_numbers_that_no_training_gave_may_round(value, differs):
    recorded = {"n": 1, "columns": {"value": 1.5}}
    assert bool(verify.of_numbers(recorded, {"n": 1, "columns": {"value": value}})) is differs


def test_one_count_in_many_that_moves_by_an_item_does_not_differ():
    columns = {f"x{i}": float(i) for i in range(20)}
    recorded = {"n": 1, "columns": columns}
    assert verify.of_numbers(recorded, {"n": 1, "columns": columns | {"x7": 8.0}}) == ""
    assert verify.of_numbers(recorded, {"n": 2, "columns": columns}) == "2 rows, recorded 1"
