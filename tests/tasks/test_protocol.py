"""Task contract: generators determine batches, targets are in range, held-out data does not occur in training.

Tests `lab.tasks.lengths` and `lab.tasks.task`.
"""

import math

import pytest
import torch
from helpers import generator

from lab.tasks.code import Code
from lab.tasks.lengths import Addition, AnyLength, Copy, add, held_out_pairs
from lab.tasks.sequences import Facts, Lookup, Markov, Pairs, Reversal
from lab.tasks.task import Task, accuracy

ADDITIONS = [Addition(reverse=reverse, padded=padded) for reverse in (True, False) for padded in (True, False)]
TASKS = [
    Code(context=16), Facts(), Facts(objects=3, wordings=1), Markov(), Markov(vocabulary=3, length=9, seed=4), Copy(),
    Copy(symbols=3, order="same"), *ADDITIONS, Addition(shortest=2, longest=8), Pairs(), Lookup(),
    Lookup(offsets=(2, 40), length=9, vocabulary=5), Reversal(),
]  # fmt: skip
every_task = pytest.mark.parametrize("task", TASKS, ids=str)


def flat(batch):
    inputs, targets = batch
    return [*inputs, targets] if isinstance(inputs, tuple) else [inputs, targets]


def same(one, other):
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_every_task_class_is_covered():
    def subclasses(kind):
        return {kind, *(sub for child in kind.__subclasses__() for sub in subclasses(child))}

    assert {type(task) for task in TASKS} == {
        kind for kind in subclasses(Task) - {Task, AnyLength} if kind.__module__.startswith("lab.tasks.")
    }


@every_task
def test_seed_determines_batches_and_validation_and_the_global_generator_is_unchanged(task):
    before = torch.get_rng_state()
    first, again, other = (flat(task.batch(generator(seed), 8)) for seed in (1, 1, 2))
    assert same(first, again) and not same(first, other)
    stream = generator(1)
    assert not same(flat(task.batch(stream, 8)), flat(task.batch(stream, 8)))
    kept, again, other = (flat(task.validation(8, seed)) for seed in (0, 0, 1))
    assert same(kept, again) and not same(kept, other) and not same(kept, first)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("task", [task for task in TASKS if isinstance(task, AnyLength)], ids=str)
def test_validation_has_every_length_and_first_target_has_the_same_index_as_in_of_length(task):
    lengths = range(task.shortest, task.longest + 1)
    tokens, targets = task.validation(3 * len(lengths))
    assert tokens.shape[1] == task.length
    has_target = [(targets != -100)[i : i + 3] for i in range(0, len(targets), 3)]
    for n, part in zip(lengths, has_target, strict=True):
        _, single_length = task.of_length(generator(), 3, n)
        last = part.long().cumsum(1).argmax(1)
        assert (last < task.text_length(n)).all()
        if getattr(task, "padded", True):
            assert single_length.shape[1] == task.text_length(n)
            assert part.any(0).nonzero()[0] == (single_length != -100).any(0).nonzero()[0]
    small = task.validation(2)[1]
    assert len(small) == 2 and small.shape[1] <= task.length


@every_task
@pytest.mark.parametrize("draw", ["batch", "validation"])
def test_tokens_and_targets_are_in_range(task, draw):
    inputs, targets = task.batch(generator(), 200) if draw == "batch" else task.validation(200)
    for tokens in inputs if isinstance(inputs, tuple) else [inputs]:
        assert tokens.dtype == torch.int64 and tokens.shape == targets.shape[:2] and len(tokens) == 200
        assert tokens.shape[1] == task.length or isinstance(task, AnyLength) and tokens.shape[1] <= task.length
        assert tokens.min() >= 0 and tokens.max() < task.vocabulary
    has_target = targets != -100
    assert targets[has_target].min() >= 0 and targets[has_target].max() < (task.d_out or task.vocabulary)
    assert has_target.flatten(1).any(1).all() and len(targets[has_target].unique()) > 1


def test_accuracy_ignores_positions_without_targets():
    targets = torch.tensor([[[0, 2], [-100, 1]]])
    logits = torch.zeros(1, 2, 2, 3)
    for t, i, winner in ((0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 1, 1)):
        logits[0, t, i, winner] = 1
    assert accuracy(logits.flatten(2), targets) == pytest.approx(2 / 3)


def test_accuracy_is_nan_for_nan_logits():
    targets = torch.tensor([[0, -100, 1]])
    logits = torch.tensor([[[1.0, 0.0], [math.nan, math.nan], [0.0, 1.0]]])
    assert accuracy(logits, targets) == 1  # NaN logits without a target do not count
    assert math.isnan(accuracy(logits.index_fill(1, torch.tensor(0), math.nan), targets))


# Held-out data


@pytest.mark.parametrize("task", ADDITIONS[:2], ids=str)
def test_held_out_sums_never_occur_in_training(task):
    def pairs(tokens):
        result = set()
        for row in tokens.tolist():
            plus, equals = row.index(10), row.index(11)
            a, b = (int("".join(map(str, x))) for x in (row[:plus], row[plus + 1 : equals]))
            result.add((min(a, b), max(a, b)))
        return result

    stream, sizes = generator(), range(1, 4)
    trained = set().union(*(pairs(task.of_length(stream, 2000, n, held_out=False)[0]) for n in sizes))
    batches = set().union(*(pairs(task.batch(generator(seed), 100)[0]) for seed in range(10)))
    validated = set().union(*(pairs(task.validation(100, seed)[0]) for seed in range(10)))
    assert not batches & validated
    for n in sizes:
        tested = pairs(task.of_length(stream, 500, n)[0])
        assert len(tested) > 3 and not tested & (trained | batches)
    assert len(trained) > 1000


def digits(number, width):
    return [number // 10**i % 10 for i in range(width)]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_ten_percent_of_pairs_are_held_out_regardless_of_order_and_padding(n):
    numbers = torch.tensor([digits(x, n) for x in range(10**n)])
    a, b = numbers.repeat_interleave(10**n, 0), numbers.repeat(10**n, 1)
    out = held_out_pairs(a, b)
    assert torch.equal(out, held_out_pairs(b, a))
    assert torch.equal(out, held_out_pairs(torch.cat([a, torch.zeros(len(a), 3, dtype=torch.long)], 1), b))
    assert out.double().mean().item() == pytest.approx(0.1, abs=0.006)
    if n > 1:  # holding out is independent of every operand and sum digit
        for column in [*a.unbind(1), *add(a, b)[:, :-1].unbind(1)]:
            assert all(0.05 < out[column == digit].double().mean() < 0.16 for digit in range(10))
