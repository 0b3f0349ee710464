"""The rules that turn measurements into answers, a line for each cell, and answers into labels."""

from math import inf, isfinite, log, log1p, nan

import pandas as pd

from lab.claims.claims import EXACT, Line
from lab.claims.rows import Absent
from lab.measure import statistics

YES, UNDECIDED, ANSWERED = "yes", "undecided", "answered"
NO, OTHER_WAY, TOO_SMALL = "no", "no, the other way", "no, too small to matter"
NOT_RUN, OUT_OF_REACH = "not run at these values", "out of reach"
NOTHING = statistics.Interval(nan, nan, nan, 0)  # where a compared number is not finite
MOST = 100  # the largest number of runs that a card suggests for a cell
CLOSE = 2e-15  # relative rounding error within which numbers are equal


def judge(claim, measured, *, rates=None, **where):
    """The lines of a claim, one for each cell of each part.

    measured  a DataFrame with a row for each seed and arm, or {name of a part: DataFrame}. A part
              without `measure` takes an Interval. An exact statement takes a number, which checks
              it, or a sympy expression, which proves it
    rates     the table of a sweep of learning rates, for the gate `rate`
    where     the fields figure, table and note of the lines

    Raises ValueError where the claim has no parts, TypeError where a part gets another type, and
    NoNumbers where a gate lacks columns.
    """
    if not claim.parts:
        raise ValueError(f"claim {claim.id} has no comparison in the ledger: write one first")
    lines = []
    for part in claim.parts:
        given = measured[part.name] if isinstance(measured, dict) else measured
        lines += _of_part(claim, part, given, rates, where)
    return lines


def _of_part(claim, part, measured, rates, where):
    row = claim.row(part) | where
    is_table = isinstance(measured, pd.DataFrame)
    if bool(part.measure) != is_table:
        wanted = "a table" if part.measure else "a number or an Interval"
        raise TypeError(f"claim {claim.id} wants {wanted}, not {type(measured).__name__}")
    cells = part.cells(measured) if is_table else []
    if is_table:
        lines = [_of_cell(claim, part, cell, rates, row) for cell in cells]
    elif isinstance(measured, statistics.Interval):
        lines = [_of_interval(claim, part, measured, row)]
    else:
        lines = [_of_number(claim, part, measured, row)]
    return labelled(claim, part, lines, cells)


def _of_number(claim, part, measured, row):
    """The line of an exact statement: symbols prove it, numbers check it, either disproves it."""
    if claim.kind not in EXACT:
        raise TypeError(
            f"claim {claim.id} is a {claim.kind}: it wants an Interval, not the number {measured}"
        )
    value = float(measured)
    if value != value:
        raise ValueError(f"claim {claim.id}: nothing was measured, the number is nan")
    low, high = part.band
    room = CLOSE * max(1.0, abs(part.value))
    if not low - room <= value <= high + room:
        answer = "disproved"
    elif type(measured).__module__.startswith("sympy"):
        answer = "proved"
    else:
        answer = "checked"
    return Line(**row | {"answer": answer, "effect": value})


def _of_interval(claim, part, interval, row):
    answer = decided(claim, part, interval)
    notes = [row.get("note", "")]
    if answer == UNDECIDED:
        notes.append(_more_runs(part, interval))
    found = _ends(interval) | {"answer": answer, "note": "; ".join(filter(None, notes))}
    return Line(**row | found)


def _ends(interval):
    """{field of a line: value} from an interval."""
    return {
        "effect": interval.effect,
        "low": interval.low,
        "high": interval.high,
        "n": interval.n,
    }


def _of_cell(claim, part, cell, rates, row):
    notes = [row.get("note", "")]
    row = row | {"where": cell.where}
    try:
        if cell.absent:
            raise Absent(cell.absent)
        gates = part.needs.check(part, cell, rates)
    except Absent as gone:  # an arm, or the control of a gate
        notes.insert(0, f"without {gone}")
        missing = {"answer": NOT_RUN, "note": "; ".join(filter(None, notes))}
        return Line(**row | missing | {"figure": "", "table": ""})
    found = computed(cell.interval)
    answer = decided(claim, part, found)
    if answer == YES and cell.counted and part.how == "difference":
        answer = _exactly(cell, answer)
    if cell.counted:
        notes.insert(0, " / ".join(f"{int(side.sum())} of {len(side)}" for side in cell.values))
    if not all(gate.passed for gate in gates):
        answer = OUT_OF_REACH
    elif answer == UNDECIDED:
        notes.insert(0, _more_runs(part, found))
    told = {
        "answer": answer,
        "gates": "; ".join(map(str, gates)),
        "sizes": _sizes(cell.rows, part.sizes),
        "note": "; ".join(filter(None, notes)),
    }
    return Line(**row | _ends(found) | told)


