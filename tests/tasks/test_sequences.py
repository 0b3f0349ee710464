"""Tasks of known answer against answers worked out by brute force."""

import math
from collections import Counter

import pytest
import torch

from lab.tasks.code import Code
from lab.tasks.languages import Dyck, Infill, Markov
from lab.tasks.recall import Recall
from lab.tasks.sequences import Count, Maximum, Repeats, Reversal, Sort


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


TASKS = [
    Recall(), Recall(pairs=3, keys=3, values=2, queries=3), Repeats(), Repeats(low=3, high=3, vocabulary=5, length=9),
    Sort(), Sort(values=5, digits=3), Count(), Count(symbols=2, items=4), Maximum(), Maximum(vocabulary=5, length=3),
    Reversal(), Dyck(), Dyck(kinds=3, depth=2, length=12), Markov(), Markov(vocabulary=3, length=9, seed=4),
    Infill(code=Code(context=20)),
]  # fmt: skip
every_task = pytest.mark.parametrize("task", TASKS, ids=str)


def flat(batch):
    inputs, targets = batch
    return (*inputs, targets) if isinstance(inputs, tuple) else (inputs, targets)


@every_task
def test_a_batch_depends_on_its_generator_alone(task):
    before = torch.get_rng_state()
    first, again, other = (flat(task.batch(generator(seed), 8)) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    stream = generator(1)
    assert not torch.equal(flat(task.batch(stream, 8))[0], flat(task.batch(stream, 8))[0])


@every_task
def test_tokens_and_targets_are_in_the_vocabulary(task):
    *inputs, targets = flat(task.batch(generator(), 200))
    for tokens in inputs:
        assert tokens.dtype == torch.int64 and tokens.shape == (200, task.length) == targets.shape
        assert tokens.min() >= 0 and tokens.max() < task.vocabulary
    answers = targets[targets != -100]
    assert len(answers) and answers.min() >= 0 and answers.max() < (task.d_out or task.vocabulary)
    assert len(answers.unique()) > 1 and ((targets != -100).sum(1) > 0).all()


def rows(task, size=100):
    return [tuple(row) for row in zip(*(x.tolist() for x in flat(task.batch(generator(), size))), strict=True)]


@pytest.mark.parametrize("task", [t for t in TASKS if isinstance(t, Recall)], ids=str)
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


@pytest.mark.parametrize("share", [0.01, 0.15, 1.0])
def test_infill_hides_a_share_and_asks_for_it(share):
    code = Code(context=40)
    task = Infill(code=code, share=share)
    text, _ = code.batch(generator(), 50)
    for tokens, targets, whole in (
        (*task.batch(generator(), 50), text),
        (*task.validation(50, seed=3), code.validation(50, seed=3)[0]),
    ):
        hidden = tokens == 256
        assert (hidden.sum(1) == max(1, round(share * 40))).all()
        assert torch.equal(tokens[~hidden], whole[~hidden])
        assert torch.equal(targets[hidden], whole[hidden]) and (targets[~hidden] == -100).all()
        assert torch.equal(tokens.where(~hidden, targets), whole)
    assert share == 1 or len((tokens == 256).nonzero()[:, 1].unique()) > 5


WRONG = [
    (lambda: Recall(pairs=5, keys=4), "queries <= pairs <= keys"),
    (lambda: Repeats(low=9, high=8), "low <= high < length"),
    (lambda: Dyck(length=7), "even"),
    (lambda: Dyck(depth=0), "at least 1"),
    (lambda: Count(symbols=1), "at least 2"),
    (lambda: Infill(share=0), "share"),
]


@pytest.mark.parametrize("make, message", WRONG)
def test_a_task_without_answers_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
