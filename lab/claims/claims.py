"""The ledger of claims, and the lines that answer them.

experiments/claims/ holds every claim with its comparison as data, so that the expectation is
written before the run. Each notebook has a file of its name; beyond.yaml holds claims that no
notebook judges.
"""

import hashlib
from functools import lru_cache
from math import nan
from typing import Literal

import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from lab import files
from lab.claims.cells import Part
from lab.files import project_root, shown

NOT_RUN = "not run at these values"
LABELS = (
    "supported",
    "refuted",
    "not everywhere",
    "undecided",
    "counted",
    "proved",
    "checked",
    "disproved",
    "answered",
    "out of reach",
    NOT_RUN,
    "open",
    "pending",
    "not judged",
)
UNGATED = "not yet gated"
SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times as fast
EXACT = ("theorem", "arithmetic", "structure")
BEYOND = "beyond"
KINDS = Literal["theorem", "arithmetic", "structure", "comparison", "trend", "question"]
OF_PARTS = {field.alias or name for name, field in Part.model_fields.items()} - {"name", "name_zh"}


class Claim(BaseModel):
    """A claim of the ledger; experiments/claims/README.md says what the fields hold.

    Fields of a `Part` may be given beside the claim's own: they are the defaults of all its
    `parts`. Without `parts` they make the only part.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    exercise: str = Field(pattern=r"^(1\.[1-9][0-9]*|beyond)$")
    kind: KINDS
    priority: Literal["A", "B", "C"]
    sources: list[str] = Field(min_length=1)
    claim: str = Field(min_length=1)
    claim_zh: str = ""
    metric: str = Field(min_length=1)
    expected: str = ""  # the expectation in words, for claims whose notebook is not written yet
    parts: list[Part] = []
    values: dict[str, list] = {}  # {notebook parameter: values that a part without a table needs}
    open: str = ""  # what judging it would take, for a claim that no run of the lab judges

    @model_validator(mode="before")
    @classmethod
    def _parts_share_fields(cls, entry):
        if not isinstance(entry, dict):
            return entry
        shared = {name: value for name, value in entry.items() if name in OF_PARTS}
        own = {name: value for name, value in entry.items() if name not in OF_PARTS}
        parts = own.get("parts") or ([{}] if shared else [])
        if isinstance(parts, list) and all(isinstance(part, dict) for part in parts):
            own["parts"] = [shared | part for part in parts]
        return own

    @model_validator(mode="after")
    def _parts_are_told_apart(self):
        names = [part.name for part in self.parts]
        if len(names) > 1 and (len(set(names)) < len(names) or not all(names)):
            raise ValueError("parts: each of several needs a `name` of its own")
        return self

    @model_validator(mode="after")
    def _open_is_the_exception(self):
        if self.open and (self.parts or self.priority == "A" or self.kind in EXACT):
            raise ValueError(
                "open: only for comparisons, trends and questions of priority B and C without parts"
            )
        return self

    @model_validator(mode="after")
    def _a_comparison_needs_gates(self):
        for part in self.parts:
            if not part.measure:
                continue
            if self.kind in EXACT or self.values:
                raise ValueError("measure: exact statements are judged from a number, not rows")
            if self.kind != "question" and not part.needs.gates:
                raise ValueError("needs: a comparison of rows needs gates")
        return self

    @model_validator(mode="after")
    def _fit_to_be_published(self):
        """Check the rules of the project's ledger, from which `OwnClaim` is exempt."""
        if not (self.parts or self.expected or self.open):
            raise ValueError("give parts, `expected`, or `open` with what judging it would take")
        for part in self.parts:
            if part.direction == "equal" and not part.smallest and self.kind not in EXACT:
                raise ValueError("bar: `equal` needs one, as measured numbers are never equal")
        return self

    @property
    def timing(self):
        """Whether an answer holds only for the machine that measured it."""
        return any(part.needs.machine for part in self.parts)

    @property
    def gated(self):
        """Whether the claim has the gates it needs; exact statements and questions need none."""
        exact = self.kind in (*EXACT, "question")
        return exact or any(part.measure for part in self.parts)

    def absent(self, given):
        """The needed values that these parameters lack, such as "heads 32", or ""."""
        gone = []
        for name, values in self.values.items():
            if name in given:
                gone += [f"{name} {value}" for value in values if value not in given[name]]
        return ", ".join(gone)

    def row(self, part):
        """The fields that all lines of a part share."""
        return {
            "id": self.id,
            "exercise": self.exercise,
            "part": part.name,
            "unit": part.unit,
            "bar": bar_in_words(self, part),
            "comparison": part.digest,
            "gates": "" if self.gated else UNGATED,
        }

    @property
    def unjudged(self):
        """The lines of the claim before any run: a single one."""
        answer = "open" if self.open else "pending"
        row = {"id": self.id, "exercise": self.exercise, "answer": answer, "label": answer}
        return [Line(note=self.open, **row)]

    def without_answer(self, answer, note=""):
        """A line for each part that says why there is no answer, such as "not judged"."""
        rows = [self.row(part) for part in self.parts]
        return [Line(answer=answer, label=answer, note=note, cells=1, **row) for row in rows]


