"""From a table of runs to answers: the questions of a lesson, a line for each condition, the card.

A claim (experiments/claims/NN_slug.yaml, see its README.md) quotes what the book says and asks a
question of it, or several in `parts`. A line compares a `measure` between two arms under one
condition, a combination of `by`. *Yes*: the 95 % interval lies wholly beyond the bar. *No*: wholly
short of it. *Unclear*: neither, or too few runs learned.
"""

import re
from itertools import product
from math import inf, isfinite, log, log1p
from typing import Annotated, Literal

import numpy as np
import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lab.files import Refused, project_root, shown, write_table
from lab.measure import statistics

YES, NO, UNCLEAR = "yes", "no", "unclear"
NOT_RUN, NOT_JUDGED = "not run at these values", "not judged"
ENOUGH = 7 / 8  # share of runs of an arm that must have learned
MOST = 100  # the largest number of runs that a line suggests
CLOSE = 2e-15  # relative rounding error within which numbers are equal
NUMBERS = ("effect", "low", "high", "n")
COLUMNS = ["id", "part", "question", "where", *NUMBERS, "unit", "bar", "answer", "why", "main"]
COLUMNS += ["learned", "figure", "table", "note"]
PERCENT = ("relative", "share", "difference of shares")  # how units begin that are shown in percent
Words = Annotated[str, Field(min_length=1)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Says(Strict):
    """A sentence of a source, with its place."""

    place: Words
    en: Words
    zh: str = ""


class Part(Strict):
    """A question.

    measure    the column that is compared; empty where the notebook hands over a number or Interval
    as         difference (first - second), change (first / second - 1, averaged on logarithms),
               mean, ratio (a mean on logarithms), or slope per doubling; each by seed
    rows       {column: value} of the rows that take part
    by         {column: values}: every combination is a line with an answer of its own
    compare    {column: [first, second]}; where one of them is a list, every pair is a line. With
               `as: slope`, the values along which the slope is taken; empty for a mean or ratio
    direction  above, below: the effect exceeds value + bar, is less than value - bar. within: it is
               within bar of value. not above, not below: less than value + bar, more than value - bar
    value      the number that the sentence names, else 0
    bar        the smallest difference that matters; by default that of the measure in bars.yaml
    main       {column: value} of the line on which the lesson's answer may rest; {} where there is
               one line; None: no line
    learned    pandas expressions that tell which runs learned, in the compared arms and `reference`
    needs      expressions that all runs of the reference meet
    same       columns that are equal for all arms of a seed
    """

    name: str = ""
    question: Words
    measure: str = ""
    how: Literal["difference", "change", "mean", "ratio", "slope"] = Field("difference", alias="as")
    rows: dict = {}
    by: dict[str, list] = {}
    compare: dict[str, list] = {}
    direction: Literal["above", "below", "within", "not above", "not below"]
    value: float = 0.0
    bar: float | None = Field(None, ge=0)
    because: str = ""
    main: dict | None = None
    reference: dict = {}
    learned: list[str] = []
    needs: list[str] = []
    same: list[str] = []
    unit: str = ""

    @model_validator(mode="after")
    def _two_sides(self):
        sides = len(next(iter(self.compare.values()), []))
        wrong = {"mean": sides != 0, "ratio": sides != 0, "slope": sides < 3}.get(
            self.how, sides != 2
        )
        if self.measure and (len(self.compare) > 1 or wrong):
            raise ValueError(
                "compare: one column with two arms; "
                "no column for a mean or ratio; three values or more for a slope"
            )
        return self

    @property
    def smallest(self):
        """The smallest difference that matters."""
        return self.bar if self.bar is not None else bar_of(self.measure, self.how)["bar"]

    @property
    def band(self):
        """The effects that mean yes, (low, high)."""
        low, high = self.value - self.smallest, self.value + self.smallest
        ends = {"above": (high, inf), "below": (-inf, low), "within": (low, high)}
        return (ends | {"not above": (-inf, high), "not below": (low, inf)})[self.direction]

    def arms(self):
        """The values that are compared in each line of a condition; () for a mean or ratio."""
        if not self.compare:
            return [()]
        values = next(iter(self.compare.values()))
        if self.how == "slope":
            return [tuple(values)]
        return list(product(*(value if isinstance(value, list) else [value] for value in values)))


OF_PARTS = {field.alias or name for name, field in Part.model_fields.items()} - {"name"}


class Claim(Strict):
    """What the book says, and the questions about it.

    Fields of a `Part` beside the claim's own are the defaults of all `parts`; without `parts` they
    make the only one. `kind` is comparison (yes, no, unclear), question (a number, no answer) or
    exact. `open` says what judging it would take, where no run judges it.
    """

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    kind: Literal["comparison", "question", "exact"] = "comparison"
    says: list[Says] = []
    parts: list[Part] = []
    open: str = ""

    @model_validator(mode="before")
    @classmethod
    def _in_parts(cls, entry):
        """The entry with the fields of parts in its parts."""
        if not isinstance(entry, dict):
            return entry
        shared = {name: value for name, value in entry.items() if name in OF_PARTS}
        own = {name: value for name, value in entry.items() if name not in OF_PARTS}
        parts = own.get("parts") or ([{}] if shared else [])
        return own | {"parts": [shared | part for part in parts]}

    @model_validator(mode="after")
    def _can_be_judged(self):
        names = [part.name for part in self.parts]
        if len(set(names)) < len(names):
            raise ValueError("parts: each of several needs a `name` of its own")
        if bool(self.parts) == bool(self.open):
            raise ValueError("give a question, or `open` with what judging it would take")
        for part in self.parts:
            if self.kind == "exact" and part.measure:
                raise ValueError(
                    "measure: exact statements are judged from a number, not from rows"
                )
            if part.bar is None and part.measure:
                bar_of(part.measure, part.how)
        return self

    @property
    def sentence(self):
        """What the book says, or the question where nothing is quoted."""
        return self.says[0].en if self.says else (self.parts[0].question if self.parts else self.id)


def folder():
    return project_root() / "experiments" / "claims"


def read(path):
    """{id: Claim} of a file. Raises Refused with the file, claim and field that are wrong."""
    try:
        entries = yaml.load(path.read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise Refused(f"{shown(path)}: {error}") from None
    if not isinstance(entries or [], list):
        raise Refused(f"{shown(path)}: must be a list of claims that each begin with `- id: …`")
    found = {}
    for entry in entries or []:
        name = entry.get("id") if isinstance(entry, dict) else entry
        try:
            claim = Claim.model_validate(entry)
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, e['loc']))} {e['msg']}".strip() for e in error.errors()]
            told = "; ".join(wrong).replace("Value error, ", "")
            raise Refused(f"{shown(path)}: claim {name}: {told}") from None
        if claim.id in found:
            raise Refused(f"{shown(path)}: two claims share the id {claim.id}")
        found[claim.id] = claim
    return found


