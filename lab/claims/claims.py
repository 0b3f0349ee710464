"""The ledger of claims, and what a verdict is.

experiments/claims/ holds every claim with its prediction as data, so that the expectation stands
before the run: a file for each notebook, which has its name, and beyond.yaml for claims of none.
"""

import hashlib
from difflib import get_close_matches
from functools import lru_cache
from math import inf, nan
from typing import Literal

import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lab.claims.arms import Arms
from lab.claims.gates import Needs
from lab.language import in_language, tr
from lab.trials import parameters
from lab.trials.runs import project_root, shown

NOT_RUN, OUT_OF_REACH = "not run at these values", "out of reach"
JUDGED = ("supported", "refuted", "inconclusive", "proved", "disproved")
VERDICTS = (*JUDGED, OUT_OF_REACH, "answered", NOT_RUN, "open", "pending", "not judged")
UNGATED = "not yet gated"
SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times as fast
EXACT = ("theorem", "arithmetic", "structure")
BEYOND = "beyond"


class Prediction(BaseModel):
    """What the claim says will be measured.

    above / below: the effect lies beyond `threshold`, the smallest effect that would matter. equal:
    the effect lies within `tolerance` of `threshold`. because: why the threshold is the smallest
    effect that would matter. revised: where a review replaced the comparison after a run, the
    earlier one and what came of it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    compares: str = Field(min_length=1)
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
    """A claim of the ledger; experiments/claims/README.md says what the fields hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    exercise: str = Field(pattern=r"^(1\.[1-9][0-9]*|beyond)$")
    kind: Literal["theorem", "arithmetic", "structure", "comparison", "trend", "question"]
    priority: Literal["A", "B", "C"]
    sources: list[str] = Field(min_length=1)
    claim: str = Field(min_length=1)
    claim_zh: str = ""
    metric: str = Field(min_length=1)
    unit: str = ""
    expected: str = ""  # the expectation in words, for claims whose exercise is not built yet
    prediction: Prediction | None = None
    place: Literal["lesson", "appendix", ""] = ""
    arms: Arms | None = None  # which rows of a table are compared
    reference: dict = {}  # {column: value} of the arm that must have learned, among them
    needs: Needs | None = None  # gates that the comparison must pass
    values: dict[
        str, list
    ] = {}  # of the notebook's parameters, where a claim without `arms` needs them
    open: str = ""  # what judging it would take, for a claim that no run of the lab judges
    finding: dict[
        str, str
    ] = {}  # by verdict: the sentence that a README says, filled by lab.claims.report
    finding_zh: dict[str, str] = {}

    @model_validator(mode="after")
    def _open_is_the_exception(self):
        if self.open and (self.prediction or self.priority == "A" or self.kind in EXACT):
            raise ValueError(
                "open: only for comparisons, trends and questions of priority B and C without prediction"
            )
        return self

    @model_validator(mode="after")
    def _a_comparison_needs_gates(self):
        if (
            self.arms
            and self.kind in ("comparison", "trend")
            and not (self.needs and self.needs.gates)
        ):
            raise ValueError("needs: a comparison with arms needs gates")
        if self.arms and (self.kind in EXACT or not self.prediction or self.values):
            raise ValueError(
                "arms: of what is predicted and not exact; the rows say what is there, not `values`"
            )
        return self

    @model_validator(mode="after")
    def _fit_to_be_published(self):
        """What a claim of one's own need not be."""
        if not (self.prediction or self.expected or self.open):
            raise ValueError("expected: or a prediction, or `open` with what judging it would take")
        exactly = (
            self.prediction
            and self.prediction.direction == "equal"
            and not self.prediction.tolerance
        )
        if exactly and self.kind not in EXACT:
            raise ValueError("prediction: without a tolerance measured numbers are never equal")
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
        row = {
            "id": self.id,
            "exercise": self.exercise,
            "unit": self.unit,
            "threshold": self.compared,
        }
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
    """A claim in a ledger of one's own: no exercise of the chapter, and no Chinese sentence, is
    needed.
    """

    exercise: str = ""  # the notebook that judges it; empty: any
    kind: Literal["theorem", "arithmetic", "structure", "comparison", "trend", "question"] = (
        "comparison"
    )
    priority: Literal["A", "B", "C"] = "C"
    sources: list[str] = []
    metric: str = ""
    stamp: Stamp | None = None

    @model_validator(mode="after")
    def _fit_to_be_published(self):
        return self


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


