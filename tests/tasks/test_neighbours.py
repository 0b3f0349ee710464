"""Tasks that a neighbour decides, tasks of few samples, and code without order."""

import pytest
import torch

from lab.tasks.code import Code, Shuffled
from lab.tasks.lengths import Parity
from lab.tasks.sequences import GridAbove, NeighbourSum
from lab.tasks.task import Few


def drawn(task, size=64, seed=0):
    return task.batch(torch.Generator().manual_seed(seed), size)


def test_a_sum_of_neighbours_knows_the_last_tokens_only():
    tokens, targets = drawn(NeighbourSum(reach=3, vocabulary=5, length=12))
    assert (targets[:, :2] == -100).all()
    for t in range(2, 12):
        assert torch.equal(targets[:, t], (tokens[:, t] + tokens[:, t - 1] + tokens[:, t - 2]) % 5)
    with pytest.raises(ValueError, match="reach <= length"):
        NeighbourSum(reach=4, length=3)


def test_a_cell_is_asked_for_the_one_above():
    tokens, targets = (x.view(-1, 4, 4) for x in drawn(GridAbove(side=4)))
    assert (targets[:, 0] == -100).all() and torch.equal(targets[:, 1:], tokens[:, :-1])


def test_parity_is_flipped_by_every_one():
    tokens, targets = Parity().of_length(torch.Generator().manual_seed(0), 32, 9)
    assert torch.equal(targets[:, 0], tokens[:, 0])
    assert torch.equal(targets[:, 1:], targets[:, :-1] ^ tokens[:, 1:])


def test_few_samples_are_drawn_over_and_over():
    few = Few(NeighbourSum(vocabulary=16), samples=3, seed=1)
    first, second = (drawn(few, 200, seed)[0] for seed in (0, 1))
    assert len(first.unique(dim=0)) == 3 and torch.equal(first.unique(dim=0), second.unique(dim=0))
    assert not torch.equal(first, second)
    other = drawn(Few(NeighbourSum(vocabulary=16), samples=3, seed=2), 200)[0]
    assert not torch.equal(first.unique(dim=0), other.unique(dim=0))


@pytest.fixture
def code(tmp_path):
    (tmp_path / "text.py").write_bytes(bytes(range(256)) * 4)
    return Code(context=16, path=str(tmp_path / "text.py"))


def test_a_shuffle_stays_within_its_spans_and_asks_the_true_next_byte(code):
    intact, answers = drawn(Shuffled(code))
    assert (intact[:, -1] == 256).all() and (answers[:, :-1] == -100).all()
    assert torch.equal(answers[:, -1], (intact[:, -2] + 1) % 256), "the text counts upwards"
    for span in (2, 4, 16):
        tokens, targets = drawn(Shuffled(code, span))
        assert torch.equal(targets, answers) and not torch.equal(tokens, intact)
        before, after = (x[:, :-1].unflatten(1, (-1, span)).sort(-1).values for x in (intact, tokens))
        assert torch.equal(before, after)
    with pytest.raises(ValueError, match="does not divide"):
        Shuffled(code, 3)
