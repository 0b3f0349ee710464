"""Gates: what a comparison must show before it may have a verdict, checked on the rows that trials
wrote.

A gate is a function of the claim, its cases, the table of a sweep of rates, and its options in the
ledger; it returns whether it is passed, and what was found in words. A gate that is needed and has
no numbers is an error, never a pass.
"""

import inspect
from dataclasses import dataclass

import pandas as pd
from pydantic import BaseModel, ConfigDict, model_validator

from lab.claims.arms import Absent, NoNumbers, column, numbers, selected, together
from lab.language import in_language, tr

MORE = 3  # times the reference's steps: who has not learned by then is a result


def learned(about, cases, rates, /, *, measure, above=None, below=None):
    """The reference, in all its runs, passed its mark: a number, or a column with the mark of each
    run.

    Another arm that did not is a result where it had at least three times the steps that the
    reference needed.
    """
    rows = together(cases)
    mark = below if above is None else above
    mark = numbers(rows, mark) if isinstance(mark, str) else pd.Series(float(mark), rows.index)
    values = numbers(rows, measure)
    beyond = mark - values if above is None else values - mark
    reached = beyond > 0 if above is None else beyond >= 0
    reference = selected(rows, about.reference).index
    worst = beyond[reference].idxmin()
    told = tr(
        "{measure} {value} against the mark {mark} in the worst of {n} runs of the reference ({arm})",
        measure=measure,
        value=f"{rows[measure][worst]:.4g}",
        mark=f"{mark[worst]:.4g}",
        n=runs(rows.loc[reference], about, measure),
        arm=named(about.reference) or tr("all"),
    )
    behind = rows[~reached]
    n = runs(behind, about, measure)
    if not reached[reference].all() or behind.empty:
        return reached[reference].all(), told
    if "steps_to_mark" not in rows:
        return False, told + tr("; {n} runs of other arms do not get there", n=n)
    times = numbers(behind, "steps").min() / numbers(rows.loc[reference], "steps_to_mark").max()
    told += tr(
        "; {n} runs of other arms do not get there in {times} times the steps that the reference needed",
        n=n,
        times=f"{times:.2g}",
    )
    return times >= MORE, told


def headroom(about, cases, rates, /, *, measure="", floor=None, ceiling=None, gap=0.02, capped=""):
    """The arms' means are not all within `gap` of a ceiling, nor of a floor; no cap cut more than a
    tenth of runs.

    `capped` is a column of yes and no.
    """
    told, passed = [], True
    if measure or not capped:
        for case in cases:
            means = [numbers(part, measure).mean() for part in case.parts]
            high = ceiling is not None and min(means) > ceiling - gap
            low = floor is not None and max(means) < floor + gap
            passed &= not (high or low)
            told.append(f"{measure} {' / '.join(f'{mean:.3g}' for mean in means)}")
    if capped:
        share = numbers(together(cases), capped).mean()
        passed &= share <= 0.1
        told.append(tr("{share} of the runs reached the cap", share=f"{share:.0%}"))
    return passed, "; ".join(dict.fromkeys(told))


def null(about, cases, rates, /, *, rows):
    """Where nothing is to be found, nothing is: the rows of a control.

    The control is the second arm of the comparison, or rows of their own, of which the same
    comparison must not give what the claim predicts.
    """
    told, passed = [], True
    low, high = about.prediction.band
    for case in cases:
        if case.column in rows and rows[case.column] == case.arms[-1]:
            value = numbers(case.parts[-1], about.arms.measure).mean()
            told.append(tr("{value}, taken off", value=f"{value:.3g}"))
        else:
            effect = control(case, rows).interval.effect
            passed &= not low <= effect <= high
            told.append(f"{effect:.3g}")
    return passed, f"{named(rows)}: {'; '.join(dict.fromkeys(told))}"


