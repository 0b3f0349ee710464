"""A card shows the sentence in both languages, what was predicted, gates, effect, verdict and where it holds."""

import pytest

from lab import language
from lab.claims import cards
from lab.claims.claims import VERDICTS, Claim, Prediction, Verdict

CLAIM = Claim(
    id="x", exercise="1.4", kind="comparison", priority="A", sources=["chapter §1.2", "note 4"], metric="m",
    claim="a | b", claim_zh="甲胜乙",
    prediction={"compares": "a - b", "direction": "above", "threshold": 0.1, "revised": "before: c"},
)  # fmt: skip
FOUND = {"effect": 0.25, "low": 0.2, "high": 0.3, "n": 5, "unit": "points", "figure": "f", "sizes": "d_model 64"}


def shown(**fields):
    verdict = Verdict(id="x", exercise="1.4", threshold=CLAIM.compared, **{"verdict": "supported"} | fields)
    lines = [line.strip("| ").split(" | ", 1) for line in cards.card(CLAIM, verdict, "own: seeds 9").splitlines()]
    return dict(line for line in lines if len(line) == 2)


def test_a_card_tells_all_there_is():
    found = shown(**FOUND, note="seen", gates="✓ learned: a; b; ✗ null: c")
    assert found == {
        "claim": "**a \\| b**<br>甲胜乙",
        ":--": ":--",
        "source": "chapter §1.2; note 4",
        "predicted": "a - b > 0.1",
        "gates": "✓ learned: a; b<br>✗ null: c",
        "effect": "0.25 [0.20, 0.30] points, n = 5",
        "verdict": "**supported**<br>seen",
        "holds for": "d_model 64, own: seeds 9",
        "figure": "f",
        "changed after a run": "before: c",
    }


@pytest.mark.parametrize("unit, threshold, bar", [
    ("points", "a > b > 0.1", "> 0.1"),
    ("relative change", "a over b, minus 1 < -0.02", "< -2 %"),
    ("relative change", "a over b = 1 ± 0.001", "= +100 % ± 0.1 %"),
    ("", "a - b = 0 ± 1e-09", "= 0 ± 1e-9"),
    ("heads", "number of heads = 8 ± 0", "= 8"),
    ("share", "what is measured of a question", ""),
])  # fmt: skip
def test_a_bar_is_told_as_the_effect_is(unit, threshold, bar):
    verdict = Verdict(id="x", exercise="1.4", verdict="supported", unit=unit, threshold=threshold)
    assert cards.bar(verdict) == bar
    compared = threshold.rpartition(bar[0])[0] if bar else threshold
    assert cards.predicted(verdict) == compared + bar


def test_a_line_tells_verdict_effect_and_bar_and_of_a_question_the_answer():
    found = FOUND | {"id": "x", "exercise": "1.4"}
    said = cards.line(Verdict(verdict="supported", threshold=CLAIM.compared, **found))
    assert said == "supported: 0.25 [0.20, 0.30] points, n = 5; predicted > 0.1"
    assert cards.line(CLAIM.unjudged) == "pending; predicted > 0.1"
    assert (
        cards.line(Verdict(verdict="answered", threshold="a - b", **found))
        == "answered: 0.25 [0.20, 0.30] points, n = 5"
    )
    was = cards.line(Verdict(verdict="proved", effect=0, id="x", exercise="1.4"), was="disproved")
    assert was == "proved (was disproved): 0"


def test_a_card_gives_the_reason_of_its_bar_and_its_chinese_words():
    said = {"compares": "a - b", "direction": "above", "because": "who knows", "revised": "before: c"}
    about = CLAIM.model_copy(update={"prediction": Prediction(**said, compares_zh="甲减乙", because_zh="谁知道")})
    assert "| why this bar | who knows |" in cards.card(about, about.unjudged)
    with language.using("zh"):
        text = cards.card(about, about.unjudged)
        assert "谁知道" in text and "甲减乙 > 0" in text and "who knows" not in text and "before: c" in text


def test_a_card_leaves_out_what_there_is_not_and_says_where_gates_are_missing():
    assert not {"effect", "gates", "figure"} & set(shown())
    assert shown(gates="not yet gated")["gates"] == "not yet gated"


def test_in_chinese_the_chinese_sentence_leads():
    with language.using("zh"):
        text = cards.card(CLAIM, Verdict(id="x", exercise="1.4", verdict="out of reach"))
        assert "**甲胜乙**<br>a \\| b" in text and "out of reach" not in text


@pytest.mark.parametrize("chosen", language.languages())
def test_every_verdict_has_a_word(chosen):
    with language.using(chosen):
        assert set(cards.words()) == set(VERDICTS)
        assert chosen == "en" or all("\u4e00" <= word[0] <= "\u9fff" for word in cards.words().values())
