"""Which rows of a table a claim compares, and the effect that they show."""

import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, model_validator

from lab.measure import statistics


class Absent(LookupError):
    """An arm that the claim compares has no row."""


class NoNumbers(ValueError):
    """A gate that a claim needs has no numbers in the table that it is judged from."""


class Arms(BaseModel):
    """The comparison of a claim as data.

    measure  column that is compared
    rows     {column: value}: the rows that take part
    each     {column: values}: the comparison is made at every one of them, and the claim has to hold at all
    compare  {column: [first, second]}: arms; a list as first or second is several arms, and each has to hold. With
             `as: slope` the values along which the slope per doubling is taken; empty with `as:
             mean`
    as       difference (first - second), change (first / second - 1), mean, slope; each by seed. Differences and means
             of outcomes, 0 or 1, have the intervals of shares
    sizes    columns that say where the verdict holds
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    measure: str
    how: Literal["difference", "change", "mean", "slope"] = Field("difference", alias="as")
    rows: dict = {}
    each: dict[str, list] = {}
    compare: dict[str, list] = {}
    sizes: list[str] = []

    @model_validator(mode="after")
    def _two_arms(self):
        sides = len(next(iter(self.compare.values()), []))
        if len(self.compare) > 1 or {"mean": sides != 0, "slope": sides < 3}.get(
            self.how, sides != 2
        ):
            raise ValueError(
                "compare: one column with two arms; none for a mean, three values or more for a slope"
            )
        return self

    def cases(self, table):
        """[Case] of a table with one row a seed and arm.

        Absent where an arm has no row; ValueError names columns.
        """
        wanted = [self.measure, "seed", *self.rows, *self.each, *self.compare, *self.sizes]
        if missing := [name for name in wanted if name not in table.columns]:
            raise ValueError(
                f"the table has no column {', '.join(missing)}; it has {', '.join(table.columns)}"
            )
        found = []
        for values in itertools.product(*self.each.values()):
            chosen = self.rows | dict(zip(self.each, values, strict=True))
            found += [self.case(table, chosen, arms) for arms in self._arms()]
        return found

    def _arms(self):
        """The values of the compared column in each comparison."""
        if not self.compare:
            return [()]
        values = next(iter(self.compare.values()))
        if self.how == "slope":
            return [tuple(values)]
        return list(
            itertools.product(*(side if isinstance(side, list) else [side] for side in values))
        )

    def case(self, table, chosen, arms):
        """One comparison, of the rows with the chosen values."""
        column = next(iter(self.compare), None)
        parts = [
            selected(table, chosen | ({column: arm} if column else {})) for arm in arms or (None,)
        ]
        return Case(self, table, chosen, column, arms, parts)


@dataclass(frozen=True)
class Case:
    """One comparison: the whole table, what was chosen of it, the compared column and arms, and the
    rows of each.
    """

    of: Arms
    whole: pd.DataFrame
    chosen: dict
    column: str | None
    arms: tuple
    parts: list

    @property
    def name(self):
        """Such as "position t5, n_heads 1 against 8"."""
        told = [f"{name} {self.chosen[name]}" for name in self.of.each]
        told += [f"{self.column} {' / '.join(map(str, self.arms))}"] if self.column else []
        return ", ".join(told)

    @property
    def interval(self):
        """The effect with its interval over seeds."""
        values = [by_seed(part, self.of.measure) for part in self.parts]
        if self.of.how == "mean":
            return (statistics.share if statistics.outcomes(*values) else statistics.mean)(
                values[0]
            )
        if self.of.how == "slope":
            doublings = np.log2(self.arms)
            return statistics.mean(
                [np.polyfit(doublings, row, 1)[0] for row in pd.concat(values, axis=1).to_numpy()]
            )
        first, second = values
        if self.of.how == "difference":
            return statistics.paired(first, second)
        return statistics.change(first, second)


def by_seed(part, measure):
    """The measure of an arm, indexed by seed.

    ValueError where a seed has two rows: choose among them first.
    """
    values = part.set_index("seed")[measure]
    if not values.index.is_unique:
        raise ValueError(
            f"seed {values.index[values.index.duplicated()][0]} has several rows of {measure}"
        )
    return values


def together(cases):
    """The rows of all arms, each once."""
    rows = pd.concat([part for case in cases for part in case.parts])
    return rows[~rows.index.duplicated()]


def selected(table, chosen):
    """The rows with the chosen values; Absent names what has none."""
    part = table
    for name, value in chosen.items():
        part = part[part[name] == value]
        if part.empty:
            raise Absent(f"{name} {value}")
    return part


def column(rows, name):
    """A column without holes; NoNumbers where it has any, or is not there."""
    if name not in rows.columns:
        raise NoNumbers(f"the table has no column {name}; it has {', '.join(rows.columns)}")
    if rows[name].isna().any():
        raise NoNumbers(f"column {name} has holes")
    return rows[name]


def numbers(rows, name):
    return column(rows, name).astype(float)