def regime(about, cases, rates, /, **bounds):
    """The sizes are those that the sentence names: {column: [least, most]}, null where there is no
    bound.
    """
    rows = together(cases)
    told, passed = [], True
    for name, (least, most) in bounds.items():
        values = numbers(rows, name)
        passed &= least is None or values.min() >= least
        passed &= most is None or values.max() <= most
        inside = " … ".join(dict.fromkeys(f"{value:g}" for value in (values.min(), values.max())))
        ends = [f"{sign} {end:g}" for sign, end in (("≥", least), ("≤", most)) if end is not None]
        told.append(
            tr(
                "{column} {values}, wanted {bounds}",
                column=name,
                values=inside,
                bounds=", ".join(ends),
            )
        )
    return passed, "; ".join(told)


def equal_budget(about, cases, rates, /, *, same, rate="", by="", best="lowest", within=0.0):
    """Equal data and steps: columns that are the same for every arm of a seed.

    Rates swept, none best at an edge.

    `rate` is the column of the rate; the table of the sweep has it, a row for each rate, arm and
    seed of its own. Rates whose measure (`by`, else the one compared; lowest or highest is `best`)
    is `within` that of the best are as good as it: an arm has one of them, and not all lie at the
    edge. An arm that learns at none of the rates has no best one, and the gate says so.
    """
    wrong = [name for name in same for case in cases if differ(case, name)]
    told = [tr("the same {columns}", columns=", ".join(same))]
    if wrong:
        told = [tr("{columns} differ", columns=", ".join(dict.fromkeys(wrong)))]
    if not rate:
        return not wrong, "; ".join(told)
    if rates is None:
        raise NoNumbers("rates are wanted: judge(claim, table, rates=the table of their sweep)")
    faults, hopeless, chosen = [], [], set()
    for part, where in arms_in(cases, rates):
        swept = selected(rates, where).groupby(rate)[by or about.arms.measure].mean()
        behind = swept - swept.min() if best == "lowest" else swept.max() - swept
        good = set(behind.index[behind <= within])
        used = set(numbers(part, rate))
        chosen |= used
        if best == "highest" and not swept.any():
            hopeless.append(
                tr("{arm} learns at none of the {n} rates tried", arm=named(where), n=len(swept))
            )
        elif not used <= good:
            faults.append(tr("not at its best rate: {arm}", arm=named(where)))
        elif good <= {swept.index.min(), swept.index.max()}:
            faults.append(tr("at the edge of its rates: {arm}", arm=named(where)))
    told.append(tr("rates {rates}", rates=" ".join(f"{value:g}" for value in sorted(chosen))))
    told += [*dict.fromkeys(hopeless), *dict.fromkeys(faults)]
    return not wrong and not faults, "; ".join(told)


def held_out(about, cases, rates, /, *, rule="", rule_zh="", seen="", share=0.01):
    """No test item in training: by a rule that the task keeps, in words, or a column with the share
    that was seen.
    """
    if rule:
        return True, in_language(rule, rule_zh)
    most = numbers(together(cases), seen).max()
    return most < share, f"{seen} {most:.2g}"


def no_answer(about, cases, rates, /, *, told):
    """No arm is given what is asked: the column that says so is 0 in every row."""
    most = numbers(together(cases), told).max()
    return most == 0, f"{told} {most:g}"


def one_model(about, cases, rates, /, *, same):
    """All numbers belong to one configuration: the columns hold one value each."""
    rows = together(cases)
    odd = [name for name in same if column(rows, name).nunique() > 1]
    if odd:
        return False, tr("{columns} differ", columns=", ".join(odd))
    return True, ", ".join(f"{name} {rows[name].iloc[0]}" for name in same)


GATES = {  # in the order in which they are told
    "learned": learned,
    "headroom": headroom,
    "null": null,
    "regime": regime,
    "equal budget": equal_budget,
    "held out": held_out,
    "no answer": no_answer,
    "one model": one_model,
}
ONE_OF = {"learned": {"above", "below"}, "held out": {"rule", "seen"}}  # options


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
    }


