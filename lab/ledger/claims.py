"""The ledger of claims, and what a verdict is.

experiments/claims.yaml holds every claim with its prediction as data, so that the expectation stands before the run.
"""

import hashlib
from difflib import get_close_matches
from functools import lru_cache
from math import inf, nan
from typing import Literal

import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from lab.engine.runs import project_root
from lab.language import in_language, tr
from lab.ledger.arms import Arms
from lab.ledger.gates import Needs

NOT_RUN, NOT_REPRODUCED, OUT_OF_REACH = "not run at these values", "not reproduced here", "out of reach"
JUDGED = ("supported", "refuted", "inconclusive", "proved", "disproved")
VERDICTS = (*JUDGED, OUT_OF_REACH, "answered", NOT_RUN, NOT_REPRODUCED, "open", "pending", "not judged")
UNGATED = "not yet gated"
EXACT = ("theorem", "arithmetic", "structure")


class Prediction(BaseModel):
    """What the claim says will be measured.

    above / below: the effect lies beyond `threshold`, the smallest effect that would matter.
    equal: the effect lies within `tolerance` of `threshold`.
    because: why the threshold is the smallest effect that would matter.
    revised: where a review replaced the comparison after a run, the earlier one and what came of it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    compares: str
    compares_zh: str = ""
    direction: Literal["above", "below", "equal"]
    threshold: float = 0.0
    tolerance: float = Field(0.0, ge=0)
    because: str = ""
    because_zh: str = ""
    revised: str = ""
    revised_zh: str = ""

    @model_validator(mode="after")
    def _tolerance_belongs_to_equal(self):
        if self.tolerance and self.direction != "equal":
            raise ValueError("tolerance goes with direction: equal")
        return self

    @property
    def band(self):
        """The effects that agree with the claim, (low, high)."""
        return {
            "above": (self.threshold, inf),
            "below": (-inf, self.threshold),
            "equal": (self.threshold - self.tolerance, self.threshold + self.tolerance),
        }[self.direction]

    def __str__(self):
        within = f" ± {self.tolerance:g}" if self.direction == "equal" else ""
        compares = in_language(self.compares, self.compares_zh)
        return f"{compares} {dict(above='>', below='<', equal='=')[self.direction]} {self.threshold:g}{within}"


class Claim(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    exercise: str = Field(pattern=r"^(1\.[1-9][0-9]*|beyond)$")
    kind: Literal["theorem", "arithmetic", "structure", "comparison", "trend", "question"]
    priority: Literal["A", "B", "C"]
    sources: list[str] = Field(min_length=1)
    claim: str
    claim_zh: str
    metric: str
    unit: str = ""
    expected: str = ""  # the expectation in words, for claims whose exercise is not built yet
    prediction: Prediction | None = None
    place: Literal["lesson", "appendix", ""] = ""
    arms: Arms | None = None  # which rows of a table are compared
    reference: dict = {}  # {column: value} of the arm that must have learned, among them
    needs: Needs | None = None  # gates that the comparison must pass
    values: dict[str, list] = {}  # of the notebook's parameters, where a claim without `arms` needs them
    was: list[str] = []  # earlier ids, where it was renamed or others were merged into it
    open: str = ""  # what judging it would take, for a claim that no run of the lab judges
    finding: dict[str, str] = {}  # by verdict: the sentence that a README says, filled by lab.ledger.findings
    finding_zh: dict[str, str] = {}

    @model_validator(mode="after")
    def _open_is_the_exception(self):
        if self.open and (self.prediction or self.priority == "A" or self.kind in EXACT):
            raise ValueError("open: only for comparisons, trends and questions of priority B and C without prediction")
        return self

    @model_validator(mode="after")
    def _a_comparison_needs_gates(self):
        if self.arms and self.kind in ("comparison", "trend") and not (self.needs and self.needs.gates):
            raise ValueError("a comparison with arms needs gates")
        if self.arms and (self.kind in EXACT or not self.prediction or self.values):
            raise ValueError("arms: of what is predicted and not exact; the rows say what is there, not `values`")
        return self

    @model_validator(mode="after")
    def _a_finding_is_told_in_both_languages(self):
        if self.finding.keys() != self.finding_zh.keys() or not self.finding.keys() <= set(JUDGED):
            raise ValueError(f"finding and finding_zh: sentences for the same verdicts, of {', '.join(JUDGED)}")
        return self

    @property
    def sentence(self):
        """The claim in the reader's language."""
        return in_language(self.claim, self.claim_zh)

    @property
    def timing(self):
        """Whether a verdict belongs to the machine that gave it."""
        return self.needs is not None and self.needs.machine

    @property
    def gated(self):
        """Whether gates decide if there is a verdict; what is exact or a question needs none."""
        return self.arms is not None or self.kind in (*EXACT, "question")

    def absent(self, parameters):
        """The values that these parameters leave out, such as "heads 32"; "" where all are there."""
        gone = {
            name: [value for value in values if value not in parameters[name]]
            for name, values in self.values.items()
            if name in parameters
        }
        return ", ".join(f"{name} {value}" for name, values in gone.items() for value in values)

    @property
    def compared(self):
        """What was predicted, in words; of a question, what is measured."""
        if self.kind == "question" and self.prediction:
            return in_language(self.prediction.compares, self.prediction.compares_zh)
        return str(self.prediction or "")

    @property
    def unjudged(self):
        """The verdict before any run."""
        row = {"id": self.id, "exercise": self.exercise, "unit": self.unit, "threshold": self.compared}
        return Verdict(verdict="open" if self.open else "pending", note=self.open, **row)


