"""Claims: read the questions of a lesson, judge them from a table of runs, format the answers.

A claim (experiments/claims/NN_slug.yaml, see the README.md there) quotes the book and asks one
question about the quote, or several in `parts`. Each combination of values of `by` is a condition.
Arms are the variants that are compared: values of the column in `compare`. A line is the answer for
one condition and, if arms are compared, one pair of arms.

*Yes*: the whole 95 % confidence interval lies in the band of effects that mean yes (`Part.band`).
*No*: the whole interval lies outside the band. *Unclear*: neither; or a limit of the interval
equals a limit of the band (for `within`, these belong to the band), the interval is not defined,
a number is not finite, too few runs learned, or `needs` or `same` is violated.
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
MIN_LEARNED = 7 / 8  # minimum share of the runs of an arm that must have learned
MAX_RUNS = 100  # largest number of runs that is suggested
ROUNDING = 2e-15  # tolerance of exact statements; relative if |value| > 1
NUMBERS = ("effect", "low", "high", "n")
COLUMNS = ["id", "part", "question", "where", *NUMBERS, "unit", "bar", "answer", "why", "main"]
COLUMNS += ["learned", "figure", "table", "note"]
PERCENT = ("relative", "share", "difference of shares")  # units shown in % or, for the last, points
Words = Annotated[str, Field(min_length=1)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Says(Strict):
    """A quoted sentence and its place in the book."""

    place: Words
    en: Words
    zh: str = ""


class Part(Strict):
    """A question; experiments/claims/README.md explains the fields."""

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
    def _check_arms(self):
        n = len(next(iter(self.compare.values()), []))
        wrong = {"mean": n != 0, "ratio": n != 0, "slope": n < 3}.get(self.how, n != 2)
        if self.measure and (len(self.compare) > 1 or wrong):
            raise ValueError(
                "compare: expected one column with two arms "
                "(mean, ratio: no column; slope: at least three values)"
            )
        return self

    @property
    def smallest(self):
        """The smallest difference that matters."""
        return self.bar if self.bar is not None else bar_of(self.measure, self.how)["bar"]

    @property
    def band(self):
        """The range of effects that means yes, (low, high)."""
        low, high = self.value - self.smallest, self.value + self.smallest
        ends = {"above": (high, inf), "below": (-inf, low), "within": (low, high)}
        return (ends | {"not above": (-inf, high), "not below": (low, inf)})[self.direction]

    def arms(self):
        """A list with one tuple of compared arms per line; [()] if nothing is compared."""
        if not self.compare:
            return [()]
        values = next(iter(self.compare.values()))
        if self.how == "slope":
            return [tuple(values)]
        return list(product(*(value if isinstance(value, list) else [value] for value in values)))


OF_PARTS = {field.alias or name for name, field in Part.model_fields.items()} - {"name"}


class Claim(Strict):
    """A quote from the book and the questions about it.

    Fields of `Part` at the top level are defaults for all `parts`; without `parts` they define the
    only one. `kind` is comparison (yes, no, unclear), question (a number with its interval; no
    verdict) or exact. If no run judges the claim, `open` says what would be needed to judge it.
    """

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    kind: Literal["comparison", "question", "exact"] = "comparison"
    says: list[Says] = []
    parts: list[Part] = []
    open: str = ""

    @model_validator(mode="before")
    @classmethod
    def _in_parts(cls, entry):
        """Move top-level fields of `Part` into the parts of the entry."""
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
            raise ValueError("parts: each part needs a unique `name`")
        if bool(self.parts) == bool(self.open):
            raise ValueError("give either a question or `open`")
        for part in self.parts:
            if part.bar is None and part.measure:
                bar_of(part.measure, part.how)
        return self

    @property
    def sentence(self):
        """The quoted sentence, or the question if there is no quote."""
        return self.says[0].en if self.says else (self.parts[0].question if self.parts else self.id)


def folder():
    return project_root() / "experiments" / "claims"


def load(path):
    return yaml.load(path.read_text("utf-8"), yaml.CSafeLoader)


def read(path):
    """{id: Claim} of a file. Raises Refused; the message names the file, claim and field."""
    try:
        entries = load(path)
    except yaml.YAMLError as error:
        raise Refused(f"{shown(path)}: {error}") from None
    if not isinstance(entries or [], list):
        raise Refused(f"{shown(path)}: expected a list of claims, each starting with `- id: …`")
    claims = {}
    for entry in entries or []:
        name = entry.get("id") if isinstance(entry, dict) else entry
        try:
            claim = Claim.model_validate(entry)
        except ValidationError as error:
            wrong = [f"{'.'.join(map(str, e['loc']))} {e['msg']}".strip() for e in error.errors()]
            message = "; ".join(wrong).replace("Value error, ", "")
            raise Refused(f"{shown(path)}: claim {name}: {message}") from None
        if claim.id in claims:
            raise Refused(f"{shown(path)}: duplicate id {claim.id}")
        claims[claim.id] = claim
    return claims


def bar_of(measure, how):
    """{bar, because} of a measure in experiments/bars.yaml. Raises ValueError if there is none."""
    path = folder().with_name("bars.yaml")
    bars = load(path) if path.exists() else {}
    if how in bars.get(measure, {}):
        return bars[measure][how]
    raise ValueError(
        f"bar: experiments/bars.yaml has no bar for {measure!r} as {how}: add it with its reason, "
        "or set `bar` in the claim"
    )


# Judging


def judge(claim, measured, **where):
    """Judge a claim: a DataFrame with one line per part, condition and compared pair; see COLUMNS.

    `measured` is a table with one row per seed, arm and condition, or {name of a part: table}; a
    part named "control of X" is judged on the table of part X. For a part without a `measure`,
    `measured` is an Interval; for an exact statement, a number (answer: checked) or a sympy
    expression (answer: proved). `where` sets the fields figure, table and note.

    Raises TypeError if a part gets the wrong type, ValueError if the table lacks a column or has
    several rows for a seed.
    """
    lines = []
    for part in claim.parts:
        source = part.name.removeprefix("control of ")
        data = measured[source] if isinstance(measured, dict) else measured
        if bool(part.measure) != isinstance(data, pd.DataFrame):
            expected = "a table" if part.measure else "a number or an Interval"
            raise TypeError(f"claim {claim.id} needs {expected}, not {type(data).__name__}")
        if part.measure:
            results = judge_table(part, data.reset_index(drop=True))
        elif isinstance(data, statistics.Interval):
            results = [interval_fields(data) | verdict(part, data)]
        elif claim.kind == "exact":
            results = [judge_number(part, data)]
        else:
            raise TypeError(f"claim {claim.id} needs an Interval, not the number {data}")
        lines += [common_fields(claim, part, line) | where | line for line in results]
    table = line_table(lines)
    if claim.kind == "question":
        table.loc[table.answer.isin([YES, NO, UNCLEAR]), ["answer", "why"]] = ["answered", ""]
    return table


def unanswered(claim, answer, why=""):
    """The lines of a claim that has no measurement, with an answer such as "not judged"."""
    lines = [common_fields(claim, part, {}) for part in claim.parts]
    lines = lines or [{"id": claim.id, "question": claim.sentence, "main": False}]
    return line_table([line | {"answer": answer, "why": why} for line in lines])


def line_table(lines):
    """A DataFrame of lines; missing fields are NaN in NUMBERS and "" elsewhere."""
    table = pd.DataFrame(lines).reindex(columns=COLUMNS)
    words = [name for name in COLUMNS if name not in (*NUMBERS, "main")]
    return table.fillna(dict.fromkeys(words, ""))


def common_fields(claim, part, line):
    """The fields of a line that do not depend on the measurement."""
    is_main = part.main is not None and part.main.items() <= line.pop("chosen", {}).items()
    bar = "" if claim.kind == "question" else format_bar(part)
    words = {"id": claim.id, "part": part.name, "question": part.question, "unit": part.unit}
    return words | {"bar": bar, "main": is_main}


def judge_number(part, number):
    """The line of an exact statement."""
    value = float(number)
    if value != value:
        raise ValueError(f"{part.question!r}: the number is NaN")
    low, high = part.band
    tolerance = ROUNDING * max(1.0, abs(part.value))
    holds = low - tolerance <= value <= high + tolerance
    confirmed = "proved" if type(number).__module__.startswith("sympy") else "checked"
    return {"effect": value, "answer": confirmed if holds else "disproved"}


def judge_table(part, table):
    """Judge a part: a list of lines, one per condition and pair of arms."""
    needed = [part.measure, "seed", *part.rows, *part.by, *part.compare]
    if missing := [name for name in needed if name not in table.columns]:
        raise ValueError(
            f"the table has no column {', '.join(missing)}; columns: {', '.join(table.columns)}"
        )
    lines = []
    for values, arms in product(product(*part.by.values()), part.arms()):
        lines.append(judge_condition(part, table, dict(zip(part.by, values, strict=True)), arms))
    return lines


def judge_condition(part, table, chosen, arms):
    """The line of one condition and pair of arms."""
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
    line |= interval_fields(interval)
    shares = count_learned(part, table, chosen, sides)
    line["learned"] = ", ".join(f"{name} {n}/{of}" for name, (n, of) in shares.items())
    if reasons := reasons_unclear(part, table, chosen, sides, shares):
        return line | {"answer": UNCLEAR, "why": "; ".join(reasons)}
    return line | verdict(part, interval)


def select(table, chosen):
    """The rows that match {column: value}."""
    for name, value in chosen.items():
        table = table[table[name] == value]
    return table


def by_seed(rows, measure):
    """The measure of one arm: a Series indexed by seed. Raises ValueError for repeated seeds."""
    values = rows.set_index("seed")[measure]
    if not values.index.is_unique:
        seed = values.index[values.index.duplicated()][0]
        raise ValueError(f"seed {seed} has several rows of {measure}")
    return values


def interval_of(part, sides, arms):
    """The effect and its 95 % confidence interval over seeds; None if a number is not finite."""
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
            return statistics.ratio(values[0], pd.Series(1.0, values[0].index))
        if statistics.outcomes(values[0]):
            return statistics.share(values[0])
        mean = statistics.mean(values[0])
        is_share = part.unit.startswith("share") and mean.n > 1
        return statistics.within(mean, 0.0, 1.0) if is_share else mean
    except statistics.NotFinite:
        return None


def interval_fields(interval):
    """The fields of a line that hold the interval."""
    return {name: getattr(interval, name, np.nan) for name in NUMBERS}


def count_learned(part, table, chosen, sides):
    """{arm: (number of runs that learned, number of runs)} of compared arms and reference."""
    if not part.learned:
        return {}
    sides = dict(sides)
    reference = reference_of(part, table, chosen, sides)
    if part.reference and not any(
        reference.index.isin(side.index).all() for side in sides.values()
    ):
        sides[" ".join(f"{name} {value}" for name, value in part.reference.items())] = reference
    counts = {}
    for name, side in sides.items():
        passed = np.logical_and.reduce([side.eval(each) for each in part.learned])
        runs = pd.Series(passed, side.index).groupby(side.seed).all()
        counts[name] = int(runs.sum()), len(runs)
    return counts


def reference_of(part, table, chosen, sides):
    """The rows that match `reference`: those of the compared arms or, if none match, of the table.

    Rows of the whole table must also match the condition, column by column. A column is skipped if
    none of the rows left matches it.
    """
    both = pd.concat(sides.values())
    rows = select(both[~both.index.duplicated()], part.reference)
    if not rows.empty:
        return rows
    rows = select(table, part.reference)
    for name, value in chosen.items():
        same = rows[rows[name] == value]
        rows = rows if same.empty else same
    return rows


def reasons_unclear(part, table, chosen, sides, shares):
    """The reasons why the runs of a line cannot be judged: a list of sentences."""
    reasons = [
        f"only {n} of {of} runs of {name} learned"
        for name, (n, of) in shares.items()
        if n < MIN_LEARNED * of
    ]
    reference = reference_of(part, table, chosen, sides)
    reasons += [f"`{need}` is false" for need in part.needs if not reference.eval(need).all()]
    both = pd.concat(sides.values())
    differ = [name for name in part.same if (both.groupby("seed")[name].nunique() > 1).any()]
    return reasons + [f"{name} is not equal in all arms" for name in differ]


def verdict(part, interval):
    """{answer, why} of an interval.

    An interval that ends exactly on a limit of `part.band` is unclear; for `within`, the limits
    belong to the band.
    """
    if interval is None:
        return {"answer": UNCLEAR, "why": "some numbers are not finite"}
    low, high = part.band
    if not interval.low <= interval.high:
        return {"answer": UNCLEAR, "why": "the interval is not defined"}
    touches = part.direction != "within" and (interval.low == low or interval.high == high)
    if low <= interval.low and interval.high <= high and not touches:
        return {"answer": YES, "why": ""}
    if interval.high < low or interval.low > high:
        return {"answer": NO, "why": but_not_zero(part, interval)}
    return {"answer": UNCLEAR, "why": suggestion(part, interval)}


def but_not_zero(part, interval):
    """The reason for a "no" if the effect is small: "above 0, by less than 1 %"; else ""."""
    bar = format_numbers(part.unit, part.smallest)[0].removeprefix("+")
    if part.value == 0 and part.direction == "above" and interval.low > 0:
        return f"above 0, by less than {bar}"
    if part.value == 0 and part.direction == "below" and interval.high < 0:
        return f"below 0, by less than {bar}"
    return ""


def suggestion(part, interval):
    """The number of runs that would settle an unclear answer, or why none is given.

    Returns "" if the interval has no standard error, as for shares.
    """
    if interval.n == 1:
        return "a single run has no interval"
    near = min(
        (end for end in part.band if isfinite(end)), key=lambda end: abs(end - interval.effect)
    )
    low, high = sorted((near / 2, 2 * near))
    if near and low <= interval.low and interval.high <= high:
        return "the effect is about as large as the threshold"
    if part.how in ("change", "ratio") and part.measure:
        scale = log1p if part.how == "change" else log
        logs = [scale(x) for x in (interval.effect, interval.low, interval.high)]
        interval, near = statistics.Interval(*logs, interval.n, scale(interval.mde)), scale(near)
    if not isfinite(interval.mde):
        return ""  # the interval of a share has no standard error
    n = statistics.enough(interval, near, MAX_RUNS)
    return f"{n} runs would suffice" if n else f"needs more than {MAX_RUNS} runs"


# Formatting


def format_numbers(unit, *values):
    """Format numbers with three significant digits.

    Relative changes and shares are in percent, differences of shares in percentage points.
    """
    if unit.startswith(PERCENT):
        sign = "" if unit.startswith("share") else "+"
        name = "points" if unit.startswith("difference of shares") else "%"
        percents = [
            100 * value if abs(value) >= 0.01 else round(100 * value, 2) + 0.0  # not -0
            for value in values
        ]
        return [f"{percent:{sign}.3g} {name}" for percent in percents]
    return [f"{value:.3g}" for value in values]


def format_effect(line):
    """The effect and its interval, such as "+3.5 % [+2.5 %, +4.5 %]"; "" if there is none.

    The word "points" appears once: "+44 points [+42, +46]".
    """
    if pd.isna(line.effect):
        return ""
    values = [x for x in (line.effect, line.low, line.high) if pd.notna(x)]
    effect, *interval = format_numbers(line.unit or "", *values)
    interval = [end.removesuffix(" points") for end in interval]
    return effect + (f" [{', '.join(interval)}]" if len(interval) == 2 else "")


def format_bar(part):
    """The effects that mean yes, such as "> +2 %" or "1 ± 0.2"."""
    value, margin = format_numbers(part.unit, part.value, part.smallest)
    low, high = format_numbers(part.unit, *part.band)
    words = {"within": f"{value} ± {margin.removeprefix('+')}"}
    words |= {"above": f"> {low}", "below": f"< {high}"}
    return (words | {"not above": f"< {high}", "not below": f"> {low}"})[part.direction]


def card(claim, lines):
    """Format a claim in Markdown: the quotes, and a table with one row per line."""
    quotes = [f"**{claim.sentence}**"] if claim.says else []
    quotes += [f"{quote.zh} *{quote.place}*" for quote in claim.says]
    because = dict.fromkeys(part.because for part in claim.parts if part.because)
    reasons = [f"The threshold: {reason}" for reason in because]
    return "\n\n".join([*quotes, lesson_card(lines, details=True), *reasons])


def lesson_card(lines, words=None, details=False):
    """The answers of a lesson as a Markdown table, one row per answer.

    The main lines of a question come first. `words` is a function that says in words what a line
    means, such as "worse, by 6 %"; its column replaces the reasons beside the answers. With
    `details`, the table also has the effects that mean yes, the runs that learned and the notes.
    """
    rows = []
    for question, part in lines.groupby("question", sort=False):
        for line in part.sort_values("main", ascending=False, kind="stable").itertuples():
            row = {"question": question, "where": line.where.removeprefix("where ")}
            if words:
                row["in words"] = words(line) if pd.notna(line.effect) else ""
            row["measured [95 % interval]"] = format_effect(line)
            row["n"] = "" if pd.isna(line.n) else f"{line.n:.0f}"
            why = f" ({line.why})" if line.why and not words else ""
            row["answer"] = f"**{line.answer}**{why}"
            if details:
                row |= {"yes if": line.bar, "learned": line.learned, "note": line.note}
            rows.append(row)
            question = ""  # only in the first row
    return markdown(pd.DataFrame(rows))


def scorecard_text(lines):
    """The answers of a lesson as text, the main lines first."""
    text = ""
    for line in lines.sort_values("main", ascending=False, kind="stable").itertuples():
        where = f" ({line.where})" if line.where else ""
        found = "; ".join(filter(None, [format_effect(line), line.answer]))
        text += f"  {line.question}{where}\n      {found}\n"
    return text.rstrip()


def markdown(table):
    """Format a DataFrame of strings as a Markdown table, without empty columns."""
    names = [name for name in table if table[name].ne("").any()]
    rows = [
        [str(cell).replace("|", "\\|").replace("\n", " ") for cell in row]
        for row in table[names].values
    ]
    lines = [names, [":--"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rounds_to(value, words):
    """Whether a value rounds to the number in a text; "3.5 %" is 0.035; signs are ignored."""
    number = re.search(r"[-+−]?\d[\d,]*\.?\d*", words)[0]
    digits = number.replace("−", "-").replace(",", "").replace("+", "")
    decimals = len(digits.partition(".")[2])
    value = 100 * value if "%" in words else value
    return abs(abs(value) - abs(float(digits))) <= 0.5 * 10**-decimals * (1 + 1e-9)


def write_answers(folder, exercise, lines):
    """Write answers.csv of a run."""
    table = lines.assign(n=lines.n.astype("Int64"))
    table.insert(0, "exercise", exercise)
    write_table(folder / "answers.csv", table)


def read_answers(folder):
    """Read answers.csv of a run into a DataFrame; empty if there is no file."""
    path = folder / "answers.csv"
    if not path.exists():
        return pd.DataFrame(columns=["exercise", *COLUMNS])
    missing = dict.fromkeys(NUMBERS, [""])
    types = {"exercise": str, "part": str, "where": str, "main": bool, "n": "Int64"}
    options = {"keep_default_na": False, "na_values": missing, "float_precision": "round_trip"}
    return pd.read_csv(path, dtype=types, **options)
