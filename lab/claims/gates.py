"""Gates: what a cell must show before it may have an answer, checked on the rows of trials.

A gate is a function of the part, the cell, the table of a sweep of learning rates, and its options
in the ledger. It returns (whether it is passed, what it found in words). A gate that fails puts
only its own cell out of reach. A gate without numbers is an error, never a pass.
"""

import inspect
from dataclasses import dataclass

import pandas as pd
from pydantic import BaseModel, ConfigDict, model_validator

from lab.claims.rows import Absent, NoNumbers, column, numbers, selected

MORE = 3  # times the reference's steps, after which an arm that has not learned is a result


def learned(part, cell, rates, /, *, measure, above=None, below=None):
    """Whether the reference passed its mark in all its runs.

    The mark is `above` or `below`: a number, or the column that holds the mark of each run. Another
    arm may miss the mark only if it had at least three times the steps that the reference needed.
    """
    rows = with_reference(part, cell)
    mark = below if above is None else above
    mark = numbers(rows, mark) if isinstance(mark, str) else pd.Series(float(mark), rows.index)
    values = numbers(rows, measure)
    beyond = mark - values if above is None else values - mark
    reached = beyond > 0 if above is None else beyond >= 0
    reference = selected(rows, part.reference)
    worst = beyond[reference.index].idxmin()
    n, arm = runs(reference, part, measure), named(part.reference) or "all"
    told = (
        f"{measure} {rows[measure][worst]:.4g} against the mark {mark[worst]:.4g} "
        f"in the worst of {n} runs of the reference ({arm})"
    )
    if "steps_to_mark" in rows and reference.steps_to_mark.notna().all():
        steps = numbers(reference, "steps_to_mark")
        ends = " … ".join(dict.fromkeys(f"{end:g}" for end in (steps.min(), steps.max())))
        told += f", after {ends} steps"
    behind = rows[~reached]
    if not reached[reference.index].all() or behind.empty:
        return reached[reference.index].all(), told
    n = runs(behind, part, measure)
    if "steps_to_mark" not in rows:
        return False, told + f"; {n} runs of other arms do not get there"
    times = numbers(behind, "steps").min() / numbers(reference, "steps_to_mark").max()
    told += (
        f"; {n} runs of other arms do not get there in {times:.2g} times the steps "
        "that the reference needed"
    )
    return times >= MORE, told


def headroom(part, cell, rates, /, *, measure="", floor=None, ceiling=None, gap=0.02, capped=""):
    """Whether the arms had room to differ: not all means lie within `gap` of the ceiling or floor.

    `capped` is a column that marks runs cut off by a cap; more than a tenth of them fail the gate.
    """
    told, passed = [], True
    if measure or not capped:
        means = [numbers(side, measure).mean() for side in cell.sides]
        if ceiling is not None and min(means) > ceiling - gap:
            passed = False
        if floor is not None and max(means) < floor + gap:
            passed = False
        told.append(f"{measure} {' / '.join(f'{mean:.3g}' for mean in means)}")
    if capped:
        share = numbers(cell.rows, capped).mean()
        if share > 0.1:
            passed = False
        told.append(f"{share:.0%} of the runs reached the cap")
    return passed, "; ".join(told)


def null(part, cell, rates, /, *, rows):
    """Whether the same comparison among the rows of a control misses what the claim predicts."""
    low, high = part.band
    control = cell.control(rows)
    if control.absent:
        raise Absent(control.absent)
    effect = control.interval().effect
    return not low <= effect <= high, f"{named(rows)}: {effect:.3g}"


def size(part, cell, rates, /, **bounds):
    """Whether the sizes are in the `bounds`, {column: [least, most]}; None is no bound."""
    told, passed = [], True
    for name, (least, most) in bounds.items():
        values = numbers(cell.rows, name)
        if least is not None and values.min() < least or most is not None and values.max() > most:
            passed = False
        inside = " … ".join(dict.fromkeys(f"{value:g}" for value in (values.min(), values.max())))
        ends = [f"{sign} {end:g}" for sign, end in (("≥", least), ("≤", most)) if end is not None]
        told.append(f"{name} {inside} ({', '.join(ends)})")
    return passed, "; ".join(told)


def budget(part, cell, rates, /, *, same):
    """Whether the columns `same`, such as data and steps, are equal for all arms of a seed."""
    rows = cell.rows
    wrong = [name for name in same if (column(rows, name).groupby(rows.seed).nunique() > 1).any()]
    if wrong:
        return False, ", ".join(wrong) + " differ"
    return True, "the same " + ", ".join(same)


