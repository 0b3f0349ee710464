"""Tasks of known answer against answers worked out by brute force.

Of `lab.tasks.languages`.
"""

import math
from collections import Counter

import pytest
import torch
from helpers import generator

from lab.tasks.languages import Dyck, Markov
from lab.tasks.recall import MQAR, ConjunctiveLookup
from lab.tasks.sequences import Blocks, Count, Lookup, Maximum, Repeats, Reversal, Sort
from lab.tasks.task import accuracy

TASKS = [
    MQAR(), MQAR(pairs=3, keys=3, values=2, queries=3), Repeats(), Repeats(low=3, high=3, vocabulary=5, length=9),
    Sort(), Sort(values=5, digits=3), Count(), Count(symbols=2, items=4), Maximum(), Maximum(vocabulary=5, length=3),
    Dyck(), Dyck(kinds=3, depth=2, length=12), Markov(), Markov(vocabulary=3, length=9, seed=4),
]  # fmt: skip


def flat(batch):
    inputs, targets = batch
    return (*inputs, targets) if isinstance(inputs, tuple) else (inputs, targets)


def rows(task, size=100):
    return [tuple(row) for row in zip(*(x.tolist() for x in flat(task.batch(generator(), size))), strict=True)]


@pytest.mark.parametrize("task", [t for t in TASKS if isinstance(t, MQAR)], ids=str)
def test_recall_answers_with_the_value_of_the_key(task):
    for tokens, targets in rows(task):
        written, asked = tokens[: 2 * task.pairs], tokens[2 * task.pairs :]
        memory = dict(zip(written[::2], written[1::2], strict=True))
        assert len(memory) == task.pairs and len(set(asked)) == task.queries
        assert all(key < task.keys <= value for key, value in memory.items())
        assert targets == [-100] * len(written) + [memory[key] for key in asked]


@pytest.mark.parametrize("task", [t for t in TASKS if isinstance(t, Repeats)], ids=str)
def test_repeats_go_on_as_one_period_earlier(task):
    drawn = task.annotated(generator(), 200)
    assert all(
        torch.equal(drawn[n], x) for n, x in zip(("tokens", "targets"), task.batch(generator(), 200), strict=True)
    )
    assert set(drawn["period"].tolist()) == set(range(task.low, task.high + 1))
    for tokens, targets, source, period in zip(*(x.tolist() for x in drawn.values()), strict=True):
        for t in range(task.length):
            if t < period:
                assert targets[t] == source[t] == -100 or (targets[t], source[t]) == (-100, -1)
                continue
            assert tokens[t] == tokens[t - period]
            assert source[t] == t - period + 1 <= t and targets[t] == tokens[source[t]]
            if t + 1 < task.length:
                assert targets[t] == tokens[t + 1]


@pytest.mark.parametrize("task", [t for t in TASKS if isinstance(t, Sort)], ids=str)
def test_sort_ends_in_the_digits_in_order(task):
    n = task.digits
    for tokens, targets in rows(task):
        assert targets == [-100] * (n - 1) + sorted(tokens[:n])
        assert tokens[n:] == targets[n - 1 : -1], "every answer is the next token"


@pytest.mark.parametrize("task", [t for t in TASKS if isinstance(t, Count)], ids=str)
def test_count_counts_the_symbol_asked_for(task):
    found = Counter()
    for (*items, query), targets in rows(task, 3000):
        assert max(items) < task.symbols <= query
        assert targets == [-100] * task.items + [items.count(query - task.symbols)]
        found[targets[-1]] += 1
    assert set(found) == set(range(task.items + 1))
    assert max(found.values()) < 1.5 * min(found.values()), "no count is rare"


@pytest.mark.parametrize("task", [t for t in TASKS if isinstance(t, Maximum)], ids=str)
def test_maximum_answers_with_the_largest(task):
    found = Counter()
    for tokens, targets in rows(task, 3000):
        assert targets == [-100] * (task.length - 1) + [max(tokens)]
        found[max(tokens)] += 1
    assert set(found) == set(range(task.vocabulary))
    assert max(found.values()) < 3000 / 2, "guessing does not pay"


def test_reversal_feeds_the_decoder_its_answer_one_late():
    task = Reversal(symbols=5, length=4)
    for source, target_in, targets in rows(task):
        assert targets == source[::-1]
        assert target_in == [task.symbols, *targets[:-1]] and task.symbols not in source


@pytest.mark.parametrize("task", [t for t in TASKS if isinstance(t, Dyck)], ids=str)
def test_brackets_pair_as_a_stack_says(task):
    drawn, deepest, kinds = task.annotated(generator(), 300), 0, set()
    assert all(
        torch.equal(drawn[n], x) for n, x in zip(("tokens", "targets"), task.batch(generator(), 300), strict=True)
    )
    for tokens, targets, partner, pending in zip(*(x.tolist() for x in drawn.values()), strict=True):
        assert targets == [*tokens[1:], -100]
        stack = []
        for t, token in enumerate(tokens):
            if token < task.kinds:
                stack.append(t)
                kinds.add(token)
            else:
                opener = stack.pop()
                assert tokens[opener] == token - task.kinds
                assert (partner[t], partner[opener]) == (opener, t)
            assert pending[t] == (stack[-1] if stack else -1)
            deepest = max(deepest, len(stack))
            assert len(stack) <= task.depth
        assert stack == []
    assert deepest == task.depth and kinds == set(range(task.kinds))