def decided(claim, part, interval):
    """The answer that an interval gives; for a question, `answered`.

    An interval that touches the bar is not beyond it, except for `equal`, whose bounds count.
    """
    low, high = part.band
    if interval is NOTHING:
        return UNDECIDED
    if claim.kind == "question":
        return ANSWERED
    touches = part.direction != "equal" and (interval.low == low or interval.high == high)
    if low <= interval.low and interval.high <= high and not touches:
        return YES
    if interval.high >= low and interval.low <= high:
        return UNDECIDED
    compares_arms = part.how not in ("mean", "ratio") and part.measure
    if part.direction == "above" and compares_arms:
        return OTHER_WAY if interval.high < part.value else TOO_SMALL
    if part.direction == "below" and compares_arms:
        return OTHER_WAY if interval.low > part.value else TOO_SMALL
    return NO


def _exactly(cell, answer):
    """The answer, or undecided where Boschloo's exact test (1970) of the counts has p >= 0.05."""
    counts = [[int(side.sum()), int((1 - side.astype(int)).sum())] for side in cell.values]
    return answer if statistics.exact_p(counts) < 0.05 else UNDECIDED


def labelled(claim, part, lines, cells=()):
    """The lines of a part with its label and the numbers of yes, of no, and of all cells."""
    yes = sum(line.answer == YES for line in lines)
    no = sum(line.answer.startswith(NO + ",") or line.answer == NO for line in lines)
    counts = {"yes": yes, "no": no, "cells": len(lines)}
    label = label_of(part.over, [line.answer for line in lines])
    if rests_on_one(label) and len(lines) > 1 and not _stands(claim, part, lines, cells, label):
        label = UNDECIDED
    return [line.model_copy(update=counts | {"label": label}) for line in lines]


def label_of(over, answers):
    """The label of a part from the answers of its cells and its quantifier `over`."""
    others = set(answers) - {YES, UNDECIDED, NO, OTHER_WAY, TOO_SMALL}
    if len(set(answers)) == 1 and others:
        return answers[0]  # proved, checked, disproved, answered, out of reach, not run
    yes = sum(answer == YES for answer in answers)
    no = sum(answer in (NO, OTHER_WAY, TOO_SMALL) for answer in answers)
    if over == "count":
        return "counted"
    if no == len(answers):
        return "refuted"
    if over == "some":
        return "supported" if yes else UNDECIDED
    if yes == len(answers):
        return "supported"
    return "not everywhere" if no else UNDECIDED


def rests_on_one(label):
    """Whether a label may rest on one of several cells, so that it needs a correction.

    These are `supported` over some cells and `not everywhere`. `supported` and `refuted` over all
    cells are intersection-union tests and need no correction.
    """
    return label in ("supported", "not everywhere")


def _stands(claim, part, lines, cells, label):
    """Whether a cell of K keeps the answer that carries the label at the level 1 - .05 / K."""
    if part.over == "all" and label == "supported":
        return True
    carries = (YES,) if label == "supported" else (NO, OTHER_WAY, TOO_SMALL)
    for line, cell in zip(lines, cells, strict=True):
        if line.answer not in carries:
            continue
        if decided(claim, part, cell.interval(1 - 0.05 / len(lines))) in carries:
            return True
    return False


def _more_runs(part, interval):
    """How many runs would decide, in words, or why the effect has no interval."""
    if interval is NOTHING:
        return "some of the numbers compared are not finite"
    if interval.n == 1:
        return "one seed has no interval"
    ends = [end for end in part.band if abs(end) < inf]
    near = min(ends, key=lambda end: abs(end - interval.effect))
    if part.how in ("change", "ratio") and part.measure:
        scale = log1p if part.how == "change" else log
        logs = [scale(x) for x in (interval.effect, interval.low, interval.high)]
        interval, near = statistics.Interval(*logs, interval.n, scale(interval.mde)), scale(near)
    if not isfinite(interval.mde):
        return ""  # the interval of a share gives no spread
    n = statistics.enough(interval, near, MOST)
    if n is None:
        return f"not within {MOST} runs"
    return f"{n} runs would decide, if mean and spread stay"


def computed(measured):
    """The result of the function `measured`; NOTHING where it raises NotFinite."""
    try:
        return measured()
    except statistics.NotFinite:
        return NOTHING


def _sizes(rows, columns):
    told = [f"{name} {' '.join(map(str, sorted(rows[name].unique())))}" for name in columns]
    if sittings := sorted(rows.sitting.dropna().unique()) if "sitting" in rows else ():
        when = " ".join(sittings)
        one = len(sittings) == 1
        told.append(f"one sitting {when}" if one else f"two sittings {when}")
    return ", ".join(told)
