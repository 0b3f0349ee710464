"""A lint of experiments/claims and errata.yaml: both languages say the same numbers, and findings type no result."""

import re
import string

import pandas as pd
import pytest

from lab.claims import errata, report
from lab.claims.claims import JUDGED, ledger

HAN = re.compile("[\u4e00-\u9fff]")
FILLED = set(report.numbers(pd.Series({"effect": 0.5, "low": 0.25, "high": 0.75, "yes": 1, "no": 0, "cells": 1})))


def holes(text):
    """The numbers that a finding is filled with, and how they are printed."""
    return {(name, spec) for _, name, spec, _ in string.Formatter().parse(text) if name}


def languages(english, chinese):
    """What is wrong with a text and its translation, in words."""
    if not english or HAN.search(english):
        yield f"{english!r} is no English"
    if not chinese or not HAN.search(chinese):
        yield f"{chinese!r} is no Chinese"


def finding(english, chinese):
    """What is wrong with a finding."""
    yield from languages(english, chinese)
    if not holes(english) or holes(english) != holes(chinese) or not {name for name, _ in holes(english)} <= FILLED:
        yield f"{english!r}: the same numbers are wanted in both languages, of {sorted(FILLED)}"
    if re.search(r"\d[.]\d|\d ?%", re.sub(r"\{[^}]*\}", "", english + chinese)):
        yield f"{english!r}: a result is typed; lines fill it in"


def erratum(english, chinese):
    """What is wrong with a text of an erratum."""
    yield from languages(english, chinese)
    if set(errata.NUMBER.findall(english)) != set(errata.NUMBER.findall(chinese)):
        yield f"{english!r}: the same numbers are wanted in both languages"
    if re.search(r"(?<![\^_])\{", errata.NUMBER.sub("", english + chinese)):
        yield f"{english!r}: a number of a claim is wanted as {{its-id.effect:.2f}}, or low, high"


@pytest.mark.parametrize("claim", ledger().values(), ids=ledger())
def test_a_claim_stands_in_both_languages(claim):
    found = [*languages(claim.claim, claim.claim_zh)]
    labels = claim.finding.keys() | claim.finding_zh.keys()
    assert labels <= set(JUDGED) and (claim.place == "lesson" or not labels)
    for label in labels:
        found += finding(claim.finding.get(label, ""), claim.finding_zh.get(label, ""))
    for part in claim.parts:
        found += languages(part.question, part.question_zh)
        if part.because:
            found += languages(part.because, part.because_zh)
        if part.name:
            found += languages(part.name, part.name_zh)
        assert part.unit not in ("factor", "quotient", "times", "x", "×"), "a quotient is a ratio: the book's word"
    assert found == []


@pytest.mark.parametrize("entry", errata.errata().values(), ids=errata.errata())
def test_an_erratum_stands_in_both_languages(entry):
    found = [*erratum(entry.says, entry.says_zh), *erratum(entry.right, entry.right_zh)]
    if entry.struck or entry.struck_zh:
        found += erratum(entry.struck, entry.struck_zh)
    assert found == []


@pytest.mark.parametrize("lint, english, chinese, said", [
    (finding, "So {effect:.1f}.", "为 {effect:.2f}。", "same numbers"),
    (finding, "So {mean:.1f}.", "为 {mean:.1f}。", "same numbers"),
    (finding, "So.", "是。", "same numbers"),
    (finding, "{effect:.1f} of 2.5", "2.5 之 {effect:.1f}", "typed"),
    (finding, "So {effect:.1f}.", "", "no Chinese"),
    (languages, "甲胜乙", "甲胜乙", "no English"),
    (erratum, "it is {four-win.effect:.1f}", "为二", "same numbers"),
    (erratum, "it is {four-win.mean:.1f}", "为 {four-win.mean:.1f}", "a number of a claim"),
    (erratum, "it is right", "it is right", "no Chinese"),
])  # fmt: skip
def test_what_is_wrong_is_told(lint, english, chinese, said):
    assert said in " ".join(lint(english, chinese))
