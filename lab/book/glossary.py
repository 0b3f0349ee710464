"""The glossary: terms of the chapter, a sentence each, and where they are measured
(experiments/glossary.yaml).
"""

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from lab.language import in_language
from lab.trials.runs import project_root


class Term(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    term: str
    term_zh: str
    says: str
    says_zh: str
    measured: list[str] = Field(min_length=1)  # exercises, the first one is where it is defined


def glossary():
    """All terms as they stand in the file."""
    path = project_root() / "experiments" / "glossary.yaml"
    return TypeAdapter(list[Term]).validate_python(yaml.safe_load(path.read_text("utf-8")))


def terms(runs):
    """[(term, its name in the other language, sentence, runs that measure it)] in the reader's
    language.
    """
    known = {run.exercise: run for run in runs}
    return [
        (
            in_language(each.term, each.term_zh),
            in_language(each.term_zh, each.term),
            in_language(each.says, each.says_zh),
            [known[name] for name in each.measured if name in known],
        )
        for each in glossary()
    ]
