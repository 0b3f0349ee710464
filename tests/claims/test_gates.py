"""Each gate lets through and stops; one that has no numbers is an error.

Also of `lab.claims.rows`.
"""

import pandas as pd
import pytest
from pydantic import ValidationError

from lab.claims.cells import Part
from lab.claims.gates import Needs, runs
from lab.claims.rows import Absent, NoNumbers

SAME = {"steps": 600, "data": "a", "seen": 0.0, "told": 0, "rate": 0.01, "width": 64}


def part(needs, **fields):
    about = {"question": "q", "direction": "above", "bar": 0.1, "measure": "accuracy", "needs": needs}
    about |= {"compare": {"n_heads": [4, 1]}, "reference": {"n_heads": 4}}
    return Part(**about | fields)


def table(few=0.55, many=1.0, **columns):
    """Two seeds of one and of four heads; a column is a value, or one for each arm."""
    rows = []
    for i, (h, accuracy) in enumerate(((1, few), (4, many))):
        extra = {name: v[i] if isinstance(v, tuple) else v for name, v in (SAME | columns).items()}
        rows += [{"seed": seed, "n_heads": h, "accuracy": accuracy} | extra for seed in (0, 1)]
    return pd.DataFrame(rows)


def gate(needs, frame, rates=None, **fields):
    about = part(needs, **fields)
    (cell,) = about.cells(frame)
    (found,) = about.needs.check(about, cell, rates)
    return found


LEARNED = {"learned": {"measure": "accuracy", "above": 0.95}}
BELOW = {"learned": {"measure": "loss", "below": "mark"}}


def test_the_reference_has_to_reach_its_mark_in_every_run():
    assert gate(LEARNED, table(few=0.96, many=0.97)).passed
    assert not gate(LEARNED, table(few=0.99, many=0.94)).passed
    one = table(few=0.99)
    one.loc[3, "accuracy"] = 0.9
    stopped = gate(LEARNED, one)
    assert not stopped.passed and "0.9 against the mark 0.95 in the worst of 2 runs" in stopped.told


def test_an_arm_behind_is_a_result_where_it_had_three_times_the_steps():
    assert gate(LEARNED, table(steps_to_mark=(None, 200))).passed
    assert not gate(LEARNED, table(steps_to_mark=(None, 210))).passed
    untold = gate(LEARNED, table())
    assert not untold.passed and untold.told.endswith("2 runs of other arms do not get there"), "nor who cannot tell"


def test_a_mark_may_be_a_column_and_lower_may_be_better():
    losses = {"loss": (1.8, 1.7), "mark": (1.9, 1.75)}
    assert gate(BELOW, table(**losses)).passed
    assert not gate(BELOW, table(**losses | {"mark": (1.9, 1.7)})).passed, "at the mark is not below it"


HEADROOM = {"headroom": {"measure": "accuracy", "ceiling": 1.0, "floor": 0.1}}


@pytest.mark.parametrize("few, many, passed", [(0.55, 1.0, True), (1.0, 1.0, False), (0.985, 0.995, False),
                                               (0.1, 0.11, False), (0.1, 0.5, True), (0.97, 1.0, True)])  # fmt: skip
def test_arms_may_not_sit_together_at_an_end(few, many, passed):
    assert gate(HEADROOM, table(few, many)).passed == passed


def test_no_cap_may_cut_more_than_a_tenth_of_the_runs():
    assert gate({"headroom": {"capped": "cut"}}, table(cut=(0, 0))).passed
    stopped = gate({"headroom": {"capped": "cut"}}, table(cut=(1, 0)))
    assert not stopped.passed and "50% of the runs" in stopped.told


def test_a_control_must_not_show_what_is_predicted():
    null = {"null": {"rows": {"stage": "start"}}}

    def both(start):
        return pd.concat([table(stage="end"), table(*start, stage="start")], ignore_index=True)

    about = {"rows": {"stage": "end"}}
    assert gate(null, both((0.5, 0.52)), **about).passed
    stopped = gate(null, both((0.5, 0.7)), **about)
    assert not stopped.passed and stopped.told == "stage start: 0.2"


def test_sizes_are_those_that_the_sentence_speaks_of():
    size = {"size": {"d_head": [8, None], "n_heads": [None, 4]}}
    assert gate(size, table(d_head=(64, 16))).passed
    stopped = gate(size, table(d_head=(64, 4)))
    assert not stopped.passed and "d_head 4 … 64 (≥ 8)" in stopped.told
    assert not gate({"size": {"n_heads": [None, 3]}}, table()).passed