class Stamp(BaseModel):
    """When a prediction was written, and what was known then."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    time: str  # UTC
    sha256: str  # of what was predicted, of which models, on what
    known: int = 0  # trials of the comparison that were there already
    trials: int = 0

    def __str__(self):
        told = tr("{time} UTC, sha256 {sha}", time=self.time, sha=self.sha256[:12])
        if not self.known:
            return tr("{told}, before the run", told=told)
        return tr(
            "{told}, when {known} of {trials} trials were there already",
            told=told,
            known=self.known,
            trials=self.trials,
        )


class OwnClaim(Claim):
    """A claim in a ledger of one's own: no exercise of the chapter, and no Chinese sentence, is needed."""

    exercise: str = ""  # the notebook that judges it; empty: any
    kind: Literal["theorem", "arithmetic", "structure", "comparison", "trend", "question"] = "comparison"
    priority: Literal["A", "B", "C"] = "C"
    sources: list[str] = []
    claim_zh: str = ""
    metric: str = ""
    stamp: Stamp | None = None


class Verdict(BaseModel):
    """One row of verdicts.csv."""

    id: str
    exercise: str
    verdict: Literal[VERDICTS]
    effect: float = nan
    low: float = nan
    high: float = nan
    unit: str = ""
    n: int | None = None
    threshold: str = ""
    figure: str = ""
    table: str = ""
    note: str = ""
    gates: str = ""  # each with its number; UNGATED where a comparison has none yet
    sizes: str = ""  # where it holds


SHARES = {"relative change": "+", "share of heads": "", "share": ""}  # units told in per cent, with their sign


def effect_of(verdict, digits=4):
    """The effect with its interval, in words; "" where nothing was measured."""
    return "" if verdict.effect != verdict.effect else in_words(verdict, verdict.unit, digits)


def in_words(interval, unit="", digits=4):
    """An effect with its ends, if it has any: "+3.46 % [+2.46 %, +4.46 %]", "0.12 [0.1, 0.14]"."""
    sign, share = SHARES.get(unit, ""), unit in SHARES
    form = (lambda x: f"{100 * x:{sign}.3g} %") if share else (lambda x: f"{x:.{digits}g}")
    ends = "" if interval.low != interval.low else f" [{form(interval.low)}, {form(interval.high)}]"
    return form(interval.effect) + ends


def ledger(path=None):
    """All claims by id, in the order of the file. ValueError names the claim and field that break the schema."""
    path = path or project_root() / "experiments" / "claims.yaml"
    return dict(_read(path, path.stat().st_mtime_ns))


def ledger_hash(notebook):
    """The hash of the claims that a notebook judges, "" where there are none."""
    path = project_root() / "experiments" / "claims.yaml"
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""


def own_ledger(path):
    """The claims of a ledger of one's own by id. ValueError names the file, and the claim and field that break it."""
    try:
        return dict(_read(path, path.stat().st_mtime_ns, OwnClaim))
    except (ValueError, yaml.YAMLError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


@lru_cache(maxsize=2)
def _read(path, changed, kind=Claim):
    """The claims of a file as of when it was `changed`; reading them takes most of a second."""
    claims = TypeAdapter(list[kind]).validate_python(yaml.safe_load(path.read_text("utf-8")) or [])
    by_id = {claim.id: claim for claim in claims}
    names = [name for claim in claims for name in (claim.id, *claim.was)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{path.name}: two claims share an id: {twice[0]}")
    return by_id


def read_verdicts(folder):
    """verdicts.csv of a run, its questions answered whatever it calls that; no rows where a run has none."""
    path, numbers = folder / "verdicts.csv", dict.fromkeys(("effect", "low", "high", "n"), [""])
    if not path.exists():
        return pd.DataFrame(columns=list(Verdict.model_fields))
    exact = {"dtype": {"exercise": str, "n": "Int64"}, "float_precision": "round_trip"}
    table = pd.read_csv(path, keep_default_na=False, na_values=numbers, **exact)
    asked = {claim.id: claim.compared for claim in ledger().values() if claim.kind == "question"}
    table = table.reindex(columns=list(Verdict.model_fields)).fillna({"gates": "", "sizes": ""})  # older runs lack them
    table["gates"] = gates_of(table)
    judged = table.id.isin(asked) & table.verdict.isin(JUDGED)
    table.loc[judged, "threshold"] = table.id[judged].map(asked)
    table.loc[judged, "verdict"] = "answered"
    return table


def gates_of(table):
    """The gates of a table of verdicts; `not yet gated` where a comparison was judged without any."""
    known = ledger()
    bare = table.verdict.isin(JUDGED) & table.id.map(lambda name: name in known and not known[name].gated)
    return table.gates.mask(bare & (table.gates == ""), UNGATED)


def find(name, path=None):
    """The claim of this id, also where it is an earlier one. ValueError where there is none."""
    by_name = {each: claim for claim in ledger(path).values() for each in (claim.id, *claim.was)}
    if name not in by_name:
        near = ", ".join(get_close_matches(name, by_name)) or "those that `lab claims` lists"
        raise ValueError(f"there is no claim {name!r}; there are {near}")
    return by_name[name]