def bar_of(measure, how):
    """{bar, because} of a measure in experiments/bars.yaml. Raises ValueError without one."""
    path = folder().with_name("bars.yaml")
    bars = yaml.safe_load(path.read_text("utf-8")) if path.exists() else {}
    if how in bars.get(measure, {}):
        return bars[measure][how]
    raise ValueError(
        f"bar: experiments/bars.yaml has none for {measure!r} as {how}: write it there, with the "
        "reason, or give the part a `bar`"
    )


# Judging


def judge(claim, measured, **where):
    """A DataFrame with a line for each condition of each part; see COLUMNS.

    `measured` is a table with a row for each seed and arm, or {name of a part: table}; a part
    called "control of …" has the table of the part that it controls. A part without a `measure`
    takes an Interval, an exact statement a number, which checks it, or a sympy expression, which
    proves it. `where` holds the fields figure, table and note of the lines.

    Raises TypeError where a part gets another type, ValueError where the table lacks a column or a
    seed has several rows.
    """
    if not claim.parts:
        raise ValueError(f"claim {claim.id} asks no question: write one first")
    lines = []
    for part in claim.parts:
        named = part.name.removeprefix("control of ")
        given = measured[named] if isinstance(measured, dict) else measured
        if bool(part.measure) != isinstance(given, pd.DataFrame):
            wanted = "a table" if part.measure else "a number or an Interval"
            raise TypeError(f"claim {claim.id} wants {wanted}, not {type(given).__name__}")
        if part.measure:
            found = of_table(part, given.reset_index(drop=True))
        elif isinstance(given, statistics.Interval):
            found = [ends(given) | answered(part, given)]
        elif claim.kind == "exact":
            found = [of_number(part, given)]
        else:
            raise TypeError(f"claim {claim.id} wants an Interval, not the number {given}")
        lines += [about(claim, part, line) | where | line for line in found]
    made = framed(lines)
    if claim.kind == "question":
        made.loc[made.answer.isin([YES, NO, UNCLEAR]), ["answer", "why"]] = ["answered", ""]
    return made


