"""Claims and errata as cards of the book, each with an address, and what they have to do with each other."""

from dataclasses import dataclass, field

import pandas as pd

from lab.book.tables import href
from lab.language import in_language, tr, using
from lab.ledger import cards, claims, errata


@dataclass
class Card:
    """A claim with what came of it."""

    claim: claims.Claim
    verdict: claims.Verdict  # at quick, else at full, else before any run
    stem: str  # of the notebook that judged it, "" where none did
    where: list[str]  # what was measured where
    errata: list[errata.Erratum]
    signs: list[str] = field(default_factory=list)  # keys of `measured_where` that hold
    notes: dict[str, list[str]] = field(default_factory=dict)  # by what they are, those that are

    @property
    def gate(self):
        """Whether gates stand before its verdict, as the filter has it."""
        exact = self.claim.kind in (*claims.EXACT, "question")
        bare = self.verdict.gates == claims.UNGATED or not self.verdict.gates
        return "exact" if exact else "bare" if bare else "gated"

    @property
    def predicted(self):
        """What was predicted, in the reader's language where the verdict's words are those of the ledger."""
        with using("en"):
            same = self.verdict.threshold == str(self.claim.prediction)
        if same:
            return str(self.claim.prediction)
        return self.verdict.threshold or self.claim.expected or self.claim.compared

    @property
    def href(self):
        """Its figure with the table behind it, or its exercise."""
        return href(self.stem, self.verdict.figure) if self.stem else ""


def claim_cards(runs):
    """A card for each claim of the ledger, in the order of the runs, then those that none judged."""
    known, found = claims.ledger(), {}
    wrong = errata.errata().values()
    for run in runs:
        for row in run.verdicts.to_dict("records"):
            if row["id"] in known and row["verdict"] not in ("open", "pending"):
                row = {name: value for name, value in row.items() if not pd.isna(value)}
                found.setdefault(row["id"], []).append((run, claims.Verdict.model_validate(row)))
    made = []
    for name in [*found, *(name for name in known if name not in found)]:
        claim, judged = known[name], found.get(name, [])
        run, verdict = judged[0] if judged else (None, claim.unjudged)
        where = [line for each in judged for line in places(*each)]
        mine = [entry for entry in wrong if isinstance(entry.claims, dict) and name in entry.claims]
        signs = [sign for sign in measured_where() if judged and sign in set(signed(judged))]
        made.append(Card(claim, verdict, run.stem if run else "", where, mine, signs, notes(claim, verdict)))
    return made


def places(run, verdict):
    """Lines that tell where a verdict was measured."""
    told = f"{cards.words()[verdict.verdict]} {cards.measured(verdict)}".strip()
    yield f"{run.profile}: {told} ({run.about['machine']}; {run.size})"
    origin = run.about.get("record", {})
    if origin.get("recorded"):
        yield tr("{n} trials of the notebook recorded, {here} run there", n=origin["recorded"], here=origin["ran_here"])


def measured_where():
    """{sign: its word} of where a verdict was measured."""
    return {
        "recorded": tr("recorded"),
        "run": tr("run in this notebook"),
    }


def signed(judged):
    """The signs of a claim by its runs: trials of the record, trials run there."""
    for run, _ in judged:
        origin = run.about.get("record", {})
        yield from (sign for sign, name in (("recorded", "recorded"), ("run", "ran_here")) if origin.get(name))


def notes(claim, verdict):
    """{what it is: lines} of all that a card tells besides."""
    prediction = claim.prediction
    why = prediction and in_language(prediction.because, prediction.because_zh)
    changed = prediction and in_language(prediction.revised, prediction.revised_zh)
    told = {
        tr("remark"): [verdict.note],
        tr("gates"): cards.gates(verdict) if verdict.gates else [],
        tr("why this bar"): [why],
        tr("changed after a run"): [changed],
        tr("holds for"): [verdict.sizes],
        tr("source"): ["; ".join(claim.sources)],
    }
    return {name: kept for name, lines in told.items() if (kept := [line for line in lines if line])}


def kinds():
    """{kind of claim: its word}."""
    return {
        "theorem": tr("theorem"),
        "arithmetic": tr("arithmetic"),
        "structure": tr("structure"),
        "comparison": tr("comparison"),
        "trend": tr("trend"),
        "question": tr("question"),
    }


@dataclass
class Correction:
    """An erratum with its numbers filled in."""

    entry: errata.Erratum
    source: str
    says: str
    right: str
    evidence: list[tuple[str, str]]  # (what, address or "")

    @property
    def numbers(self):
        return ", ".join(map(str, sorted({self.entry.number, *self.entry.was.values()})))

    @property
    def claims(self):
        """Ids of the claims that it bears on."""
        return list(self.entry.claims) if isinstance(self.entry.claims, dict) else []


def corrections(runs):
    """All errata in the reader's language; evidence is linked where the book has it."""
    stems = {run.stem: {path.stem for path in run.folder.glob("tables/*.csv")} for run in runs}
    rows, sources = errata.verdicts(), {"chapter": tr("chapter"), "note": tr("note")}
    made = []
    for entry in errata.errata().values():
        says = in_language(entry.says, entry.says_zh)
        right = in_language(entry.struck or entry.right, entry.struck_zh or entry.right_zh)
        named = " ".join(sources.get(word, word) for word in entry.source.split())
        evidence = [(item, address(item, stems)) for item in entry.evidence]
        filled = (errata.filled(text, rows) for text in (says, right))
        made.append(Correction(entry, f"{named} {entry.where}", *filled, evidence))
    return made


def address(item, stems):
    """Where the book has a piece of evidence; `stems` are the tables of each finished notebook."""
    notebook, _, part = item.partition("/")
    return href(notebook, part) if notebook in stems and (not part or part in stems[notebook]) else ""
