"""Gates: what a comparison must show before it may have a verdict, checked on the rows that trials wrote.

A gate that is needed and has no numbers is an error, never a pass.
"""

from dataclasses import dataclass
from typing import Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, model_validator

from lab.language import in_language, tr
from lab.ledger.arms import Absent, NoNumbers, column, numbers, selected, together

MORE = 3  # times the reference's steps: who has not learned by then is a result


@dataclass(frozen=True)
class Passed:
    """A gate with what was found; `passed` False makes the verdict "out of reach"."""

    gate: str
    passed: bool
    told: str

    def __str__(self):
        return f"{'✓' if self.passed else '✗'} {self.gate}: {self.told}"


class _Gate(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    def besides(self, about, cases, rates):
        """Tables that the gate looks at besides the arms."""
        return []


class Learned(_Gate):
    """The reference, in all its runs, passed its mark: a number, or a column with the mark of each run.

    Another arm that did not is a result where it had at least three times the steps that the reference needed.
    """

    measure: str
    above: float | str | None = None
    below: float | str | None = None

    @model_validator(mode="after")
    def _one_side(self):
        if (self.above is None) == (self.below is None):
            raise ValueError("learned: above or below")
        return self

    def check(self, about, cases, rates):
        rows = together(cases)
        sign = 1 if self.below is None else -1
        mark = self.above if self.below is None else self.below
        mark = numbers(rows, mark) if isinstance(mark, str) else pd.Series(float(mark), rows.index)
        beyond = sign * (numbers(rows, self.measure) - mark)
        reached = beyond >= 0 if sign > 0 else beyond > 0
        reference = selected(rows, about.reference).index
        worst = beyond[reference].idxmin()
        told = tr(
            "{measure} {value} against the mark {mark} in the worst of {n} runs of the reference ({arm})",
            measure=self.measure, value=f"{rows[self.measure][worst]:.4g}", mark=f"{mark[worst]:.4g}",
            n=runs(rows.loc[reference], about, self.measure), arm=named(about.reference) or tr("all"),
        )  # fmt: skip
        behind = rows[~reached]
        n = runs(behind, about, self.measure)
        if not reached[reference].all() or behind.empty:
            return bool(reached[reference].all()), told
        if "steps_to_mark" not in rows:
            return False, told + tr("; {n} runs of other arms do not get there", n=n)
        times = numbers(behind, "steps").min() / numbers(rows.loc[reference], "steps_to_mark").max()
        said = {"n": n, "times": f"{times:.2g}"}
        told += tr(
            "; {n} runs of other arms do not get there in {times} times the steps that the reference needed", **said
        )
        return bool(times >= MORE), told


class Headroom(_Gate):
    """The arms' means are not all within `gap` of a ceiling, nor of a floor; no cap cut more than a tenth of runs."""

    measure: str = ""
    floor: float | None = None
    ceiling: float | None = None
    gap: float = 0.02
    capped: str = ""  # a column of yes and no

    @model_validator(mode="after")
    def _something(self):
        if not (self.capped or (self.measure and (self.floor, self.ceiling) != (None, None))):
            raise ValueError("headroom: measure with floor or ceiling, or capped")
        return self

    def check(self, about, cases, rates):
        told, passed = [], True
        for case in cases if self.measure else ():
            means = [numbers(part, self.measure).mean() for part in case.parts]
            high = self.ceiling is not None and min(means) > self.ceiling - self.gap
            low = self.floor is not None and max(means) < self.floor + self.gap
            passed &= not (high or low)
            told.append(f"{self.measure} {' / '.join(f'{mean:.3g}' for mean in means)}")
        if self.capped:
            share = numbers(together(cases), self.capped).mean()
            passed &= share <= 0.1
            told.append(tr("{share} of the runs reached the cap", share=f"{share:.0%}"))
        return bool(passed), "; ".join(dict.fromkeys(told))


class Null(_Gate):
    """Where nothing is to be found, nothing is: the rows of a control.

    The control is the second arm of the comparison, or rows of their own, of which the same comparison must not give
    what the claim predicts.
    """

    rows: dict = Field(min_length=1)

    def check(self, about, cases, rates):
        told, passed, (low, high) = [], True, about.prediction.band
        for case in cases:
            if case.column in self.rows and self.rows[case.column] == case.arms[-1]:
                value = numbers(case.parts[-1], about.arms.measure).mean()
                told.append(tr("{value}, taken off", value=f"{value:.3g}"))
                continue
            effect = about.arms.case(case.whole, case.chosen | self.rows, case.arms).interval.effect
            passed &= not low <= effect <= high
            told.append(f"{effect:.3g}")
        return bool(passed), f"{named(self.rows)}: {'; '.join(dict.fromkeys(told))}"

    def besides(self, about, cases, rates):
        control = (about.arms.case(case.whole, case.chosen | self.rows, case.arms) for case in cases)
        return [part for case in control for part in case.parts]


class Budget(_Gate):
    """Equal data and steps: columns that are the same for every arm of a seed. Rates swept, none best at an edge.

    `rate` is the column of the rate; the table of the sweep has it, a row for each rate, arm and seed of its own. Rates
    whose measure (`by`, else the one compared) is `within` that of the best are as good as it: an arm has one of them,
    and not all lie at the edge. An arm that learns at none of the rates has no best one, and the gate says so.
    """

    same: list[str] = Field(min_length=1)
    rate: str = ""
    by: str = ""
    best: Literal["lowest", "highest"] = "lowest"  # of the measure
    within: float = Field(0.0, ge=0)

    def check(self, about, cases, rates):
        wrong = [name for name in self.same for case in cases if differ(case, name)]
        told = [tr("the same {columns}", columns=", ".join(self.same))]
        if wrong:
            told = [tr("{columns} differ", columns=", ".join(dict.fromkeys(wrong)))]
        if self.rate:
            faults, chosen, hopeless = self._rates(about, cases, rates)
            told += [tr("rates {rates}", rates=chosen), *hopeless, *faults]
            wrong += faults
        return not wrong, "; ".join(told)

    def _rates(self, about, cases, rates):
        if rates is None:
            raise NoNumbers("rates are wanted: judge(claim, table, rates=the table of their sweep)")
        faults, hopeless, chosen, measure = [], [], set(), self.by or about.arms.measure
        for part, where in self._arms(cases, rates):
            swept = selected(rates, where).groupby(self.rate)[measure].mean()
            behind = swept - swept.min() if self.best == "lowest" else swept.max() - swept
            good, used = set(behind.index[behind <= self.within]), set(numbers(part, self.rate))
            chosen |= used
            if self.best == "highest" and not swept.any():
                hopeless.append(tr("{arm} learns at none of the {n} rates tried", arm=named(where), n=len(swept)))
            elif not used <= good:
                faults.append(tr("not at its best rate: {arm}", arm=named(where)))
            elif good <= {swept.index.min(), swept.index.max()}:
                faults.append(tr("at the edge of its rates: {arm}", arm=named(where)))
        said = " ".join(f"{value:g}" for value in sorted(chosen))
        return list(dict.fromkeys(faults)), said, list(dict.fromkeys(hopeless))

    def besides(self, about, cases, rates):
        return [selected(rates, where) for _, where in self._arms(cases, rates)] if self.rate else []

    def _arms(self, cases, rates):
        """(rows of an arm, {column: value} of it in the sweep of rates)."""
        for case in cases:
            for part in case.parts:
                yield part, {name: part[name].iloc[0] for name in (*case.chosen, case.column) if name in rates}


class HeldOut(_Gate):
    """No test item in training: by a rule that the task keeps, in words, or a column with the share that was seen."""

    rule: str = ""
    rule_zh: str = ""
    seen: str = ""
    share: float = 0.01

    @model_validator(mode="after")
    def _one(self):
        if bool(self.rule) == bool(self.seen):
            raise ValueError("held out: rule or seen")
        return self

    def check(self, about, cases, rates):
        if self.rule:
            return True, in_language(self.rule, self.rule_zh)
        most = numbers(together(cases), self.seen).max()
        return bool(most < self.share), f"{self.seen} {most:.2g}"


class NoAnswer(_Gate):
    """No arm is given what is asked: a column that says so is 0 in every row."""

    told: str

    def check(self, about, cases, rates):
        most = numbers(together(cases), self.told).max()
        return bool(most == 0), f"{self.told} {most:g}"


class OneModel(_Gate):
    """All numbers belong to one configuration: the columns hold one value each."""

    same: list[str] = Field(min_length=1)

    def check(self, about, cases, rates):
        rows = together(cases)
        odd = [name for name in self.same if column(rows, name).nunique() > 1]
        held = ", ".join(f"{name} {rows[name].iloc[0]}" for name in self.same if name not in odd)
        return not odd, tr("{columns} differ", columns=", ".join(odd)) if odd else held


class Needs(_Gate):
    """The gates of a claim, with their numbers. `regime`: {column: [least, most]}, null where there is no bound."""

    learned: Learned | None = None
    headroom: Headroom | None = None
    null: Null | None = None
    regime: dict[str, tuple[float | None, float | None]] = {}
    budget: Budget | None = Field(None, alias="equal budget")
    held_out: HeldOut | None = Field(None, alias="held out")
    no_answer: NoAnswer | None = Field(None, alias="no answer")
    one_model: OneModel | None = Field(None, alias="one model")
    machine: bool = False

    @property
    def gates(self):
        """How many are needed; a verdict that belongs to a machine is no gate of rows."""
        return len(self.model_fields_set - {"machine"})

    def check(self, about, cases, rates=None):
        """[Passed] of every gate that is needed, in the order of the fields. Absent where a control has no row."""
        found = []
        for name, field in type(self).model_fields.items():
            gate, title = getattr(self, name), titles()[field.alias or name]
            try:
                if name == "regime" and gate:
                    found.append(Passed(title, *_regime(gate, together(cases))))
                elif isinstance(gate, _Gate):
                    found.append(Passed(title, *gate.check(about, cases, rates)))
            except (NoNumbers, LookupError) as error:
                if name == "null" and isinstance(error, Absent):
                    raise
                raise NoNumbers(f"{about.id}, gate {title}: {error.args[0]}") from None
        return found

    def besides(self, about, cases, rates=None):
        """All tables that gates look at besides the arms."""
        gates = [gate for _, gate in self if isinstance(gate, _Gate)]
        return [table for gate in gates for table in gate.besides(about, cases, rates)]


def titles():
    """The gates by name, in the reader's language."""
    return {
        "learned": tr("learned"),
        "headroom": tr("headroom"),
        "null": tr("null"),
        "regime": tr("regime"),
        "equal budget": tr("equal budget"),
        "held out": tr("held out"),
        "no answer": tr("no answer"),
        "one model": tr("one model"),
        "machine": tr("machine"),
    }


def _regime(bounds, rows):
    told, passed = [], True
    for name, (least, most) in bounds.items():
        values = numbers(rows, name)
        passed &= (least is None or values.min() >= least) and (most is None or values.max() <= most)
        inside = " … ".join(dict.fromkeys(f"{value:g}" for value in (values.min(), values.max())))
        ends = [f"{sign} {end:g}" for sign, end in (("≥", least), ("≤", most)) if end is not None]
        told.append(tr("{column} {values}, wanted {bounds}", column=name, values=inside, bounds=", ".join(ends)))
    return bool(passed), "; ".join(told)


def differ(case, name):
    """Whether a column differs between the arms of a seed."""
    rows = together([case])
    return bool((column(rows, name).groupby(rows.seed).nunique() > 1).any())


def runs(rows, about, measure):
    """How many runs there are in the rows: what one seed measured under one condition is one run.

    So neither several rows of a run count, nor copies of the reference beside every other arm. A column of conditions
    in which the measure never differs, such as lengths at which one model is asked, makes no further runs.
    """
    known = [name for name in dict.fromkeys(["seed", *about.reference, *about.arms.each]) if name in rows]
    for name in about.arms.each:
        others = [other for other in known if other != name]
        if name in known and others and rows.groupby(others, dropna=False)[measure].nunique().max() <= 1:
            known = others
    return len(rows.drop_duplicates([*dict.fromkeys([*known, measure])]))


def named(chosen):
    return ", ".join(f"{name} {value}" for name, value in chosen.items())