def rate(part, cell, rates, /, *, column, by="", best="lowest", within=0.0):
    """Whether each arm ran at its best learning rate, and no best rate is an edge of those tried.

    `rates` is the table of the sweep, with a row for each rate (`column`), arm and seed; its seeds
    are not those of the comparison. Rates whose measure (`by`, by default the compared one) is at
    most `within` worse than the best also count as best. An arm that learns at no rate has no best
    rate, which the gate reports.
    """
    if rates is None:
        raise NoNumbers("no rates were given: judge(claim, table, rates=the table of their sweep)")
    faults, hopeless, chosen = [], [], set()
    for side in cell.sides:
        names = [name for name in (*cell.chosen, cell.column) if name in rates]
        arm = {name: side[name].iloc[0] for name in names}
        swept = selected(rates, arm).groupby(column)[by or part.measure].mean()
        behind = swept - swept.min() if best == "lowest" else swept.max() - swept
        good = set(behind.index[behind <= within])
        used = set(numbers(side, column))
        chosen |= used
        if best == "highest" and not swept.any():
            hopeless.append(f"{named(arm)} learns at none of the {len(swept)} rates tried")
        elif not used <= good:
            faults.append(f"not at its best rate: {named(arm)}")
        elif good <= {swept.index.min(), swept.index.max()}:
            faults.append(f"at the edge of its rates: {named(arm)}")
    told = "rates " + " ".join(f"{value:g}" for value in sorted(chosen))
    return not faults, "; ".join(dict.fromkeys([told, *hopeless, *faults]))


def no_answer(part, cell, rates, /, *, told):
    """Whether no arm sees the answer in its input: the column `told` is 0 in every row."""
    most = numbers(cell.rows, told).max()
    return most == 0, f"{told} {most:g}"


GATES = {  # in the order in which a card shows them
    "learned": learned,
    "headroom": headroom,
    "null": null,
    "size": size,
    "budget": budget,
    "rate": rate,
    "no answer": no_answer,
}


class Needs(BaseModel):
    """The gates of a part, {name: options}, and whether its answer holds for one machine only."""

    model_config = ConfigDict(extra="allow", frozen=True)

    machine: bool = False

    @model_validator(mode="after")
    def _gates_take_their_options(self):
        for name, options in self.gates.items():
            if name not in GATES:
                raise ValueError(f"{name}: there is no such gate; there are {', '.join(GATES)}")
            if not options or any(value in ("", [], {}) for value in options.values()):
                raise ValueError(f"{name}: give its options, each with a value")
            if name == "learned" and len({"above", "below"} & set(options)) != 1:
                raise ValueError(f"{name}: give either `above` or `below`")
            if name == "headroom" and not {"floor", "ceiling", "capped"} & set(options):
                raise ValueError("headroom: give `floor` or `ceiling` of a measure, or `capped`")
            try:
                inspect.signature(GATES[name]).bind(None, None, None, **options)
            except TypeError as error:
                raise ValueError(f"{name}: {error}") from None
        return self

    @property
    def gates(self):
        """{gate: its options}, without `machine`."""
        return self.model_extra

    def check(self, part, cell, rates=None):
        """[Passed] of every gate of the part, in the order of `GATES`.

        Raises Absent where a control or the reference has no row, and NoNumbers where a gate lacks
        its columns.
        """
        found = []
        for name in filter(self.gates.get, GATES):
            try:
                passed, told = GATES[name](part, cell, rates, **self.gates[name])
            except Absent:
                raise
            except (NoNumbers, LookupError) as error:
                raise NoNumbers(f"gate {name}: {error.args[0]}") from None
            found.append(Passed(name, bool(passed), told))
        return found


@dataclass(frozen=True)
class Passed:
    """The result of a gate; where `passed` is False, the cell is out of reach."""

    gate: str
    passed: bool
    told: str

    def __str__(self):
        return f"{'✓' if self.passed else '✗'} {self.gate}: {self.told}"


def with_reference(part, cell):
    """The rows of a cell, and those of the reference where it is not one of the cell's sides.

    Such reference rows are narrowed to the cell's condition, column by column, while rows remain.
    """
    rows = cell.rows
    try:
        selected(rows, part.reference)
        return rows
    except Absent:
        reference = selected(cell.table, part.reference)
    for name, value in cell.chosen.items():
        same = reference[reference[name] == value]
        if not same.empty:
            reference = same
    rows = pd.concat([rows, reference])
    return rows[~rows.index.duplicated()]


def runs(rows, part, measure):
    """The number of runs in the rows. A run is one seed under one condition.

    Several rows of a run, and copies of the reference beside every other arm, count once. A column
    of conditions along which the measure never differs, such as lengths at which one model is
    tested, does not multiply runs.
    """
    names = dict.fromkeys(["seed", *part.reference, *part.by])
    known = [name for name in names if name in rows]
    for name in part.by:
        others = [other for other in known if other != name]
        if name not in known or not others:
            continue
        if rows.groupby(others, dropna=False)[measure].nunique().max() <= 1:
            known = others
    return len(rows.drop_duplicates([*dict.fromkeys([*known, measure])]))


def named(chosen):
    """{column: value} in words."""
    return ", ".join(f"{name} {value}" for name, value in chosen.items())