class Line(BaseModel):
    """One row of verdicts.csv and claims.csv: a cell of a part, with the label of the part."""

    id: str
    exercise: str
    part: str = ""
    where: str = ""  # the condition; empty where a part has one cell
    effect: float = nan
    low: float = nan
    high: float = nan
    unit: str = ""
    n: int | None = None  # runs, or processes
    answer: str
    label: Literal[LABELS] = "undecided"
    yes: int = 0
    no: int = 0
    cells: int = 0
    bar: str = ""  # the range that means yes, such as "> 0.02"
    comparison: str = ""  # hash of what was compared
    fixed: str = ""  # "before" these runs, or "exploratory"
    figure: str = ""
    table: str = ""
    note: str = ""
    gates: str = ""  # the result of each gate; UNGATED where a comparison has no gates yet
    sizes: str = ""  # the sizes at which it holds


def bar_in_words(claim, part):
    """The range of effects that means yes, such as "> 0.02" or "= 1 ± 0.2"; "" for a question."""
    if claim.kind == "question":
        return ""
    low, high = part.band
    if part.direction == "equal":
        return f"= {part.value:g} ± {part.smallest:g}" if part.smallest else f"= {part.value:g}"
    return f"> {low:g}" if high == float("inf") else f"< {high:g}"


class OwnClaim(Claim):
    """A claim in a user's own ledger: it needs no exercise, no source and no Chinese sentence."""

    exercise: str = ""  # the notebook that judges it; empty: any
    kind: KINDS = "comparison"
    priority: Literal["A", "B", "C"] = "C"
    sources: list[str] = []
    metric: str = ""

    @model_validator(mode="after")
    def _fit_to_be_published(self):
        return self


def ledger(folder=None):
    """All claims by id, in the order of the files' names.

    Raises ValueError with the file, claim and field that are wrong, Refused where the folder is
    missing.
    """
    folder = folder or claims_folder()
    if not folder.is_dir():
        raise files.Refused(f"there is no ledger {folder}; {files.ALONE}")
    homes = {files.exercise_of(notebook): notebook.stem for notebook in files.notebooks()}
    found = [
        (path, claim)
        for path in sorted(folder.glob("*.yaml"))
        for claim in _read(path, _changed(path))
    ]
    for path, claim in found:
        if path.stem != (home := homes.get(claim.exercise, BEYOND)):
            raise ValueError(
                f"{shown(path)}: claim {claim.id}: exercise: "
                f"{claim.exercise} belongs in {home}.yaml"
            )
        if home != BEYOND and not (claim.parts or claim.open):
            raise ValueError(
                f"{shown(path)}: claim {claim.id}: question: a notebook judges this claim: "
                "write its comparison as data"
            )
    return _by_id(found)


def known():
    """All claims by id; none where the package is installed without its ledger."""
    return ledger() if claims_folder().is_dir() else {}


def own_ledger(path):
    """The claims of a user's own ledger by id.

    Raises ValueError with the file, claim and field that are wrong.
    """
    return _by_id([(path, claim) for claim in _read(path, _changed(path), OwnClaim)])


def claims_folder():
    return project_root() / "experiments" / "claims"


def ledger_hash(notebook):
    """The hash of the file with a notebook's claims; "" where there is no file."""
    path = claims_folder() / f"{notebook.stem}.yaml"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def _changed(path):
    there = path.stat()
    return there.st_mtime_ns, there.st_size, there.st_ino


@lru_cache(maxsize=99)
def _read(path, changed, kind=Claim):
    """The claims of a file, cached by `changed`: reading all files takes most of a second."""
    try:
        entries = yaml.load(path.read_text("utf-8"), SafeLoader) or []
    except yaml.YAMLError as error:
        raise ValueError(f"{shown(path)}: {error}") from None
    if not isinstance(entries, list):
        raise ValueError(
            f"{shown(path)}: must be a list of claims, each beginning with a line `- id: …`"
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
    """verdicts.csv of a run as a DataFrame, a row for each line; empty where there is no file."""
    path, columns = folder / "verdicts.csv", list(Line.model_fields)
    numbers = dict.fromkeys(("effect", "low", "high", "n"), [""])
    if not path.exists():
        return pd.DataFrame(columns=columns)
    text = dict.fromkeys(("exercise", "part", "where"), str)
    exact = {"dtype": text | {"n": "Int64"}, "float_precision": "round_trip"}
    return pd.read_csv(path, keep_default_na=False, na_values=numbers, **exact).reindex(
        columns=columns
    )


def by_part(table):
    """The rows of the first line of each part, which have its label and counts."""
    return table.drop_duplicates(["id", "part"])
