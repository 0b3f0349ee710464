"""A verdict beside what the spot checks found: judged again where trials, run here, came out otherwise than recorded.

What does not follow from recorded rows alone, such as a column that the notebook computed, cannot be judged again.
"""

import math

import pandas as pd

from lab.engine import checks, store
from lab.language import tr
from lab.ledger.arms import together
from lab.ledger.cards import measured, words
from lab.ledger.claims import JUDGED, NOT_REPRODUCED, NOT_RUN, OUT_OF_REACH
from lab.ledger.judge import judge
from lab.ledger.rests import trials_in


def beside(claim, verdict, table, rates, behind, found):
    """(the verdict on a claim, marked where what checks found gives another one; which of the `checks.Found` marks it).

    The latter is None where arms that it reads ended otherwise and it cannot be judged again: then it stays. `behind`
    are the trials that it may rest on, `table` and `rates` what it was judged from.
    """
    rows = {checks.row_of(each): each for each in behind if each.origin == "record"}
    mine = [each for each in found if each.rows & rows.keys()]
    if not mine or verdict.verdict not in (*JUDGED, OUT_OF_REACH, "answered"):
        return verdict, []
    if faults := [each for each in mine if each.fault]:
        return doubted(verdict, faults[0].findings[0], faults[0].since), faults
    here = [(rows[each.row], each.here) for group in mine for each in group.findings if each.row in rows]
    now = judged(claim, table, rates, behind, here) if claim.arms else None
    if now is None or now.verdict == verdict.verdict:
        return verdict, None if now is None else []
    return changed(verdict, now, min(each.since for each in mine)), mine


def judged(claim, table, rates, behind, here):
    """The verdict on a claim from its table with the numbers that trials gave here; None where it cannot be judged.

    `here` are the trials that ran here, pairs of a Used and the body that it gave. Learning rates stay as chosen.
    """
    taken, keys, place = taken_from(table, here), {each.key for each, _ in here}, "place in the table"
    for row in together(claim.arms.cases(table.assign(**{place: range(len(table))}))).to_dict("records"):
        theirs = any(each.key in keys for each in trials_in([row], behind))
        if theirs and claim.arms.measure not in taken.get(row[place], ()):
            return None
    replaced = table.copy()
    for name in {name for new in taken.values() for name in new}:
        values = [taken.get(at, {}).get(name, value) for at, value in enumerate(table[name])]
        replaced[name] = pd.Series(values, table.index)
    try:
        now = judge(claim, replaced, rates=rates)
    except ValueError:  # a gate has no numbers there
        return None
    return None if now.verdict == NOT_RUN else now


def taken_from(table, trials):
    """{place of a row of the table: what its trial gave here instead, in the columns that both have}.

    A row is a trial's where it has its parameters and, in all that both hold, the numbers of one of its recorded rows.
    `trials` are pairs of a Used and the body that it gave here.
    """
    rows, taken = table.to_dict("records"), {}
    for each, here in trials:
        about, pairs = each.body["parameters"], ()
        if here["n"] == each.body["n"]:
            pairs = list(zip(store.rows(each.body), store.rows(here), strict=True))
        for at, row in enumerate(rows):
            if all(_same(row[name], value) for name, value in about.items() if name in row):
                fit = [new for old, new in pairs if all(_same(row[name], old[name]) for name in old if name in row)]
                found = [{name: value for name, value in new.items() if name in row} for new in fit]
                if found and found[0] and all(each == found[0] for each in found):
                    taken[at] = found[0]
    return taken


def _same(a, b):
    """Whether two cells hold the same; one has been through a CSV."""
    if isinstance(a, float) or isinstance(b, float):
        missing = [x is None or (isinstance(x, float) and math.isnan(x)) for x in (a, b)]
        if any(missing) or isinstance(a, str) or isinstance(b, str):
            return all(missing)
        return math.isclose(a, b, rel_tol=1e-12)
    return a == b


def doubted(verdict, finding, since):
    """A verdict that reads a row which cannot be what its trial gives."""
    told = tr(
        "{verdict} by the record, of which a trial that ran here on {since} gives something else: {finding}",
        verdict=words()[verdict.verdict], since=since, finding=finding,
    )  # fmt: skip
    return _marked(verdict, told)


def changed(verdict, now, since):
    """A verdict that is another one with what the trials of whole arms gave here."""
    told = tr(
        "{before} by the record ({recorded}), {after} with all seeds of the arms that ran here on {since} ({here})",
        before=words()[verdict.verdict], recorded=measured(verdict), after=words()[now.verdict], here=measured(now),
        since=since,
    )  # fmt: skip
    return _marked(verdict, told)


def _marked(verdict, told):
    note = "; ".join(filter(None, [told, verdict.note]))
    return verdict.model_copy(update={"verdict": NOT_REPRODUCED, "note": note})
