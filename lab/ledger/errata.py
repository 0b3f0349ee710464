"""The errata of the sources: what they state, what holds instead, and where the lab computes it.

experiments/errata.yaml holds every suspected error; one that proved to be none stays, struck, with the reason.
"""

import re
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, model_validator

from lab.engine.runs import project_root

TEST = r"tests/ledger/test_errata\w*\.py::test_\w+"
NOTEBOOK = r"[0-9]{2}_[a-z_]+(/[a-z0-9_]+)?"  # a notebook, or one of its figures or tables
LITERATURE = r"literature: \D+ \d{4}"
CHINESE = re.compile("[\u4e00-\u9fff]")

Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
Evidence = Annotated[str, StringConstraints(pattern=f"^({TEST}|{NOTEBOOK}|{LITERATURE})$")]


class Erratum(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    number: int = Field(ge=1)
    source: Literal["chapter", "note 1", "note 2", "note 3", "note 4"]
    where: Text
    says: Text
    says_zh: Text
    right: Text
    right_zh: Text
    evidence: list[Evidence]
    struck: Text | None = None  # why the suspected error is none
    struck_zh: Text | None = None

    @model_validator(mode="after")
    def _shown_and_in_both_languages(self):
        if not self.evidence and self.struck is None:
            raise ValueError("an erratum needs evidence, or struck with the reason why it is none")
        if (self.struck is None) is not (self.struck_zh is None):
            raise ValueError("struck and struck_zh go together")
        for field in ("says", "right", "struck"):
            for name, chinese in ((field, False), (f"{field}_zh", True)):
                text = getattr(self, name)
                if text is not None and bool(CHINESE.search(text)) is not chinese:
                    raise ValueError(f"{name} must {'hold' if chinese else 'not hold'} Chinese")
        return self


def errata(path=None):
    """All entries by id, in the order of the file. ValueError names the entry and field that break the schema."""
    path = path or project_root() / "experiments" / "errata.yaml"
    entries = TypeAdapter(list[Erratum]).validate_python(yaml.safe_load(path.read_text("utf-8")))
    for field in ("id", "number"):
        values = [getattr(entry, field) for entry in entries]
        if twice := sorted({value for value in values if values.count(value) > 1}):
            raise ValueError(f"{path.name}: {field} {twice[0]} stands twice")
    return {entry.id: entry for entry in entries}