def unanswered(claim, answer, why=""):
    """The lines of a claim that got no answer, such as "not judged" in a smoke run."""
    parts = claim.parts or [None]
    lines = [about(claim, part, {}) | {"answer": answer, "why": why} for part in parts]
    return framed(lines)


def framed(lines):
    """A DataFrame of lines; what one lacks is missing among NUMBERS, and else an empty word."""
    made = pd.DataFrame(lines).reindex(columns=COLUMNS)
    words = [name for name in COLUMNS if name not in (*NUMBERS, "main")]
    return made.fillna(dict.fromkeys(words, ""))


def about(claim, part, line):
    """The fields of a line that do not depend on what was measured."""
    if part is None:
        return {"id": claim.id, "question": claim.sentence, "main": False}
    is_main = part.main is not None and part.main.items() <= line.pop("chosen", {}).items()
    bar = "" if claim.kind == "question" else bar_in_words(part)
    words = {"id": claim.id, "part": part.name, "question": part.question, "unit": part.unit}
    return words | {"bar": bar, "main": is_main}


def of_number(part, given):
    """The line of an exact statement."""
    value = float(given)
    if value != value:
        raise ValueError(f"{part.question} nothing was measured, the number is nan")
    low, high = part.band
    room = CLOSE * max(1.0, abs(part.value))
    proved = type(given).__module__.startswith("sympy")
    holds = low - room <= value <= high + room
    return {
        "effect": value,
        "answer": ("proved" if proved else "checked") if holds else "disproved",
    }


def of_table(part, table):
    """The lines of a part: one for each condition and pair of arms."""
    wanted = [part.measure, "seed", *part.rows, *part.by, *part.compare]
    if missing := [name for name in wanted if name not in table.columns]:
        raise ValueError(
            f"the table has no column {', '.join(missing)}; it has {', '.join(table.columns)}"
        )
    lines = []
    for values, arms in product(product(*part.by.values()), part.arms()):
        lines.append(of_condition(part, table, dict(zip(part.by, values, strict=True)), arms))
    return lines


def of_condition(part, table, chosen, arms):
    """The line of one condition."""
    column = next(iter(part.compare), "")
    several = any(isinstance(value, list) for value in part.compare.get(column, ()))
    words = [f"{name} {value}" for name, value in chosen.items()]
    if several and part.how != "slope":
        words.append(f"{column} {' / '.join(map(str, arms))}")
    line = {"where": ", ".join(words), "chosen": chosen}
    fixed = part.rows | chosen
    sides = [select(table, fixed | {column: arm}) for arm in arms] or [select(table, fixed)]
    if empty := [arm for arm, side in zip(arms or [fixed], sides, strict=True) if side.empty]:
        return line | {"answer": NOT_RUN, "why": f"without {column} {empty[0]}".strip()}
    names = [f"{column} {arm}" for arm in arms] or ["all"]
    sides = dict(zip(names, sides, strict=True))
    interval = interval_of(part, sides.values(), arms)
    line |= ends(interval)
    shares = learned(part, table, chosen, sides)
    line["learned"] = ", ".join(f"{name} {n}/{of}" for name, (n, of) in shares.items())
    if void := reasons(part, table, chosen, sides, shares):
        return line | {"answer": UNCLEAR, "why": "; ".join(void)}
    return line | answered(part, interval, [by_seed(side, part.measure) for side in sides.values()])


def select(table, chosen):
    """The rows with the chosen values, {column: value}."""
    for name, value in chosen.items():
        table = table[table[name] == value]
    return table


def by_seed(rows, measure):
    """The measure of an arm, a Series indexed by seed."""
    values = rows.set_index("seed")[measure]
    if not values.index.is_unique:
        twice = values.index[values.index.duplicated()][0]
        raise ValueError(f"seed {twice} has several rows of {measure}")
    return values


def interval_of(part, sides, arms):
    """The effect with its 95 % interval over seeds; None where a number is not finite."""
    values = [by_seed(side, part.measure) for side in sides]
    try:
        if part.how == "difference":
            return statistics.paired(*values)
        if part.how == "change":
            return statistics.change(*values)
        if part.how == "slope":
            runs = pd.concat(values, axis=1).to_numpy()
            return statistics.mean([np.polyfit(np.log2(arms), run, 1)[0] for run in runs])
        if part.how == "ratio":
            with np.errstate(divide="ignore", invalid="ignore"):
                logs = statistics.mean(np.log(values[0]))
            found = np.exp([logs.effect, logs.low, logs.high, logs.mde]).tolist()
            return statistics.Interval(*found[:3], logs.n, found[3])
        if statistics.outcomes(values[0]):
            return statistics.share(values[0])
        found = statistics.mean(values[0])
        is_share = part.unit.startswith("share") and found.n > 1
        return statistics.within(found, 0.0, 1.0) if is_share else found
    except statistics.NotFinite:
        return None


