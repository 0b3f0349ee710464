"""The glossary (experiments/glossary.yaml): terms of the chapter, each with a sentence and the
notebooks that measure it.
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
    measured: list[str] = Field(min_length=1)  # exercises; the first one defines the term


def glossary():
    """[Term] in the order of the file."""
    path = project_root() / "experiments" / "glossary.yaml"
    return TypeAdapter(list[Term]).validate_python(yaml.safe_load(path.read_text("utf-8")))


def terms(runs):
    """[(term, its name in the other language, sentence, [Run] that measures it)].

    Term and sentence are in the reader's language.
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
