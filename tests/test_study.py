"""Guesses are scored against verdicts; what was not guessed, or not judged, does not count."""

from lab.ledger.claims import VERDICTS, Verdict, ledger
from lab.study import MEANS, Guesses

CLAIMS = list(ledger().values())[:5]


def test_guesses_are_counted_and_the_wrong_ones_named():
    guesses = Guesses(CLAIMS)
    names = [claim.id for claim in CLAIMS]
    for name, guess in zip(names, ["holds", "fails", "", "undecided", "holds"], strict=True):
        guesses.boxes[name].value = guess
    words = ["proved", "supported", "refuted", "inconclusive", "not judged"]
    verdicts = [Verdict(id=name, exercise="1.1", verdict=word) for name, word in zip(names, words, strict=True)]
    said = guesses.score(verdicts)
    assert said.startswith("2 of 3 guesses were right")
    assert f"{names[1]}: fails, measured: holds" in said and all(said.count(name) == 0 for name in names[2:])


def test_without_guesses_nothing_is_said():
    assert Guesses(CLAIMS).score([Verdict(id=CLAIMS[0].id, exercise="1.1", verdict="proved")]) == ""


def test_every_judgement_can_be_guessed():
    assert set(MEANS) == set(VERDICTS) - {"open", "pending", "not judged"}
    (form,) = Guesses(CLAIMS).form().children
    assert [box.description for box in form.children[1:]] == [claim.id for claim in CLAIMS]
