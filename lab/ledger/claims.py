"""The ledger of claims, and the rule that turns a measured interval into a verdict.

experiments/claims.yaml holds every claim with its prediction as data, so that the expectation stands before the run.
"""

from functools import lru_cache
from math import inf, isfinite, nan
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from lab.engine.runs import project_root

NOT_RUN, NOT_REPRODUCED = "not run at these values", "not reproduced here"
JUDGED = ("supported", "refuted", "inconclusive", "proved", "disproved")
VERDICTS = (*JUDGED, NOT_RUN, NOT_REPRODUCED, "open", "pending", "not judged")
EXACT = ("theorem", "arithmetic", "structure")


class Prediction(BaseModel):
    """What the claim says will be measured.

    above / below: the effect lies beyond `threshold`, the smallest effect that would matter.
    equal: the effect lies within `tolerance` of `threshold`.
    revised: where a review replaced the comparison after a run, the earlier one and what came of it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    compares: str
    direction: Literal["above", "below", "equal"]
    threshold: float = 0.0
    tolerance: float = Field(0.0, ge=0)
    revised: str = ""

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
        return f"{self.compares} {dict(above='>', below='<', equal='=')[self.direction]} {self.threshold:g}{within}"


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
    arms: dict[str, list] = {}  # values of the notebook's parameters without which nothing can be compared
    open: str = ""  # what judging it would take, for a claim that no run of the lab judges

    @model_validator(mode="after")
    def _open_is_the_exception(self):
        if self.open and (self.prediction or self.priority == "A" or self.kind in EXACT):
            raise ValueError("open: only for comparisons, trends and questions of priority B and C without prediction")
        return self

    def absent(self, parameters):
        """The arms that these parameters leave out, such as "heads 32"; "" where all are there."""
        gone = {
            name: [value for value in values if value not in parameters[name]]
            for name, values in self.arms.items()
            if name in parameters
        }
        return ", ".join(f"{name} {value}" for name, values in gone.items() for value in values)

    @property
    def unjudged(self):
        """The verdict before any run."""
        row = {"id": self.id, "exercise": self.exercise, "unit": self.unit, "threshold": str(self.prediction or "")}
        return Verdict(verdict="open" if self.open else "pending", note=self.open, **row)


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


def ledger(path=None):
    """All claims by id, in the order of the file. ValueError names the claim and field that break the schema."""
    path = path or project_root() / "experiments" / "claims.yaml"
    return dict(_read(path, path.stat().st_mtime_ns))


@lru_cache(maxsize=1)
def _read(path, changed):
    """The claims of a file as of when it was `changed`; reading them takes most of a second."""
    claims = TypeAdapter(list[Claim]).validate_python(yaml.safe_load(path.read_text("utf-8")))
    by_id = {claim.id: claim for claim in claims}
    if len(by_id) != len(claims):
        raise ValueError(f"{path.name}: two claims share an id")
    return by_id


def judge(claim, measured, **where):
    """The verdict on a claim from an Interval, or, for an exact statement, from a number.

    supported: the whole interval agrees with the prediction; refuted: none of it does; else inconclusive, with the
    minimum detectable effect. A number is exact: proved or disproved. where: figure, table, note.
    """
    if claim.prediction is None:
        raise ValueError(f"claim {claim.id} has no prediction in the ledger; write one before judging")
    low, high = claim.prediction.band
    row = {"id": claim.id, "exercise": claim.exercise, "unit": claim.unit, "threshold": str(claim.prediction)} | where
    if isinstance(measured, int | float):
        if claim.kind not in EXACT:
            raise ValueError(f"claim {claim.id} is a {claim.kind}: it wants an interval, not the number {measured}")
        if measured != measured:
            raise ValueError(f"claim {claim.id}: nothing was measured, the number is nan")
        return Verdict(verdict="proved" if low <= measured <= high else "disproved", effect=measured, **row)
    row |= {"effect": measured.effect, "low": measured.low, "high": measured.high, "n": measured.n}
    if low <= measured.low and measured.high <= high:
        return Verdict(verdict="supported", **row)
    if measured.high < low or measured.low > high:
        return Verdict(verdict="refuted", **row)
    if isfinite(measured.mde):
        row["note"] = f"{row.get('note', '')} minimum detectable effect {measured.mde:.3g}".strip()
    return Verdict(verdict="inconclusive", **row)
