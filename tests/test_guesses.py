"""A reader guesses what each claim, shown as its sentence, comes to; what was judged is counted."""

import pytest
from made import entry

from lab import language
from lab.claims.claims import JUDGED, LABELS, Claim, Line
from lab.guesses import MEANS, Guesses

CLAIMS = [Claim(**entry(name)) for name in ("it-is-1", "it-is-2", "it-is-3", "it-is-4", "it-is-5")]
NAMES = [claim.id for claim in CLAIMS]


def guessed(*guesses):
    """The form as a reader leaves it."""
    form = Guesses(CLAIMS)
    for box, guess in zip(form.boxes.values(), guesses, strict=False):
        box.value = guess
    return form


def lines(*words):
    return [Line(id=name, exercise="1.1", answer=word, label=word) for name, word in zip(NAMES, words, strict=False)]


def test_guesses_are_counted_and_each_is_told_with_its_sentence():
    form = guessed("holds", "fails", "", "undecided", "holds")
    first, *told = form.score(lines("proved", "supported", "refuted", "undecided", "not judged")).split("\n")
    assert first == "2 of 3 guesses were right"
    assert told == [
        f"* ✓ {CLAIMS[0].claim} Guessed and measured: holds.",
        f"* ✗ {CLAIMS[1].claim} Guessed: fails; measured: holds.",
        f"* ✓ {CLAIMS[3].claim} Guessed and measured: undecided.",
    ]


def test_a_claim_whose_parts_come_out_differently_is_not_scored():
    parts = [Line(id=NAMES[0], exercise="1.1", part=word, answer=word, label=word) for word in ("supported", "refuted")]
    assert guessed("holds").score(parts) == ""
    assert guessed("holds", "fails").score([*parts, *lines("refuted", "refuted")[1:]]).startswith("1 of 1 ")


def test_without_guesses_nothing_is_said():
    assert guessed().score(lines("proved")) == ""


@pytest.mark.parametrize("word", sorted(set(LABELS) - set(MEANS)))
def test_what_was_not_judged_does_not_count(word):
    assert guessed("holds").score(lines(word)) == ""
    assert guessed("holds", "holds").score(lines(word, "proved")).startswith("1 of 1 ")


def test_every_judgement_can_be_guessed():
    assert set(MEANS) == set(JUDGED) - {"answered", "counted"}
    assert all([guess for _, guess in box.options] == ["", *dict.fromkeys(MEANS.values())]
               for box in guessed().boxes.values())  # fmt: skip


@pytest.mark.parametrize("name", language.languages())
def test_the_form_shows_sentences_and_choices_in_the_readers_language(name):
    with language.using(name):
        (form,) = Guesses(CLAIMS).form().children
        score = guessed("fails").score(lines("proved"))
    shown = [(choice.options[1][0], text.value) for choice, text in (line.children for line in form.children[1:])]
    sentences = [claim.claim_zh if name == "zh" else claim.claim for claim in CLAIMS]
    holds = language.messages(language.catalogue("zh"))["holds"] if name == "zh" else "holds"
    assert shown == [(holds, sentence) for sentence in sentences]
    assert not any(each in text for each in NAMES for text in (score, *(text for _, text in shown)))
    assert sentences[0] in score and holds in score