@pytest.mark.parametrize("task", [t for t in TASKS if isinstance(t, Markov)] + [Markov(contrast=0.0)], ids=str)
def test_the_entropy_of_a_chain_is_what_its_text_shows(task):
    tokens, targets = task.batch(generator(), 20_000)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert torch.allclose(task.stationary @ task.transition, task.stationary, atol=1e-12)
    assert task.stationary.sum().item() == pytest.approx(1) and (task.transition.sum(1) - 1).abs().max() < 1e-12
    v = task.vocabulary
    pairs = torch.bincount((tokens * v + targets).flatten(), minlength=v * v).view(v, v).double()
    assert (pairs / pairs.sum(1, keepdim=True) - task.transition).abs().max() < 0.02
    for t in (0, task.length - 1):  # the chain starts in its long run
        shares = torch.bincount(tokens[:, t], minlength=v) / len(tokens)
        assert (shares - task.stationary).abs().max() < 0.02
    joint, single = pairs / pairs.sum(), pairs.sum(1) / pairs.sum()
    entropy_of_pairs = -torch.special.xlogy(joint, joint).sum() - -torch.special.xlogy(single, single).sum()
    assert task.entropy_rate == pytest.approx(entropy_of_pairs.item(), abs=5e-3)
    nll = -task.transition[tokens, targets].log().mean().item()
    assert task.entropy_rate == pytest.approx(nll, abs=0.01)
    assert task.entropy_rate <= task.unigram_entropy + 1e-12 <= math.log(v) + 2e-12
    assert task.unigram_entropy == pytest.approx(-torch.special.xlogy(single, single).sum().item(), abs=5e-3)


def test_another_seed_is_another_chain():
    one, same, other = Markov(seed=1), Markov(seed=1, length=9), Markov(seed=2)
    assert torch.equal(one.transition, same.transition) and not torch.equal(one.transition, other.transition)


WRONG = [
    (lambda: MQAR(pairs=5, keys=4), "queries <= pairs <= keys"),
    (lambda: Repeats(low=9, high=8), "low <= high < length"),
    (lambda: Dyck(length=7), "even"),
    (lambda: Dyck(depth=0), "at least 1"),
    (lambda: Count(symbols=1), "at least 2"),
]


@pytest.mark.parametrize("make, message", WRONG)
def test_a_task_without_answers_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("offsets", [(1,), (1, 3), (4, 2, 7), (3, 40)])
def test_lookup_answers_with_the_tokens_at_its_offsets(offsets):
    task = Lookup(offsets=offsets, vocabulary=7, length=12)
    tokens, targets = task.batch(generator(), 20)
    assert tokens.shape == (20, 12) and targets.shape == (20, 12, len(offsets))
    assert task.d_out == 7 * len(offsets)
    for b in range(20):
        for t in range(12):
            for i, offset in enumerate(offsets):
                assert targets[b, t, i] == (tokens[b, t - offset] if t >= offset else -100)


@pytest.mark.parametrize("task", [ConjunctiveLookup(), ConjunctiveLookup(subjects=2, predicates=5, values=3)], ids=str)
def test_exactly_one_item_matches_the_query_and_holds_the_answer(task):
    tokens, targets = task.batch(generator(), 50)
    pairs = [(s, p) for s in range(task.subjects) for p in range(task.predicates)]
    meaning = [(pair, value) for pair in pairs for value in range(task.values)] + [(pair, None) for pair in pairs]
    assert len(meaning) == task.vocabulary and tokens.shape == (50, task.length) == (50, len(pairs) + 1)
    places = set()
    for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
        *items, (query, nothing) = (meaning[token] for token in row)
        assert nothing is None and all(value is not None for _, value in items)
        assert sorted(pair for pair, _ in items) == pairs, "every pair once"
        assert target[:-1] == [-100] * len(items)
        assert [target[-1]] == [value for pair, value in items if pair == query], "one match, and it is the answer"
        halves = [(pair[0] == query[0]) + (pair[1] == query[1]) for pair, _ in items]
        assert halves.count(1) == task.subjects + task.predicates - 2, "the others tempt in one field at most"
        places.add(halves.index(2))
    assert len(places) > 5, "the answer stands anywhere"


def test_accuracy_counts_answers_only():
    targets = torch.tensor([[[0, 2], [-100, 1]]])
    logits = torch.zeros(1, 2, 2, 3)
    for t, i, winner in ((0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 1, 1)):
        logits[0, t, i, winner] = 1
    assert accuracy(logits.flatten(2), targets) == pytest.approx(2 / 3)


def test_blocks_repeat_different_tokens():
    task = Blocks(vocabulary=32)
    tokens, targets = task.batch(torch.Generator().manual_seed(1), 5)
    assert tokens.shape == targets.shape == (5, 100) and task.length == 100
    block = tokens[:, :25]
    assert all(len(set(row.tolist())) == 25 for row in block) and tokens.equal(block.repeat(1, 4))
    assert (
        (targets[:, :25] == -100).all()
        and targets[:, 25:-1].equal(tokens[:, 26:])
        and targets[:, -1].equal(block[:, 0])
    )
    assert len({tuple(row.tolist()) for row in block}) == 5
    for wrong in ({"vocabulary": 24}, {"vocabulary": 32, "repeats": 1}, {"vocabulary": 32, "period": 0}):
        with pytest.raises(ValueError, match="period <= vocabulary"):
            Blocks(**wrong)
