"""The rule that turns what was measured into a verdict."""

from dataclasses import replace
from functools import partial
from math import inf, isfinite, nan

import pandas as pd

from lab.claims.arms import Absent, together
from lab.claims.claims import EXACT, NOT_RUN, OUT_OF_REACH, UNGATED, Verdict
from lab.claims.gates import MORE
from lab.claims.numerals import in_words
from lab.language import tr
from lab.measure import statistics

NOTHING = statistics.Interval(nan, nan, nan, 0)  # is known of the effect


def judge(claim, measured, *, rates=None, **where):
    """The verdict on a claim from the rows that trials wrote, a DataFrame, where the ledger says
    which are compared.

    All gates passed: supported where the whole interval agrees with the prediction, refuted where
    none of it does, else inconclusive, with the n that would decide. Of several cases all must
    agree, and the least favourable one is shown. A gate failed: out of reach. An arm, or a control,
    without a row: not run at these values. `rates` is the table of a sweep of learning rates.
    ValueError where a gate has no numbers.

    What has no arms in the ledger is judged from an Interval, or, an exact statement, from a
    number: proved or disproved. A question is answered by its interval. where: figure, table, note.
    """
    if claim.prediction is None:
        raise ValueError(
            f"claim {claim.id} has no prediction in the ledger; write one before judging"
        )
    row = {
        "id": claim.id,
        "exercise": claim.exercise,
        "unit": claim.unit,
        "threshold": claim.compared,
    } | where
    if claim.arms or isinstance(measured, pd.DataFrame):
        if not (claim.arms and isinstance(measured, pd.DataFrame)):
            given = type(measured).__name__
            raise TypeError(
                f"claim {claim.id} has {'arms: it wants a table' if claim.arms else 'no arms'}, not {given}"
            )
        return _of_rows(claim, measured, rates, row)
    if isinstance(measured, int | float):
        if claim.kind not in EXACT:
            raise ValueError(
                f"claim {claim.id} is a {claim.kind}: it wants an interval, not the number {measured}"
            )
        if measured != measured:
            raise ValueError(f"claim {claim.id}: nothing was measured, the number is nan")
        low, high = claim.prediction.band
        return Verdict(
            verdict="proved" if low <= measured <= high else "disproved", effect=measured, **row
        )
    row |= {"effect": measured.effect, "low": measured.low, "high": measured.high, "n": measured.n}
    verdict = decided(claim, measured)
    if verdict == "inconclusive" and isfinite(measured.mde):
        row["note"] = f"{row.get('note', '')} minimum detectable effect {measured.mde:.3g}".strip()
    elif verdict == "inconclusive" and (why := unknown(measured)):
        row["note"] = "; ".join(filter(None, [row.get("note"), why]))
    return Verdict(verdict=verdict, gates="" if claim.gated else UNGATED, **row)


def decided(claim, interval):
    """What an interval says of a claim; a question is answered.

    One that touches a bar is not beyond it.
    """
    low, high = claim.prediction.band
    if interval is NOTHING:
        return "inconclusive"
    if claim.kind == "question":
        return "answered"
    touches = claim.prediction.direction != "equal" and claim.prediction.threshold in (
        interval.low,
        interval.high,
    )
    if low <= interval.low and interval.high <= high and not touches:
        return "supported"
    return "refuted" if interval.high < low or interval.low > high else "inconclusive"


def unknown(interval):
    """Why an effect has no ends, in words; "" where it has."""
    if interval is NOTHING:
        return tr("some of the numbers compared are not finite")
    return tr("one seed has no interval") if interval.n == 1 and not isfinite(interval.high) else ""


def computed(measured):
    """What the function gives; NOTHING where it meets numbers that are not finite, such as nought
    by nought.
    """
    try:
        return measured()
    except statistics.NotFinite:
        return NOTHING


def _interval(claim, case):
    """The effect of one comparison.

    The t interval of a mean share ends where shares do, at 0 and 1.

    Differences of shares bear the unit too. A value below 0 or above 1 in any row of the table
    tells them, and their interval stays as it is.
    """
    found = case.interval
    shares = claim.unit.startswith("share") and claim.arms.how == "mean" and found.n > 1
    if shares and case.whole[claim.arms.measure].dropna().between(0, 1).all():
        return replace(found, low=max(found.low, 0.0), high=min(found.high, 1.0))
    return found


def _of_rows(claim, table, rates, row):
    try:
        cases = claim.arms.cases(table)
        passed = claim.needs.check(claim, cases, rates) if claim.needs else []
    except Absent as gone:  # an arm, or the control of a gate
        note = tr("without {arm}", arm=gone)
        return Verdict(**row | {"verdict": NOT_RUN, "note": note, "figure": "", "table": ""})
    found = [(case, computed(partial(_interval, claim, case))) for case in cases]
    said = [decided(claim, interval) for _, interval in found]
    verdict = next((word for word in ("refuted", "inconclusive") if word in said), said[0])
    at = [each for each, word in zip(found, said, strict=True) if word == verdict]
    case, shown = max(at, key=lambda each: _against(claim.prediction, each[1].effect))
    told = [f"{case.name}: {in_words(i, claim.unit)}" for case, i in found if len(found) > 1]
    told = [tr("shown: {case}", case=case.name), *told] if told else []
    told += [row["note"]] if row.get("note") else []
    failed = [each for each in passed if not each.passed]
    if failed:
        verdict, told = OUT_OF_REACH, [_attempt(failed, together(cases)), *told]
    elif verdict == "inconclusive" and (why := unknown(shown)):
        told.append(why)
    elif verdict == "inconclusive" and (n := _seeds(claim, case)):
        told.append(tr("{n} seeds would decide, if mean and spread stay", n=n))
    row |= {"effect": shown.effect, "low": shown.low, "high": shown.high, "n": shown.n}
    row |= {
        "gates": "; ".join(map(str, passed)),
        "sizes": _sizes(together(cases), claim.arms.sizes),
    }
    return Verdict(**row | {"verdict": verdict, "note": "; ".join(told)})


def _seeds(claim, case):
    """How many seeds would decide; the spread is that of the interval before it is cut.

    None where no number would.
    """
    return statistics.enough(case.interval, _bar(claim.prediction, case.interval.effect))


def _sizes(rows, columns):
    return ", ".join(
        f"{name} {' '.join(map(str, sorted(rows[name].unique())))}" for name in columns
    )


def _against(prediction, effect):
    """How far an effect speaks against a prediction."""
    off = effect - prediction.threshold
    return {"above": -off, "below": off, "equal": abs(off)}[prediction.direction]


def _bar(prediction, effect):
    """The end of the predicted band that an effect is nearest to."""
    return min(
        (end for end in prediction.band if abs(end) < inf), key=lambda end: abs(end - effect)
    )


def _attempt(failed, rows):
    """Which gates failed, the largest attempt that was made, and what would do."""
    told = tr("gate not passed: {gates}", gates=", ".join(each.gate for each in failed))
    if "steps" in rows and "seconds" in rows:
        took = {"steps": int(rows.steps.max()), "seconds": f"{rows.seconds.max():.0f}"}
        hours = rows.seconds.sum() / 3600
        told += tr("; largest attempt: {steps} steps, {seconds} s a run", **took)
        told += tr(
            "; {times} times the steps would take {hours} core hours",
            times=MORE,
            hours=f"{MORE * hours:.2g}",
        )
    return told
