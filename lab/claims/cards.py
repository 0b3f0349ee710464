"""What is shown of a claim that was judged: the sentence under test, the prediction, the gates,
what came out.
"""

import re

from pandas import isna

from lab.claims.claims import UNGATED
from lab.claims.numerals import SHARES, effect_of, in_unit
from lab.language import in_language, tr

BAR = re.compile(r"([<>=]) (\S+?)(?: ± (\S+))?$")  # at the end of what was predicted


def card(claim, verdict, own=""):
    """A Markdown table of a Claim and its Verdict; `own` are parameters that are not the profile's,
    in words.
    """
    rows = [(tr("source"), "; ".join(claim.sources))] if claim.sources else []
    rows += [
        (
            tr("measured") if claim.kind == "question" else tr("predicted"),
            predicted(verdict) or claim.expected,
        )
    ]
    rows += [(tr("written"), str(claim.stamp))] if getattr(claim, "stamp", None) else []
    if claim.prediction and claim.prediction.because:
        rows += [
            (tr("why this bar"), in_language(claim.prediction.because, claim.prediction.because_zh))
        ]
    rows += [(tr("gates"), "<br>".join(gates(verdict)))] if verdict.gates else []
    rows += [(tr("effect"), measured(verdict))] if measured(verdict) else []
    rows += [
        (
            tr("verdict"),
            f"**{words()[verdict.verdict]}**" + (f"<br>{verdict.note}" if verdict.note else ""),
        )
    ]
    rows += (
        [(tr("holds for"), ", ".join(filter(None, [verdict.sizes, own])))]
        if verdict.sizes or own
        else []
    )
    rows += [(tr("figure"), verdict.figure)] if verdict.figure else []
    if claim.prediction and claim.prediction.revised:
        rows += [
            (
                tr("changed after a run"),
                in_language(claim.prediction.revised, claim.prediction.revised_zh),
            )
        ]
    second = in_language(claim.claim_zh, claim.claim)
    said = "<br>".join(
        [f"**{_cell(claim.sentence)}**"] + [_cell(second)] * (second not in ("", claim.sentence))
    )
    lines = [f"| {tr('claim')} | {said} |", "| :-- | :-- |"]
    return "\n".join(lines + [f"| {name} | {_cell(text)} |" for name, text in rows])


def measured(verdict):
    """The effect with its interval, unit and n, in words; "" where nothing was measured."""
    if not (found := effect_of(verdict)):
        return ""
    unit = "" if verdict.unit in SHARES else verdict.unit
    return f"{found} {unit}".strip() + ("" if isna(verdict.n) else f", n = {verdict.n}")


def gates(verdict):
    """What each gate of a verdict says, a list."""
    return (
        [tr("not yet gated")] if verdict.gates == UNGATED else re.split("; (?=[✓✗])", verdict.gates)
    )


def predicted(verdict):
    """What was predicted, its bar as the effect is told; of a question, what is measured."""
    return BAR.sub(lambda _: bar(verdict), verdict.threshold)


def bar(verdict):
    """What the effect is held against, in the words of its unit, such as "> +2 %"; "" of a
    question.
    """
    if not (found := BAR.search(verdict.threshold)):
        return ""
    sign, *numbers = found.groups(default="0")
    (threshold,), (tolerance,) = (in_unit(float(number), unit=verdict.unit) for number in numbers)
    return f"{sign} {threshold}" + (f" ± {tolerance.lstrip('+')}" if float(numbers[1]) else "")


def line(verdict, was=""):
    """What came of a claim: verdict, effect and bar, such as "refuted: 0.1 [0.0, 0.2] nats, n = 5;
    predicted > 0.5".

    `was` is an earlier verdict.
    """
    word = words()[verdict.verdict]
    if was:
        before = tr("was {verdict}", verdict=words()[was])
        word += f" ({before})"
    held = tr("predicted {bar}", bar=bar(verdict)) if bar(verdict) else ""
    return "; ".join(filter(None, [": ".join(filter(None, [word, measured(verdict)])), held]))


def _cell(text):
    return text.replace("|", "\\|").replace("\n", " ")


def words():
    """{verdict: its word in the reader's language}."""
    return {
        "supported": tr("supported"),
        "refuted": tr("refuted"),
        "inconclusive": tr("inconclusive"),
        "proved": tr("proved"),
        "disproved": tr("disproved"),
        "out of reach": tr("out of reach"),
        "answered": tr("answered"),
        "not run at these values": tr("not run at these values"),
        "open": tr("open"),
        "pending": tr("pending"),
        "not judged": tr("not judged"),
    }
