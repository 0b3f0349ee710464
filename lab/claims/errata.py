"""The errata of the sources: what they state, what holds instead, and where the lab computes it.

experiments/errata.yaml holds every suspected error. An entry that proved to be no error stays
there, struck through, with the reason.
"""

import re
from math import nan
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, model_validator

from lab.claims.claims import find
from lab.language import in_language, tr
from lab.trials.runs import project_root

TEST = r"tests/claims/test_errata\w*\.py::test_\w+"
NOTEBOOK = r"[0-9]{2}_[a-z_]+(/[a-z0-9_]+)?"  # a notebook, or one of its figures or tables
LITERATURE = r"literature: \D+ \d{4}"
NUMBER = re.compile(r"\{([a-z0-9-]+)\.(effect|low|high):([^{}]+)\}")  # of a claim's first line
SAYS = {
    "fails": ("refuted", "disproved", "not everywhere"),
    "holds": ("supported", "proved", "checked"),
    "undecided": ("undecided",),
}
DECIDED = {*SAYS["fails"], *SAYS["holds"]}

Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
Evidence = Annotated[str, StringConstraints(pattern=f"^({TEST}|{NOTEBOOK}|{LITERATURE})$")]


class Erratum(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")
    number: int = Field(ge=1)
    was: dict[str, int] = {}  # {id: number} of entries merged into this one, or of its earlier name
    source: Literal["chapter", "note 1", "note 2", "note 3", "note 4"]
    where: Text
    says: Text
    says_zh: Text
    right: Text
    right_zh: Text
    # {claim or "claim/part": the answer it must come to}; or, as text, why no claim is named
    claims: dict[str, Literal["fails", "holds", "undecided"]] | Text
    evidence: list[Evidence]
    struck: Text | None = None  # why the suspected error is no error
    struck_zh: Text | None = None

    @model_validator(mode="after")
    def _shown(self):
        if not self.evidence and self.struck is None:
            raise ValueError("an erratum needs evidence, or `struck` with why it is no error")
        return self

    @property
    def texts(self):
        """All texts of the entry, in both languages."""
        said = (self.says, self.right, self.struck, self.says_zh, self.right_zh, self.struck_zh)
        return [text for text in said if text is not None]

    @property
    def judged(self):
        """{claim: the answer it must come to}; {} where no claim is named."""
        return self.claims if isinstance(self.claims, dict) else {}


def errata(path=None):
    """All entries by id, in the order of the file.

    Raises ValueError with the entry and field that break the schema.
    """
    path = path or project_root() / "experiments" / "errata.yaml"
    entries = TypeAdapter(list[Erratum]).validate_python(yaml.safe_load(path.read_text("utf-8")))
    names = {
        "id": [name for entry in entries for name in {entry.id, *entry.was}],
        "number": [number for entry in entries for number in {entry.number, *entry.was.values()}],
    }
    for field, values in names.items():
        if twice := sorted({value for value in values if values.count(value) > 1}):
            raise ValueError(f"{path.name}: {field} {twice[0]} is used twice")
    return {entry.id: entry for entry in entries}


def verdicts():
    """{claim, or claim/part: its first line} of the committed quick runs."""
    from lab.claims.report import collect  # which imports this module

    table = collect(project_root() / "results" / "quick")
    found = {}
    for row in table.iloc[::-1].to_dict("records"):
        found[row["id"]] = row
        found[f"{row['id']}/{row['part']}"] = row
    return found


def filled(text, rows):
    """A text of an entry with its numbers filled in; – where nothing was measured.

    `rows` is what `verdicts` returns.
    """

    def number(found):
        value = rows.get(found[1], {}).get(found[2], nan)
        return "–" if value != value else format(value, found[3])

    return NUMBER.sub(number, text)


def page():
    """All entries as Markdown, in the reader's language."""
    rows, sources = verdicts(), {"chapter": tr("chapter"), "note": tr("note")}
    lead = tr(
        "What the chapter and its notes say, what is right, and the computation that shows it."
    )
    sound = sum(entry.struck is not None for entry in errata().values())
    lead += tr(
        " {n} are errors; {sound} more were suspected, proved right and are struck through.",
        n=len(errata()) - sound,
        sound=sound,
    )
    heading, corrected, evidence = tr("Errata"), tr("right"), tr("shown by")
    parts = [
        f"# {heading}",
        f"{lead} · {in_language('[中文](errata.zh.md)', '[English](errata.md)')}",
    ]
    for entry in errata().values():
        says = in_language(entry.says, entry.says_zh)
        right = in_language(entry.right, entry.right_zh)
        if entry.struck:
            says, right = f"~~{says}~~", in_language(entry.struck, entry.struck_zh)
        named = " ".join(sources.get(word, word) for word in entry.source.split())
        shown = [
            f"[{item}]({place})" if (place := _address(item)) else item for item in entry.evidence
        ]
        lines = [f"**{entry.number}.** *{named} {entry.where}* {says}", f"**{corrected}**: {right}"]
        lines += [f"{evidence} {', '.join(shown)}"] if shown else []
        parts.append(filled("  \n".join(lines), rows))
    return "\n\n".join(parts) + "\n"


def _address(item):
    """The path of the evidence relative to results/.

    "" for literature and for files that this checkout lacks.
    """
    notebook, _, figure = item.partition("/")
    if item.startswith("tests/"):
        return f"../{item.partition('::')[0]}"
    place = (
        f"quick/{notebook}/figures/{figure}.png" if figure else f"quick/{notebook}/notebook.ipynb"
    )
    table = f"quick/{notebook}/tables/{figure}.csv"
    return next(
        (each for each in (place, table) if (project_root() / "results" / each).exists()), ""
    )


def check():
    """A sentence for each thing in the errata that the committed results do not bear out.

    `make publish` stops where there is one.
    """
    entries, rows = errata().values(), verdicts()
    return missing(entries, rows) + contradictions(entries, rows)


def missing(entries, rows):
    """A sentence for each missing claim, number, figure or table that an entry names."""
    found = []
    for entry in entries:
        numbers = {match[:2] for text in entry.texts for match in NUMBER.findall(text)}
        named = {name for name, _ in numbers} | set(entry.judged)
        gone = [f"claim {name}" for name in named - rows.keys()]
        gone += [
            f"{of} of {name}"
            for name, of in numbers
            if name in rows and rows[name][of] != rows[name][of]
        ]
        gone += [item for item in entry.evidence if item[0].isdigit() and not _address(item)]
        found += [
            f"erratum {entry.number} ({entry.id}): there is no {each}" for each in sorted(gone)
        ]
    return found


def contradictions(entries, rows):
    """A sentence for each claim whose label in `rows` says the opposite of what an entry needs."""
    found = []
    for entry in entries:
        for name, wanted in entry.judged.items():
            verdict = rows.get(name, {}).get("label")
            if verdict in DECIDED and verdict not in SAYS[wanted]:
                says = filled(entry.struck or entry.right, rows)
                found.append(
                    f"erratum {entry.number} ({entry.id}) says: {says} So claim {name} {wanted}. "
                    f"The ledger says: {verdict}: {find(name.partition('/')[0]).claim}"
                )
    return found
