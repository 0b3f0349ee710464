"""A card: the sentence, a line for each cell, labels, bar, gates, and where it holds."""

import pytest

from lab.claims import cards
from lab.claims.claims import Claim, Line

PARTS = [
    {"name": "one head", "question": "is one | worse?"},
    {"name": "two heads", "question": "are two worse?"},
]
CLAIM = Claim(
    id="x", exercise="1.4", kind="comparison", priority="A", sources=["chapter §1.2", "note 4"], metric="m",
    claim="One or two are worse.", claim_zh="一两个更差。", parts=PARTS,
    direction="above", bar=0.1, because="a tenth is seen", unit="points",
)  # fmt: skip
ONE, TWO = CLAIM.parts
FOUND = {"effect": 0.25, "low": 0.2, "high": 0.3, "n": 5, "figure": "f", "sizes": "d_model 64"}


def line(part=ONE, where="narrow", answer="yes", label="supported", **fields):
    said = CLAIM.row(part) | FOUND | {"gates": "✓ learned: a; b; ✗ null: c"}
    return Line(where=where, answer=answer, label=label, **said | fields)


LINES = [
    line(yes=1, no=1, cells=2, label="not everywhere", fixed="before"),
    line(where="wide", answer="no, the other way", note="seen", yes=1, no=1, cells=2, label="not everywhere",
         fixed="before", gates="✓ learned: a; b"),
    line(TWO, where="", answer="undecided", label="undecided", cells=1, fixed="exploratory"),
]  # fmt: skip


def test_a_card_has_a_line_for_each_cell_and_then_the_labels():
    head, table, below = cards.card(CLAIM, LINES, "own: seeds 9").split("\n\n")
    assert head == "**One or two are worse.**<br>*chapter §1.2; note 4*"
    assert table.splitlines() == [
        "| part | where | effect | n | answer |",
        "| :-- | :-- | :-- | :-- | :-- |",
        "| one head: is one \\| worse? | narrow | 0.25 [0.20, 0.30] points | 5 | **yes** |",
        "| one head | wide | 0.25 [0.20, 0.30] points | 5 | **no, the other way** (seen) |",
        "| two heads: are two worse? |  | 0.25 [0.20, 0.30] points | 5 | **undecided** |",
    ]
    assert below.split("<br>") == [
        "one head: **not everywhere: yes in 1, no in 1 of 2** · two heads: **undecided**",
        "Yes where the effect is > 0.1: a tenth is seen.",
        "The comparison was fixed before these runs. Exploratory: the comparison was not fixed before these runs. "
        "Intervals cover seeds, not other texts or sizes.",
        "✓ learned: a; b",
        "✗ null: c [narrow]",
        "Holds for d_model 64, own: seeds 9.",
        "Figure: f.",
    ]


def test_the_sizes_of_all_cells_are_told_once():
    lines = [line(sizes="d_model 64, n_heads 1 8"), line(sizes="d_model 64, n_heads 2 8, A machine")]
    assert cards.holds_for(lines, "") == "Holds for d_model 64, n_heads 1 8 2, A machine."


def test_a_card_leaves_out_what_there_is_not():
    about = Claim(**CLAIM.model_dump(by_alias=True, exclude={"parts"}), parts=[ONE.model_dump(by_alias=True)])
    (pending,) = about.unjudged
    text = cards.card(about, [pending])
    assert "Measured: one head: is one | worse?" in text and "| part |" not in text
    assert "where" not in text and "Figure" not in text and "learned" not in text and "**pending**" in text
    assert "not yet gated" in cards.card(CLAIM, [line(gates="not yet gated")])


@pytest.mark.parametrize("unit, held, bar", [
    ("points", "> 0.1", "> 0.1"),
    ("relative change", "< -0.02", "< -2 %"),
    ("relative change", "= 1 ± 0.001", "= +100 % ± 0.1 %"),
    ("", "= 0 ± 1e-09", "= 0 ± 1e-9"),
    ("heads", "= 8", "= 8"),
    ("share", "", ""),
])  # fmt: skip
def test_a_bar_is_told_as_the_effect_is(unit, held, bar):
    assert cards.bar(line(unit=unit, bar=held)) == bar


def test_a_part_in_a_line_tells_label_effect_and_bar():
    only = line(where="", yes=1, cells=1)
    assert cards.in_a_line(only) == "supported: 0.25 [0.20, 0.30] points, n = 5; predicted > 0.1"
    assert cards.in_a_line(LINES[0]) == "not everywhere: yes in 1, no in 1 of 2; predicted > 0.1"
    assert cards.in_a_line(*CLAIM.unjudged) == "pending"
    answered = line(answer="answered", label="answered", bar="")
    assert cards.in_a_line(answered) == "answered: 0.25 [0.20, 0.30] points, n = 5"
    was = cards.in_a_line(line(label="checked", bar="", effect=0, low=0, high=0, n=None, unit=""), was="disproved")
    assert was == "checked (was disproved): 0"