def ends(interval):
    """{field of a line: value} of an interval."""
    return {name: getattr(interval, name, np.nan) for name in NUMBERS}


def learned(part, table, chosen, sides):
    """{arm: (runs that learned, runs)} of the compared arms and of the reference."""
    if not part.learned:
        return {}
    sides = dict(sides)
    reference = reference_of(part, table, chosen, sides)
    if part.reference and not any(
        reference.index.isin(side.index).all() for side in sides.values()
    ):
        sides[" ".join(f"{name} {value}" for name, value in part.reference.items())] = reference
    found = {}
    for name, side in sides.items():
        passed = np.logical_and.reduce([side.eval(each) for each in part.learned])
        runs = pd.Series(passed, side.index).groupby(side.seed).all()
        found[name] = int(runs.sum()), len(runs)
    return found


def reference_of(part, table, chosen, sides):
    """The rows of the reference: among the compared ones, else in the table, at the condition."""
    both = pd.concat(sides.values())
    found = select(both[~both.index.duplicated()], part.reference)
    if not found.empty:
        return found
    found = select(table, part.reference)
    for name, value in chosen.items():
        same = found[found[name] == value]
        found = found if same.empty else same
    return found


def reasons(part, table, chosen, sides, shares):
    """Why a line has no answer, in words."""
    told = [
        f"only {n} of {of} runs of {name} learned"
        for name, (n, of) in shares.items()
        if n < ENOUGH * of
    ]
    reference = reference_of(part, table, chosen, sides)
    told += [f"not {need}" for need in part.needs if not reference.eval(need).all()]
    both = pd.concat(sides.values())
    differ = [name for name in part.same if (both.groupby("seed")[name].nunique() > 1).any()]
    return told + [f"{name} differs" for name in differ]


def answered(part, interval, values=()):
    """{answer, why} of an interval. One that touches the bar is not beyond it, except for within."""
    if interval is None:
        return {"answer": UNCLEAR, "why": "some numbers are not finite"}
    low, high = part.band
    if not interval.low <= interval.high:
        return {"answer": UNCLEAR, "why": "the numbers give no interval"}
    touches = part.direction != "within" and (interval.low == low or interval.high == high)
    if low <= interval.low and interval.high <= high and not touches:
        counted = part.how == "difference" and len(values) == 2 and statistics.outcomes(*values)
        if counted and statistics.exact_p([counts(each) for each in values]) >= 0.05:
            return {
                "answer": UNCLEAR,
                "why": "an exact test of the counts does not tell them apart",
            }
        return {"answer": YES, "why": ""}
    if interval.high < low or interval.low > high:
        return {"answer": NO, "why": ""}
    return {"answer": UNCLEAR, "why": more_runs(part, interval)}


def counts(values):
    """[ones, zeros] of an arm."""
    ones = int(values.sum())
    return [ones, len(values) - ones]


def more_runs(part, interval):
    """What would make an answer clear, in words."""
    if interval.n == 1:
        return "one run has no interval"
    near = min(
        (end for end in part.band if isfinite(end)), key=lambda end: abs(end - interval.effect)
    )
    low, high = sorted((near / 2, 2 * near))
    if near and low <= interval.low and interval.high <= high:
        return "about the threshold: more runs would not help"
    if part.how in ("change", "ratio") and part.measure:
        scale = log1p if part.how == "change" else log
        logs = [scale(x) for x in (interval.effect, interval.low, interval.high)]
        interval, near = statistics.Interval(*logs, interval.n, scale(interval.mde)), scale(near)
    if not isfinite(interval.mde):
        return ""  # the interval of a share gives no spread
    n = statistics.enough(interval, near, MOST)
    return f"{n} runs would do" if n else f"not within {MOST} runs"


# In words


def numbers(unit, *values):
    """Numbers in their unit, each with three digits; relative ones and shares in percent."""
    if unit.startswith(PERCENT):
        sign = "" if unit.startswith("share") else "+"
        return [f"{100 * value:{sign}.3g} %" for value in values]
    return [f"{value:.3g}" for value in values]


def effect_in_words(line):
    """The effect of a line with its interval, such as "+3.5 % [+2.5 %, +4.5 %]"; "" without one."""
    if pd.isna(line.effect):
        return ""
    words = numbers(
        line.unit or "", *(x for x in (line.effect, line.low, line.high) if pd.notna(x))
    )
    return words[0] + (f" [{', '.join(words[1:])}]" if len(words) == 3 else "")


