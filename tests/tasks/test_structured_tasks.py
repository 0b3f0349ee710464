"""Tasks whose structure is known: that the gold is what the text says.

Of `lab.tasks.definitions`, `lab.tasks.discourse`, `lab.tasks.recall` and `lab.tasks.series`.
"""

import math

import pytest
import torch
from helpers import generator

from lab.models.sparse_masks import Linked, Periodic, SameSpeaker, Tree
from lab.tasks.definitions import SIGNS, Definitions
from lab.tasks.discourse import Dialogue, Document
from lab.tasks.labels import tokens_and_parents
from lab.tasks.recall import Pairs
from lab.tasks.series import Seasonal, explained, squared_error, to_bins

STRUCTURED = [
    Dialogue(),
    Dialogue(shortest=1, longest=3, length=20),
    Seasonal(),
    Seasonal(period=5, length=12),
    Definitions(windows=40),
]


@pytest.mark.parametrize("task", STRUCTURED, ids=str)
def test_sources_lie_in_the_past_and_batches_follow_the_generator(task):
    gold = task.annotated(generator(), 200)
    at = torch.arange(task.length)
    assert (gold["source"] <= at).all() and (gold["source"] >= -1).all() and (gold["source"] >= 0).any()
    asked = ~gold["targets"].isnan() if gold["targets"].is_floating_point() else gold["targets"] >= 0
    assert torch.equal(asked, gold["source"] >= 0)
    assert gold["tokens"].min() >= 0 and gold["tokens"].max() < task.vocabulary
    tokens, targets = task.batch(generator(), 200)
    assert torch.equal(tokens, gold["tokens"]) and torch.equal(targets.nan_to_num(), gold["targets"].nan_to_num())
    assert not torch.equal(tokens, task.batch(generator(1), 200)[0])


def test_a_dialogue_by_reading_it():
    task = Dialogue(words=5, shortest=1, longest=4, length=30)
    gold = task.annotated(generator(), 50)
    lengths = set()
    for tokens, targets in zip(gold["tokens"].tolist(), gold["targets"].tolist(), strict=True):
        said, turn, last = {}, 0, None
        for t, (token, target) in enumerate(zip(tokens, targets, strict=True)):
            speaker, starts, word = token // 10, token // 5 % 2, token % 5
            assert starts == (speaker != last), "turns alternate"
            expected = said.get(speaker, -100) if starts else -100
            assert target == expected, t
            turn = 1 if starts else turn + 1
            lengths.add(turn)
            said[speaker], last = word, speaker
    assert lengths == {1, 2, 3, 4}
    own = SameSpeaker(gold["speaker"]).dense(30, 30, batch=50)[:, 0]
    asked = gold["source"] >= 0
    assert own.gather(2, gold["source"].clamp(min=0)[..., None])[asked].all(), "the answer is said by the same speaker"


def test_marks_of_code_by_reading_them():
    task = Definitions(names=6, values=4, windows=60)
    gold = task.annotated(generator(), 300)
    first, brackets = len(SIGNS), len(SIGNS) + 6 * 5
    names_asked = brackets_asked = 0
    for tokens, targets in zip(gold["tokens"].tolist(), gold["targets"].tolist(), strict=True):
        marks, stack = {}, []
        for token, target in zip(tokens, targets, strict=True):
            if token < first:
                assert target == -100
            elif token < first + 6:
                assert target == marks[token - first]
                names_asked += 1
            elif token < brackets:
                name, mark = divmod(token - first - 6, 4)
                assert name not in marks and target == -100, "defined once"
                marks[name] = mark
            elif token < brackets + 3:
                shape, mark = stack.pop()
                assert (shape, target) == (token - brackets, mark)
                brackets_asked += 1
            else:
                stack.append(divmod(token - brackets - 3, 4))
                assert target == -100
    assert names_asked > 300 and brackets_asked > 300
    renamed = task.annotated(generator(1), 300)
    assert (gold["parent"] < torch.arange(64)).all()
    assert Linked(gold["source"]).dense(64, 64, batch=300).sum() == (gold["source"] >= 0).sum()
    assert renamed["targets"].unique().tolist() == [-100, 0, 1, 2, 3]


def test_held_out_code_is_other_code():
    task = Definitions(windows=40)
    seen, held = (task.annotated(generator(), 200, held_out=x) for x in (False, True))
    rows = {tuple(row) for row in seen["source"].tolist()}
    assert sum(tuple(row) in rows for row in held["source"].tolist()) < 20


def test_the_tree_above_a_token_leads_to_the_root():
    spelled, parent = tokens_and_parents("def f(a, é):\n    x = g(é)[0]\n    return x + a\n".encode())
    up = Tree(torch.tensor([parent])).dense(len(parent), len(parent))[0, 0]
    assert {spelled[k] for k in up[13].nonzero().flatten()} == {"g", "x", "def"}


def test_a_season_repeats_up_to_its_noise():
    task = Seasonal(period=6, noise=0.1, length=30)
    gold = task.annotated(generator(), 2000)
    later, earlier = gold["targets"][:, 12:], gold["targets"][:, 6:-6]
    assert abs((later - earlier).std() - 0.1 * math.sqrt(2)) < 0.005 and abs(later.std() - 1.005) < 0.02
    assert torch.equal(gold["tokens"][:, 7:], to_bins(gold["targets"][:, 6:-1], 32))
    visible = Periodic(period=6, lead=1).dense(30, 30)[0, 0]
    assert visible[torch.arange(6, 30), gold["source"][0, 6:]].all()
    perfect = gold["tokens"].gather(1, gold["source"].clamp(min=0)).float() * 6 / 32 - 3 + 3 / 32
    assert abs(explained(perfect, gold["targets"]) - (1 - 0.02 / 1.01)) < 0.01
    assert abs(explained(torch.zeros_like(perfect), gold["targets"])) < 0.01
    error = squared_error(lambda x: perfect[..., None], None, gold["targets"])
    assert abs(error - 0.02) < 0.005


def test_a_document_by_reading_it():
    task = Document(words=5, topics=3, front=2, length=10)
    tokens, targets = task.batch(generator(), 200)
    assert (tokens[:, :2] == 8).all() and ((tokens[:, 2:] >= 5).sum(1) == 1).all() and (tokens[:, 2:] < 8).all()
    topic = tokens[:, 2:].amax(1, keepdim=True) - 5
    assert torch.equal(targets[:, :, 1], topic.expand(-1, 10)) and topic.unique().tolist() == [0, 1, 2]
    before = torch.cat([torch.full((200, 1), 8), tokens[:, :-1]], 1)
    assert torch.equal(targets[:, :, 0], before.where(before < 5, -100))


def test_pairs_by_reading_them():
    task = Pairs(pairs=5, keys=7, values=3)
    tokens, targets = task.batch(generator(), 200)
    assert tokens.shape == targets.shape == (200, 10) and tokens.max() < task.vocabulary
    for row, asked in zip(tokens.tolist(), targets.tolist(), strict=True):
        memory = dict(divmod(token, 3) for token in row[:5])
        assert len(memory) == 5 and asked[:5] == [-100] * 5
        assert sorted(key - 21 for key in row[5:]) == sorted(memory)
        assert asked[5:] == [memory[key - 21] for key in row[5:]]
    with pytest.raises(ValueError, match="pairs must be 1..7"):
        Pairs(pairs=8, keys=7)