BUDGET = {"budget": {"same": ["data", "steps"]}}
RATE = {"rate": {"column": "rate", "best": "highest"}}
RATES = pd.DataFrame({"n_heads": h, "rate": rate, "seed": 1000, "accuracy": 1 - abs(rate - 0.01)}
                     for h in (1, 4) for rate in (0.005, 0.01, 0.02))  # fmt: skip


def test_budgets_are_equal():
    assert gate(BUDGET, table()).passed
    assert not gate(BUDGET, table(steps=(600, 900))).passed
    assert not gate(BUDGET, table(data=("a", "b"))).passed


def test_rates_are_the_best_of_a_grid_that_reaches_further():
    assert gate(RATE, table(), rates=RATES).passed
    other = gate(RATE, table(rate=0.02), rates=RATES)
    assert not other.passed and "not at its best rate: n_heads 4; not at its best rate: n_heads 1" in other.told
    edge = gate(RATE, table(rate=(0.01, 0.02)), rates=RATES[(RATES.n_heads == 1) | (RATES.rate != 0.01)].assign(
        accuracy=lambda t: t.accuracy.where((t.n_heads == 1) | (t.rate != 0.02), 2)))  # fmt: skip
    assert not edge.passed and "at the edge of its rates: n_heads 4" in edge.told
    alike = RATES.assign(accuracy=1.0)
    assert gate(RATE, table(rate=0.005), rates=alike).passed, "all do equally well"
    near = {"rate": RATE["rate"] | {"within": 0.006}}
    assert gate(near, table(rate=0.005), rates=RATES).passed
    nowhere = RATES.assign(accuracy=RATES.accuracy.where(RATES.n_heads == 4, 0))
    found = gate(RATE, table(rate=0.01), rates=nowhere)
    assert found.passed and "n_heads 1 learns at none of the 3 rates tried" in found.told
    with pytest.raises(NoNumbers, match="no rates were given"):
        gate(RATE, table())


def test_no_arm_is_told_the_answer():
    assert gate({"no answer": {"told": "told"}}, table()).passed
    assert not gate({"no answer": {"told": "told"}}, table(told=(0, 1))).passed


def test_the_reference_may_be_none_of_the_sides():
    found = gate(LEARNED, table(few=0.5, many=0.97), compare={"n_heads": [1, 1]}, reference={"n_heads": 4})
    assert "0.97 against the mark 0.95 in the worst of 2 runs" in found.told


def test_the_steps_that_the_reference_needed_are_told():
    found = gate(LEARNED, table(few=0.96, many=0.97, steps_to_mark=(300, 200)))
    assert found.told.endswith("after 200 steps")


@pytest.mark.parametrize("needs", [LEARNED | {"learned": {"measure": "score", "above": 1}}, BELOW,
                                   {"headroom": {"capped": "cut"}}, {"size": {"d_head": [8, None]}},
                                   {"budget": {"same": ["flops"]}}, {"no answer": {"told": "given"}}],
                         ids=lambda n: next(iter(n)))  # fmt: skip
def test_a_gate_without_numbers_is_an_error(needs):
    with pytest.raises((NoNumbers, KeyError), match="score|mark|cut|d_head|flops|given"):
        gate(needs, table())


def test_a_control_or_a_reference_without_a_row_is_absent_as_an_arm_is():
    with pytest.raises(Absent, match="n_heads 16"):
        gate(LEARNED, table(), reference={"n_heads": 16})
    with pytest.raises(Absent, match="stage start"):
        gate({"null": {"rows": {"stage": "start"}}}, table(stage="end"))


def test_a_hole_is_no_number():
    with pytest.raises(NoNumbers, match="gate learned: column accuracy has missing values"):
        gate(LEARNED, table(few=None))


@pytest.mark.parametrize("needs", [{"learned": {"measure": "a"}}, {"learned": {"measure": "a", "above": 1, "below": 2}},
                                   {"headroom": {}}, {"headroom": {"measure": "a"}}, {"no answer": {}},
                                   {"null": {"rows": {}}}, {"lerned": {}}], ids=str)  # fmt: skip
def test_gates_that_say_nothing_are_refused(needs):
    with pytest.raises(ValidationError):
        Needs(**needs)


def test_rows_of_one_run_count_once():
    """A column of conditions in which the measure never differs makes no further runs."""
    lengths = [8, 16, 32]
    about = part(LEARNED, by={"length": lengths})
    alike = pd.concat([table(length=length, few=0.9, many=0.97) for length in lengths], ignore_index=True)
    assert runs(alike[alike.n_heads == 4], about, "accuracy") == 2
    other = [table(length=length, few=0.9, many=0.96 + length / 1000) for length in lengths]
    other = pd.concat(other, ignore_index=True)
    assert runs(other[other.n_heads == 4], about, "accuracy") == 6