def bar_in_words(part):
    """The effects that mean yes, such as "> +2 %" or "1 ± 0.2"."""
    value, room = numbers(part.unit, part.value, part.smallest)
    low, high = (numbers(part.unit, end)[0] for end in part.band)
    words = {"within": f"{value} ± {room.lstrip('+')}", "above": f"> {low}", "below": f"< {high}"}
    return (words | {"not above": f"< {high}", "not below": f"> {low}"})[part.direction]


def answer_in_words(line):
    """An answer with what a reader needs beside it."""
    return f"**{line.answer}** ({line.why})" if line.why else f"**{line.answer}**"


def card(claim, lines):
    """The card of a claim in Markdown: what the book says, and a row for each line."""
    told = [f"**{claim.sentence}**"] if claim.says else []
    told += [f"{said.zh} *{said.place}*" for said in claim.says]
    rows = []
    previous = None
    for line in lines.itertuples():
        question = "" if line.question == previous else line.question
        previous = line.question
        n = "" if pd.isna(line.n) else f"{line.n:.0f}"
        row = {"question": question, "where": line.where, "effect": effect_in_words(line), "n": n}
        row |= {"yes if": line.bar, "answer": answer_in_words(line), "learned": line.learned}
        rows.append(row | {"note": line.note})
    table = markdown(pd.DataFrame(rows).astype(str))
    because = dict.fromkeys(part.because for part in claim.parts if part.because)
    return "\n\n".join([*told, table, *(f"The bar: {reason}" for reason in because)])


def scorecard(lines):
    """One table for a lesson, in Markdown: a row for a line, or for all lines of a question."""
    return markdown(scores(lines))


def scorecard_text(lines):
    """The table of `scorecard` for a terminal, in ASCII."""
    told = ""
    for row in scores(lines).itertuples():
        told += f"  {row.question}\n      {'; '.join(filter(None, [row.effect, row.answer]))}\n"
    return told.rstrip().replace("**", "").encode("ascii", "replace").decode()


def scores(lines):
    """A DataFrame of words: question, effect, answer; a row for a question, the main ones first."""
    rows = []
    main_first = lines.sort_values("main", ascending=False, kind="stable")
    for _, part in main_first.groupby(["main", "id", "part"], sort=False):
        first = next(part.itertuples())
        effect = effect_in_words(first) if len(part) == 1 else ""
        effect += f", n = {first.n:.0f}" if effect and pd.notna(first.n) else ""
        answers = [
            f"{line.where}: **{line.answer}**" if line.where else answer_in_words(line)
            for line in part.itertuples()
        ]
        bold = "**" if first.main else ""
        rows.append((f"{bold}{first.question}{bold}", effect, "; ".join(answers)))
    return pd.DataFrame(rows, columns=["question", "effect", "answer"])


def markdown(table):
    """A DataFrame of words as a Markdown table, without columns that are empty."""
    names = [name for name in table if table[name].ne("").any()]
    rows = [
        [str(cell).replace("|", "\\|").replace("\n", " ") for cell in row]
        for row in table[names].values
    ]
    lines = [names, [":--"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rounds_to(value, words):
    """Whether a value rounds to a number as it is written, such as "3.5 %" or "-0.02"."""
    found = re.search(r"[-+−]?\d[\d,]*\.?\d*", words)
    digits = found[0].replace("−", "-").replace(",", "").replace("+", "")
    decimals = len(digits.partition(".")[2])
    value = 100 * value if "%" in words else value
    return abs(abs(value) - abs(float(digits))) <= 0.5 * 10**-decimals * (1 + 1e-9)


def write_answers(folder, exercise, lines):
    """Write answers.csv of a run."""
    table = lines.assign(n=lines.n.astype("Int64"))
    table.insert(0, "exercise", exercise)
    write_table(folder / "answers.csv", table)


def read_answers(folder):
    """answers.csv of a run as a DataFrame, words as they were written; empty without a file."""
    path = folder / "answers.csv"
    if not path.exists():
        return pd.DataFrame(columns=["exercise", *COLUMNS])
    missing = dict.fromkeys(NUMBERS, [""])
    types = {"exercise": str, "part": str, "where": str, "main": bool, "n": "Int64"}
    options = {"keep_default_na": False, "na_values": missing, "float_precision": "round_trip"}
    return pd.read_csv(path, dtype=types, **options)