class Needs(BaseModel):
    """The gates of a claim by name, each with its options; `machine`: a verdict belongs to the
    machine that gave it.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    machine: bool = False

    @model_validator(mode="after")
    def _gates_take_their_options(self):
        for name, options in self.gates.items():
            if name not in GATES:
                raise ValueError(f"{name}: there is no such gate; there are {', '.join(GATES)}")
            given = {option for option, value in options.items() if value not in (None, "")}
            if not given or any(value in ([], {}) for value in options.values()):
                raise ValueError(f"{name}: options with values are wanted")
            if name in ONE_OF and len(ONE_OF[name] & given) != 1:
                raise ValueError(f"{name}: {' or '.join(sorted(ONE_OF[name]))}")
            if name == "headroom" and not {"floor", "ceiling", "capped"} & given:
                raise ValueError("headroom: measure with floor or ceiling, or capped")
            try:
                inspect.signature(GATES[name]).bind(None, None, None, **options)
            except TypeError as error:
                raise ValueError(f"{name}: {error}") from None
        return self

    @property
    def gates(self):
        """{gate: its options} of those that look at rows."""
        return self.model_extra

    def check(self, about, cases, rates=None):
        """[Passed] of every gate that is needed, in the order of `GATES`.

        Absent where a control has no row.
        """
        found = []
        for name in filter(self.gates.get, GATES):
            title = titles()[name]
            try:
                passed, told = GATES[name](about, cases, rates, **self.gates[name])
            except (NoNumbers, LookupError) as error:
                if name == "null" and isinstance(error, Absent):
                    raise
                raise NoNumbers(f"{about.id}, gate {title}: {error.args[0]}") from None
            found.append(Passed(title, bool(passed), told))
        return found

    def besides(self, about, cases, rates=None):
        """Tables that gates look at besides the arms: of a control, and of the sweep of rates."""
        tables = []
        if "null" in self.gates:
            for case in cases:
                tables += control(case, self.gates["null"]["rows"]).parts
        if "rate" in self.gates.get("equal budget", ()):
            tables += [selected(rates, where) for _, where in arms_in(cases, rates)]
        return tables


@dataclass(frozen=True)
class Passed:
    """A gate with what was found; `passed` False makes the verdict "out of reach"."""

    gate: str
    passed: bool
    told: str

    def __str__(self):
        return f"{'✓' if self.passed else '✗'} {self.gate}: {self.told}"


def control(case, rows):
    """The same comparison among other rows."""
    return case.of.case(case.whole, case.chosen | rows, case.arms)


def arms_in(cases, rates):
    """(rows of an arm, {column: value} of it in the sweep of rates)."""
    for case in cases:
        for part in case.parts:
            yield (
                part,
                {name: part[name].iloc[0] for name in (*case.chosen, case.column) if name in rates},
            )


def differ(case, name):
    """Whether a column differs between the arms of a seed."""
    rows = together([case])
    return bool((column(rows, name).groupby(rows.seed).nunique() > 1).any())


def runs(rows, about, measure):
    """How many runs there are in the rows: what one seed measured under one condition is one run.

    So neither several rows of a run count, nor copies of the reference beside every other arm. A
    column of conditions in which the measure never differs, such as lengths at which one model is
    asked, makes no further runs.
    """
    known = [
        name for name in dict.fromkeys(["seed", *about.reference, *about.arms.each]) if name in rows
    ]
    for name in about.arms.each:
        others = [other for other in known if other != name]
        if (
            name in known
            and others
            and rows.groupby(others, dropna=False)[measure].nunique().max() <= 1
        ):
            known = others
    return len(rows.drop_duplicates([*dict.fromkeys([*known, measure])]))


def named(chosen):
    """{column: value} in words."""
    return ", ".join(f"{name} {value}" for name, value in chosen.items())
