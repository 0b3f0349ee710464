"""The parts of a claim as data, and the cells of a part: the conditions that each get an answer."""

import hashlib
import itertools
import json
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import Literal

import numpy as np
import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from lab.claims.gates import Needs
from lab.claims.rows import Absent, by_seed, selected
from lab.files import project_root
from lab.measure import statistics

DIRECTIONS = ("above", "below", "equal", "not above", "not below")
COMPARISON = (  # the fields that decide an answer; the others are prose
    "measure",
    "how",
    "rows",
    "by",
    "compare",
    "direction",
    "value",
    "over",
    "reference",
    "needs",
    "n",
)


class Part(BaseModel):
    """One question of a claim.

    name       tells the parts of a claim apart, such as "one head"; empty where there is one part
    question   what is compared, in plain words
    measure    the column that is compared; empty where the notebook hands over a number or an
               Interval
    as         difference (first - second), change (first / second - 1, averaged on logarithms),
               mean, ratio (a mean on logarithms), or slope per doubling; each by seed
    rows       {column: value} of the rows that take part
    by         {column: values}: the comparison is made at every combination, each one a cell
    compare    {column: [first, second]}; where first or second is a list, each pair is a cell.
               With `as: slope`, the values along which the slope is taken; empty with `as: mean`
               and `as: ratio`
    direction  above: the effect exceeds value + bar. below: it is less than value - bar.
               equal: it is within bar of value. not above: it is less than value + bar.
               not below: it exceeds value - bar
    value      the number that the sentence names, else 0
    bar        the smallest difference that matters; by default the measure's bar in
               experiments/bars.yaml. Given where the sentence names a number; `because` says why
    over       all ("is", "always"), some ("can", "may"), or count ("usually": no label)
    reference  {column: value} of the arm that must have learned
    needs      the gates, see lab.claims.gates
    n          runs planned for each cell; 0: not planned
    sizes      columns that say where the answer holds
    unit       of the effect
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    name: str = ""
    question: str = Field(min_length=1)
    measure: str = ""
    how: Literal["difference", "change", "mean", "ratio", "slope"] = Field("difference", alias="as")
    rows: dict = {}
    by: dict[str, list] = {}
    compare: dict[str, list] = {}
    direction: Literal[DIRECTIONS]
    value: float = 0.0
    bar: float | None = Field(None, ge=0)
    because: str = ""
    over: Literal["all", "some", "count"] = "all"
    reference: dict = {}
    needs: Needs = Needs()
    n: int = Field(0, ge=0)
    sizes: list[str] = []
    unit: str = ""

    @model_validator(mode="after")
    def _two_sides(self):
        sides = len(next(iter(self.compare.values()), []))
        alone = sides != 0
        wrong = {"mean": alone, "ratio": alone, "slope": sides < 3}.get(self.how, sides != 2)
        if self.measure and (len(self.compare) > 1 or wrong):
            raise ValueError(
                "compare: one column with two arms; "
                "no column for a mean or ratio; three values or more for a slope"
            )
        return self

    @property
    def smallest(self):
        """The smallest difference that matters: the part's own bar, else that of its measure."""
        return self.bar if self.bar is not None else bar_of(self.measure, self.how)["bar"]

    @property
    def reason(self):
        """Why the bar is where it is."""
        if self.bar is not None:
            return self.because
        return bar_of(self.measure, self.how).get("because", "")

    @property
    def band(self):
        """The effects that agree with the claim, (low, high)."""
        return {
            "above": (self.value + self.smallest, inf),
            "below": (-inf, self.value - self.smallest),
            "equal": (self.value - self.smallest, self.value + self.smallest),
            "not above": (-inf, self.value + self.smallest),
            "not below": (self.value - self.smallest, inf),
        }[self.direction]

    @property
    def digest(self):
        """The hash of the comparison; the prose around it is left out."""
        fields = self.model_dump(include=set(COMPARISON)) | {"bar": self.smallest}
        text = json.dumps(fields, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def cells(self, table):
        """[Cell] of a table with a row for each seed and arm.

        A cell without rows names the absent arm. Raises ValueError where the table lacks a column.
        """
        wanted = [self.measure, "seed", *self.rows, *self.by, *self.compare, *self.sizes]
        if missing := [name for name in wanted if name not in table.columns]:
            raise ValueError(
                f"the table has no column {', '.join(missing)}; it has {', '.join(table.columns)}"
            )
        found = []
        for values in itertools.product(*self.by.values()):
            chosen = self.rows | dict(zip(self.by, values, strict=True))
            found += [self.cell(table, chosen, arms) for arms in self._pairs()]
        return found

    def _pairs(self):
        """The values of the compared column in each cell."""
        if not self.compare:
            return [()]
        values = next(iter(self.compare.values()))
        if self.how == "slope":
            return [tuple(values)]
        return list(itertools.product(*map(as_list, values)))

    def cell(self, table, chosen, arms):
        """The comparison of these arms among the rows with the chosen values."""
        column = next(iter(self.compare), None)
        wanted = [chosen | {column: arm} for arm in arms] if column else [chosen]
        sides, absent = [], ""
        for where in wanted:
            try:
                sides.append(selected(table, where))
            except Absent as gone:
                absent = str(gone)
        return Cell(self, table, chosen, column, arms, sides, absent)


@dataclass(frozen=True)
class Cell:
    """One comparison: its part, the whole table, the condition, and the rows of each side.

    `chosen` is the condition, {column: value}; `absent` names an arm without rows.
    """

    part: Part
    table: pd.DataFrame
    chosen: dict
    column: str | None
    arms: tuple
    sides: list
    absent: str = ""

    @property
    def where(self):
        """The condition in words, such as "position t5, n_heads 1 / 8"; "" for an only cell."""
        told = [f"{name} {self.chosen[name]}" for name in self.part.by]
        several = any(
            isinstance(side, list) for sides in self.part.compare.values() for side in sides
        )
        if several and self.part.how != "slope":
            told.append(f"{self.column} {' / '.join(map(str, self.arms))}")
        return ", ".join(told)

    @property
    def rows(self):
        """The rows of all sides, each once."""
        rows = pd.concat(self.sides)
        return rows[~rows.index.duplicated()]

    @property
    def values(self):
        """The measure of each side, a Series indexed by seed."""
        return [by_seed(side, self.part.measure) for side in self.sides]

    @property
    def counted(self):
        """Whether the measure is yes or no in each run, so that counts are shown."""
        return self.part.how in ("difference", "mean") and statistics.outcomes(*self.values)

    def interval(self, level=0.95):
        """The effect with its interval over seeds.

        The t interval of a mean share is clipped to 0 and 1.
        """
        values, how = self.values, self.part.how
        if how == "mean" and self.counted:
            return statistics.share(values[0], level)
        if how == "mean":
            return self._as_share(statistics.mean(values[0], level))
        if how == "ratio":
            logs = statistics.mean(np.log(values[0]), level)
            found = np.exp([logs.effect, logs.low, logs.high, logs.mde]).tolist()
            return statistics.Interval(*found[:3], logs.n, found[3])
        if how == "slope":
            doublings = np.log2(self.arms)
            runs = pd.concat(values, axis=1).to_numpy()
            return statistics.mean([np.polyfit(doublings, run, 1)[0] for run in runs], level)
        if how == "difference":
            return statistics.paired(*values, level)
        return statistics.change(*values, level)

    def _as_share(self, found):
        if self.part.unit.startswith("share") and found.n > 1:
            return statistics.within(found, 0.0, 1.0)
        return found

    def control(self, rows):
        """The same comparison among other rows."""
        return self.part.cell(self.table, self.chosen | rows, self.arms)


def as_list(value):
    return value if isinstance(value, list) else [value]


def bars():
    """{measure: {as: {bar, because, noise}}}: the smallest differences that matter."""
    path = project_root() / "experiments" / "bars.yaml"
    return _read(path, path.stat().st_mtime_ns) if path.exists() else {}


@lru_cache(maxsize=4)
def _read(path, changed):
    return yaml.safe_load(path.read_text("utf-8")) or {}


def bar_of(measure, how):
    """The entry of a measure in `bars`. Raises ValueError where there is none."""
    try:
        return bars()[measure][how]
    except KeyError:
        raise ValueError(
            f"experiments/bars.yaml has no bar for {measure!r} as {how}: write it there, with the "
            "reason, or give the part a `bar` where the sentence names a number"
        ) from None
