"""A student's answers to the claims of a lesson, beside what the lab's own run measured."""

import json
import math
from functools import cache

import pandas as pd

from lab.engine import parameters, runs
from lab.guesses import MEANS
from lab.language import tr
from lab.ledger import cards, claims, numerals
from lab.names import near

KEPT = "transformer_lab"  # metadata of the output of a notebook that keeps guesses and answers


def said(word):
    """holds, fails or undecided, whichever of the two languages says it; "" for none. ValueError for another word."""
    known = {each: name for name, other in words().items() for each in (name, other)}
    return known[near(word, known, "answer")] if word else ""


def measured(stem):
    """{claim: its row of verdicts} of the lab's run of a lesson; none where it is not at hand."""
    path = runs.project_root() / "results" / "quick" / stem / "verdicts.csv"
    return _rows(path, path.stat().st_mtime_ns) if path.exists() else {}


@cache
def _rows(path, changed):
    return {row.id: row for row in claims.read_verdicts(path.parent).itertuples()}


def right(answer, verdict):
    """(whether the word is right, whether the effect is), each None where there is nothing to compare."""
    word, effect, found = answer["says"], answer["effect"], verdict and MEANS.get(verdict.verdict)
    same = None if verdict is None or effect is None or math.isnan(verdict.effect) else within(effect, verdict)
    return (word == found if word and found else None), same


def within(effect, verdict):
    """Inside the interval; of an exact number, within one percent."""
    if verdict.low == verdict.low:
        return verdict.low <= effect <= verdict.high
    return math.isclose(effect, verdict.effect, rel_tol=0.01, abs_tol=1e-6)


def told(claim, answer, verdict):
    """What is said of an answer, as Markdown; the lab's own numbers only once the answer is right."""
    head = f"**{claim.sentence}**"
    if not answer["says"]:
        unit = f" ({claim.unit})" if claim.unit else ""
        return head + "<br>" + tr("Not answered yet. To be measured: {what}.", what=f"{claim.compared}{unit}")
    word, effect = right(answer, verdict)
    if word is None:
        return head + "<br>" + tr("Kept. The lab has no verdict to hold it against.")
    if not word:
        return head + "<br>" + tr("✗ The lab's run says otherwise. Does the whole interval lie beyond the bar?")
    if effect is False:
        return head + "<br>" + tr("✓ The word is right. ✗ The effect lies outside the lab's interval.")
    return head + "<br>" + tr("✓ So does the lab's run: {measured}.", measured=cards.measured(verdict))


# What was handed in


def handed(path):
    """{"exercise", "guesses", "answers"} of a student's notebook, saved after its run, or run.json; {} where none is.

    A notebook may have been run more than once: its last cell counts.
    """
    found = json.loads(path.read_text("utf-8"))
    if path.suffix == ".ipynb":
        outputs = [output for cell in found.get("cells", ()) for output in cell.get("outputs", ())]
        found = next((kept for output in reversed(outputs) if (kept := output.get("metadata", {}).get(KEPT))), {})
    return found if isinstance(found, dict) and (found.get("guesses") or found.get("answers")) else {}


def collected(folder):
    """The table of all that stands anywhere in a folder, notebooks and runs; and [(path, why)] of what cannot be read.

    A student is called as the first folder below it, or as the file in it. Of several of one lesson the newest counts.
    """
    paths = [path for path in folder.rglob("*") if path.suffix == ".ipynb" or path.name == "run.json"]
    hidden = (".ipynb_checkpoints", ".running", ".trials")
    found, wrong = {}, []
    for path in sorted(paths, key=lambda path: path.stat().st_mtime):
        place = path.relative_to(folder)
        if not set(hidden) & set(place.parts):
            try:
                if kept := handed(path):
                    found[place.parts[0].removesuffix(".ipynb"), str(kept["exercise"])] = kept
            except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                wrong.append((place, f"{type(error).__name__}: {error}"))
    return table([(student, kept) for (student, _), kept in sorted(found.items())]), wrong


def table(handed_in):
    """A row for each student and claim: the guess, the answer, and what the lab's run measured, in the same words."""
    rows = []
    for student, kept in handed_in:
        mine = [claim for claim in claims.ledger().values() if claim.exercise == kept["exercise"]]
        stems = {path.stem for path in parameters.notebooks() if parameters.exercise_of(path) == kept["exercise"]}
        known = {name: row for stem in stems for name, row in measured(stem).items()}
        for claim in mine:
            guess, answer = kept["guesses"].get(claim.id, ""), kept["answers"].get(claim.id, {})
            if guess or answer.get("says"):
                row, numbers = known.get(claim.id), dict.fromkeys(("effect", "low", "high"), math.nan)
                verdict = row.verdict if row else "pending"
                numbers |= {name: getattr(row, name) for name in numbers} if row else {}
                about = {"student": student, "exercise": claim.exercise, "claim": claim.id, "guess": guess}
                about |= {"answer": answer.get("says", ""), "answered effect": answer.get("effect")}
                rows.append(
                    about | {"measured": MEANS.get(verdict, ""), "verdict": verdict, **numbers, "unit": claim.unit}
                )
    return pd.DataFrame(rows)


def lines(rows):
    """What one student guessed and answered, beside what the lab measured: two lines for each claim."""
    known = claims.ledger()
    for row in rows.itertuples():
        about, mark = known[row.claim], lambda word, row=row: f"{words()[word]} {'✓' if word == row.measured else '✗'}"
        said = [tr("guessed {word}", word=mark(row.guess))] if row.guess else []
        said += [tr("answered {word}", word=mark(row.answer))] if row.answer else []
        effect = numerals.effect_of(row)
        said += [tr("the lab: {verdict} {effect}", verdict=cards.words()[row.verdict], effect=effect).rstrip()]
        yield from (about.sentence, f"    {' · '.join(said)}")


def words():
    """{holds, fails, undecided: its word in the reader's language}."""
    return {"holds": tr("holds"), "fails": tr("fails"), "undecided": tr("undecided")}
