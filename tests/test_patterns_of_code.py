"""The attention patterns of exercise 1.13 for code: none finds the answer more often than chance."""

import pytest
import torch
from definitions import definitions

KINDS = {"names": 1, "brackets": 2}


@pytest.fixture(scope="module")
def lesson():
    with definitions("13", "reach") as module:
        yield module


def shares(lesson, gold, pattern, kind):
    """Share of the queries of a kind that link to their answer, and share of links to other queries' answers."""
    links = lesson.by_code(pattern, gold).dense(64, 64, batch=len(gold["tokens"]))[:, 0]
    asked, at = gold["kind"] == kind, torch.arange(64)
    own = lesson.answers("code", gold)
    places = (own & asked[..., None]).any(1)
    others = places[:, None] & (at < at[:, None]) & ~own
    asked &= others.any(-1)
    swapped = (links & others).sum(-1)[asked] / others.sum(-1)[asked]
    return (links & own).any(-1)[asked].float().mean(), swapped.mean()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pattern", ["tree", "levels", "definitions"])
def test_without_pointers_patterns_link_to_the_answer_no_more_often_than_chance(lesson, pattern, kind):
    gold = lesson.without_pointers("code", torch.Generator().manual_seed(1), 256, "")
    found, chance = shares(lesson, gold, pattern, KINDS[kind])
    assert found <= chance + 0.01


def test_tree_with_pointers_links_closing_brackets_to_their_openers(lesson):
    gold = lesson.texts("code", torch.Generator().manual_seed(1), 256, "")
    found, chance = shares(lesson, gold, "tree", KINDS["brackets"])
    assert found == 1 and chance < 0.1