def ledger(folder=None):
    """All claims by id, in the order of the files' names.

    ValueError names the file, claim and field that are wrong.
    """
    folder = folder or claims_folder()
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no ledger {folder}")
    homes = {parameters.exercise_of(notebook): notebook.stem for notebook in parameters.notebooks()}
    found = [
        (path, claim)
        for path in sorted(folder.glob("*.yaml"))
        for claim in _read(path, _changed(path))
    ]
    for path, claim in found:
        if path.stem != (home := homes.get(claim.exercise, BEYOND)):
            raise ValueError(
                f"{shown(path)}: claim {claim.id}: exercise: {claim.exercise} belongs in {home}.yaml"
            )
        if home != BEYOND and not (claim.prediction or claim.open):
            raise ValueError(
                f"{shown(path)}: claim {claim.id}: prediction: it is judged: say what is expected, as data"
            )
    return _by_id(found)


def known():
    """All claims by id; none where the package is installed without its ledger."""
    return ledger() if claims_folder().is_dir() else {}


def own_ledger(path):
    """The claims of a ledger of one's own by id.

    ValueError names the file, and the claim and field that break it.
    """
    return _by_id([(path, claim) for claim in _read(path, _changed(path), OwnClaim)])


def claims_folder():
    return project_root() / "experiments" / "claims"


def ledger_hash(notebook):
    """Of the file with the claims of a notebook; "" where there is none."""
    path = claims_folder() / f"{notebook.stem}.yaml"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def _changed(path):
    there = path.stat()
    return there.st_mtime_ns, there.st_size, there.st_ino


@lru_cache(maxsize=99)
def _read(path, changed, kind=Claim):
    """The claims of a file as of when it was `changed`; reading all files takes most of a second."""
    try:
        entries = yaml.load(path.read_text("utf-8"), SafeLoader) or []
    except yaml.YAMLError as error:
        raise ValueError(f"{shown(path)}: {error}") from None
    if not isinstance(entries, list):
        raise ValueError(
            f"{shown(path)}: a list of claims is wanted, each from a line `- id: …` on"
        )
    return [_claim(path, entry, kind) for entry in entries]


def _claim(path, entry, kind):
    try:
        return kind.model_validate(entry)
    except ValidationError as error:
        name = entry.get("id") if isinstance(entry, dict) else entry
        told = [
            (".".join(map(str, e["loc"])), e["msg"].removeprefix("Value error, "))
            for e in error.errors()
        ]
        wrong = [": ".join(filter(None, each)) for each in told]
        raise ValueError(f"{shown(path)}: claim {name}: {'; '.join(wrong)}") from None


def _by_id(found):
    """{id: claim} of [(file, claim)]."""
    holds = {}
    for path, claim in found:
        if claim.id in holds:
            raise ValueError(
                f"{shown(path)}: two claims share an id: {claim.id}, also in {holds[claim.id].name}"
            )
        holds[claim.id] = path
    return {claim.id: claim for _, claim in found}


def read_verdicts(folder):
    """verdicts.csv of a run, its questions answered whatever it calls that; no rows where a run has
    none.
    """
    path, numbers = folder / "verdicts.csv", dict.fromkeys(("effect", "low", "high", "n"), [""])
    if not path.exists():
        return pd.DataFrame(columns=list(Verdict.model_fields))
    exact = {"dtype": {"exercise": str, "n": "Int64"}, "float_precision": "round_trip"}
    table = pd.read_csv(path, keep_default_na=False, na_values=numbers, **exact)
    asked = {claim.id: claim.compared for claim in known().values() if claim.kind == "question"}
    table = table.reindex(columns=list(Verdict.model_fields)).fillna(
        {"gates": "", "sizes": ""}
    )  # older runs lack them
    table["gates"] = gates_of(table)
    judged = table.id.isin(asked) & table.verdict.isin(JUDGED)
    table.loc[judged, "threshold"] = table.id[judged].map(asked)
    table.loc[judged, "verdict"] = "answered"
    return table


def gates_of(table):
    """The gates of a table of verdicts; `not yet gated` where a comparison was judged without any."""
    by_id = known()
    bare = table.verdict.isin(JUDGED) & table.id.map(
        lambda name: name in by_id and not by_id[name].gated
    )
    return table.gates.mask(bare & (table.gates == ""), UNGATED)


def find(name):
    """The claim of this id. ValueError where there is none."""
    known = ledger()
    if name not in known:
        near = ", ".join(get_close_matches(name, known)) or "those that `lab claims` lists"
        raise ValueError(f"there is no claim {name!r}; there are {near}")
    return known[name]
