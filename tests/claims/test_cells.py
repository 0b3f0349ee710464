"""Rows become cells, and cells an effect with its interval."""

import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError

from lab.claims import cells
from lab.claims.cells import Part
from lab.measure import statistics

LOSS = {1: 2.2, 2: 2.1, 4: 2.0, 8: 2.0}
TABLE = pd.DataFrame(
    {"seed": seed, "n_heads": h, "position": p, "loss": loss + 0.01 * seed * (1 + (h == 1)) + (p == "t5")}
    for p in ("rotary", "t5") for h, loss in LOSS.items() for seed in (3, 1, 2)
)  # fmt: skip


def part(**fields):
    about = {"question": "q", "direction": "above", "bar": 0, "measure": "loss", "rows": {"position": "t5"}}
    return Part(**about | fields)


def test_a_difference_is_paired_by_seed_whatever_the_order_of_rows():
    (cell,) = part(compare={"n_heads": [1, 8]}).cells(TABLE)
    shuffled = TABLE.sample(frac=1, random_state=1)
    (again,) = part(compare={"n_heads": [1, 8]}).cells(shuffled)
    wanted = statistics.mean([0.2 + 0.01 * seed for seed in (1, 2, 3)])
    assert cell.interval().effect == pytest.approx(wanted.effect) and cell.interval().low == pytest.approx(wanted.low)
    assert again.interval().effect == pytest.approx(wanted.effect) and again.interval().high == pytest.approx(
        wanted.high
    )


def test_a_change_is_the_quotient_less_one():
    (cell,) = part(**{"as": "change"}, compare={"n_heads": [1, 8]}).cells(TABLE)
    logs = [np.log((3.2 + 0.02 * seed) / (3.0 + 0.01 * seed)) for seed in (1, 2, 3)]
    wanted = statistics.mean(logs)
    assert cell.interval().effect == pytest.approx(np.expm1(wanted.effect))
    assert cell.interval().high == pytest.approx(np.expm1(wanted.high))


def test_a_mean_and_a_slope():
    (cell,) = part(**{"as": "mean"}, rows={"position": "t5", "n_heads": 8}).cells(TABLE)
    assert cell.interval().effect == pytest.approx(3.02) and cell.arms == ()
    (cell,) = part(**{"as": "slope"}, compare={"n_heads": [1, 2, 4]}).cells(TABLE[TABLE.seed == 1])
    assert cell.interval().effect == pytest.approx(-0.105), "a doubling"


def test_outcomes_have_the_intervals_of_shares():
    rows = [{"seed": seed, "arm": arm, "learnt": arm == "one"} for seed in range(5) for arm in ("one", "other")]
    table = pd.DataFrame(rows)
    (cell,) = part(measure="learnt", rows={}, compare={"arm": ["one", "other"]}).cells(table)
    assert cell.interval() == statistics.share_difference([1] * 5, [0] * 5) and cell.interval().low < 0.4
    (mean,) = part(**{"as": "mean"}, measure="learnt", rows={"arm": "one"}).cells(table)
    assert mean.interval() == statistics.share([1] * 5) and mean.interval().low < 0.6


def test_every_combination_is_a_cell_of_its_own():
    found = part(rows={}, by={"position": ["rotary", "t5"]}, compare={"n_heads": [[1, 2], 8]}).cells(TABLE)
    assert [cell.where for cell in found] == [
        "position rotary, n_heads 1 / 8", "position rotary, n_heads 2 / 8",
        "position t5, n_heads 1 / 8", "position t5, n_heads 2 / 8",
    ]  # fmt: skip
    assert all(len(cell.rows) == 2 * 3 for cell in found)
    (only,) = part(compare={"n_heads": [1, 8]}).cells(TABLE)
    assert only.where == "", "the only cell needs no words"


def test_an_arm_that_did_not_run_is_absent_from_its_cell_alone():
    found = part(compare={"n_heads": [[1, 32], 8]}).cells(TABLE)
    assert [cell.absent for cell in found] == ["", "n_heads 32"]
    with pytest.raises(ValueError, match="no column accuracy; it has seed"):
        part(measure="accuracy", compare={"n_heads": [1, 8]}).cells(TABLE)


def test_a_seed_with_two_rows_and_seeds_that_differ_are_errors():
    twice = pd.concat([TABLE, TABLE], ignore_index=True)
    with pytest.raises(ValueError, match="several rows of loss"):
        part(compare={"n_heads": [1, 8]}).cells(twice)[0].interval()
    gone = TABLE[(TABLE.seed != 2) | (TABLE.n_heads != 8)]
    for how in ("difference", "change"):
        with pytest.raises(ValueError):
            part(**{"as": how}, compare={"n_heads": [1, 8]}).cells(gone)[0].interval()


@pytest.mark.parametrize(
    "fields",
    [{"compare": {"n_heads": [1]}}, {"compare": {"n_heads": [1, 8], "position": ["t5", "rotary"]}}, {"compare": {}},
     {"as": "mean", "compare": {"n_heads": [1, 8]}}, {"as": "slope", "compare": {"n_heads": [1, 8]}}],
)  # fmt: skip
def test_sides_that_say_nothing_are_refused(fields):
    with pytest.raises(ValidationError, match="compare: one column"):
        part(**fields)


@pytest.mark.parametrize("values", [(0.999, 0.998, 1.0), (0.0, 0.001, 0.003)])
def test_the_interval_of_a_mean_share_ends_at_0_and_1(values):
    """A difference of shares has a unit of its own, and is not cut."""
    table = pd.DataFrame({"seed": range(3), "share": values})
    about = {"measure": "share", "as": "mean", "rows": {}}
    plain = part(**about, unit="difference of shares").cells(table)[0].interval()
    cut = part(**about, unit="share of heads").cells(table)[0].interval()
    assert plain == statistics.mean(values)
    assert (cut.low, cut.high) == (max(plain.low, 0), min(plain.high, 1)) != (plain.low, plain.high)


# Bars and hashes


@pytest.fixture
def bars(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "project_root", lambda: tmp_path)
    (tmp_path / "experiments").mkdir()
    path = tmp_path / "experiments" / "bars.yaml"
    path.write_text("loss: {change: {bar: 0.01, because: one percent}}")
    return path


def test_the_bar_of_a_measure_holds_for_every_part_that_names_none(bars):
    common = {"as": "change", "bar": None, "compare": {"n_heads": [1, 8]}}
    assert part(**common).band == (0.01, np.inf)
    assert part(**common, direction="not above").band == (-np.inf, 0.01)
    assert part(**common, direction="below").band == (-np.inf, -0.01)
    assert part(**common, direction="not below").band == (-0.01, np.inf)
    assert part(**common, direction="equal", value=1).band == (0.99, 1.01)
    assert part(**common).reason == "one percent"
    own = part(**common | {"bar": 0.5, "because": "the sentence says half"})
    assert own.band == (0.5, np.inf) and own.reason == "the sentence says half"
    with pytest.raises(ValueError, match="bars.yaml has no bar for 'loss' as difference"):
        part(bar=None, compare={"n_heads": [1, 8]}).smallest  # noqa: B018


def test_the_hash_is_of_what_is_compared_and_not_of_its_words(bars):
    common = {"as": "change", "bar": None, "compare": {"n_heads": [1, 8]}}
    first = part(**common).digest
    assert part(**common, question="other words", sizes=["n_heads"]).digest == first
    assert part(**common, over="some").digest != first
    assert part(**common, needs={"budget": {"same": ["steps"]}}).digest != first
    bars.write_text("loss: {change: {bar: 0.02, because: two percent}}")
    assert part(**common).digest != first
