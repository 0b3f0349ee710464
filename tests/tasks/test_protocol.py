"""What holds of every task: batches follow their generator, answers are in range, marks are those of the answers.

Of `lab.tasks.lengths` and `lab.tasks.task`.
"""

import importlib.util
from math import isclose, log

import pytest
import torch
from helpers import generator

from lab.measure.ngrams import ngram_losses
from lab.tasks.code import Code, ProseAndCode, Shuffled
from lab.tasks.definitions import Definitions
from lab.tasks.discourse import Dialogue, Document, Pronouns
from lab.tasks.languages import Dyck, Markov
from lab.tasks.lengths import Addition, AnyLength, Copy, Order, add, held_out_pairs
from lab.tasks.recall import MQAR, ConjunctiveLookup, Facts, Pairs
from lab.tasks.sequences import Blocks, Count, Lookup, Maximum, Repeats, Reversal, Sort
from lab.tasks.series import Seasonal, explained
from lab.tasks.task import Marks, Task, certain, uniform

TEXT = importlib.util.find_spec("sympy").submodule_search_locations[0] + "/functions"
DOCUMENTED = TEXT.replace("functions", "core/function.py")  # half docstrings
ADDITIONS = [Addition(reverse=reverse, padded=padded) for reverse in (True, False) for padded in (True, False)]
TASKS = [
    Blocks(32), Blocks(5, period=3, repeats=2), Code(context=16), Definitions(windows=40), Dialogue(),
    Dialogue(shortest=1, longest=3, length=20), Document(), Document(words=5, topics=3, front=2, length=10), Facts(),
    Facts(objects=3, wordings=1), Dyck(), Dyck(kinds=3, depth=2, length=12), Dyck(kinds=1, depth=9, length=8), Markov(),
    Markov(vocabulary=3, length=9, contrast=2.5, seed=4), Copy(),
    Copy(symbols=3, order="same"), *ADDITIONS, Addition(shortest=2, longest=8), Order(),
    Pairs(), MQAR(), MQAR(pairs=3, keys=3, values=2, queries=3),
    Lookup(), Lookup(offsets=(2, 40), length=9, vocabulary=5), ConjunctiveLookup(), ConjunctiveLookup(2, 5, 3),
    Repeats(), Repeats(low=3, high=3, vocabulary=5, length=9), Sort(), Sort(values=5, digits=3), Count(),
    Count(symbols=2, items=4), Maximum(), Maximum(vocabulary=5, length=3), Reversal(), Seasonal(),
    Seasonal(period=5, noise=1.0, length=12), Shuffled(Code(context=16), span=4),
    Pronouns(), Pronouns(others=3, length=6), ProseAndCode(16, DOCUMENTED),
]  # fmt: skip
every_task = pytest.mark.parametrize("task", TASKS, ids=str)


def flat(batch):
    inputs, targets = batch
    return [*inputs, targets.nan_to_num()] if isinstance(inputs, tuple) else [inputs, targets.nan_to_num()]


def same(one, other):
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_no_task_is_missing():
    def below(kind):
        return {kind, *(sub for child in kind.__subclasses__() for sub in below(child))}

    assert {type(task) for task in TASKS} == {
        kind for kind in below(Task) - {Task, AnyLength} if kind.__module__.startswith("lab.tasks.")
    }
    assert all("targets" in kind.__doc__ or "output 0" in kind.__doc__ for kind in map(type, TASKS)), "a row is drawn"


@every_task
def test_batches_and_validation_depend_on_their_seed_alone(task):
    before = torch.get_rng_state()
    first, again, other = (flat(task.batch(generator(seed), 8)) for seed in (1, 1, 2))
    assert same(first, again) and not same(first, other)
    stream = generator(1)
    assert not same(flat(task.batch(stream, 8)), flat(task.batch(stream, 8)))
    kept, again, other = (flat(task.validation(8, seed)) for seed in (0, 0, 1))
    assert same(kept, again) and not same(kept, other) and not same(kept, first)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("task", [task for task in TASKS if isinstance(task, AnyLength)], ids=str)
def test_validation_holds_every_length_and_asks_what_a_batch_of_it_does(task):
    lengths = range(task.shortest, task.longest + 1)
    tokens, targets = task.validation(3 * len(lengths))
    assert tokens.shape[1] == task.length
    asked = [(targets != -100)[i : i + 3] for i in range(0, len(targets), 3)]
    for n, part in zip(lengths, asked, strict=True):
        _, alone = task.of_length(generator(), 3, n)
        last = part.long().cumsum(1).argmax(1)
        assert (last < task.text_length(n)).all()
        if getattr(task, "padded", True):
            assert alone.shape[1] == task.text_length(n)
            assert part.any(0).nonzero()[0] == (alone != -100).any(0).nonzero()[0]
    few = task.validation(2)[1]
    assert len(few) == 2 and few.shape[1] <= task.length


@every_task
@pytest.mark.parametrize("draw", ["batch", "validation"])
def test_tokens_and_answers_are_in_range(task, draw):
    inputs, targets = task.batch(generator(), 200) if draw == "batch" else task.validation(200)
    for tokens in inputs if isinstance(inputs, tuple) else [inputs]:
        assert tokens.dtype == torch.int64 and tokens.shape == targets.shape[:2] and len(tokens) == 200
        assert tokens.shape[1] == task.length or isinstance(task, AnyLength) and tokens.shape[1] <= task.length
        assert tokens.min() >= 0 and tokens.max() < task.vocabulary
    if targets.is_floating_point():
        asked = ~targets.isnan()
        assert task.d_out == 1 and targets[asked].isfinite().all()
    else:
        asked = targets != -100
        assert targets[asked].min() >= 0 and targets[asked].max() < (task.d_out or task.vocabulary)
    assert asked.flatten(1).any(1).all() and len(targets[asked].unique()) > 1


def answers(task, sequences=4000):
    """Answers of many sequences, a tensor for each output of the task."""
    size = 50 if isinstance(task, AnyLength) else sequences
    stream, drawn = generator(), []
    for _ in range(sequences // size):
        targets = task.validation(size)[1] if "files" in task.holds_out else task.batch(stream, size)[1]
        drawn.append(targets.flatten(0, 1))
    drawn = torch.cat(drawn)
    asked = [column[column != -100] for column in (drawn.unbind(1) if drawn.ndim == 2 else [drawn])]
    return [column for column in asked if len(column)]


@every_task
def test_marks_are_those_of_the_answers(task):
    marks = task.marks()
    if task.d_out == 1:
        assert marks.chance == 0 and marks.entropy is marks.unigram_entropy is None and (marks.ceiling or 1) <= 1
        return
    counts = [column.bincount().double() for column in answers(task)]
    total = sum(c.sum() for c in counts).item()
    if marks.chance is not None:
        assert marks.chance == pytest.approx(sum(c.max() for c in counts).item() / total, rel=0.12, abs=0.012)
        nats = -sum(torch.special.xlogy(c, c / c.sum()).sum() for c in counts).item() / total
        assert marks.unigram_entropy == pytest.approx(nats, abs=0.03)
        assert marks.chance <= (1 if marks.ceiling is None else marks.ceiling) <= 1
        assert -log(marks.chance) <= marks.unigram_entropy + 1e-9, (
            "the commonest answer is not less likely than it says"
        )
    if marks.entropy is not None:
        assert 0 <= marks.entropy <= (marks.unigram_entropy or log(task.d_out or task.vocabulary)) + 1e-9
        assert (marks.entropy == 0) == (marks.ceiling == 1)


def test_marks_by_hand():
    assert uniform(4) == certain([2, 2, 2, 2]) == Marks(0.25, 1.0, log(4), 0.0)
    skewed = certain([3, 0, 1])
    assert skewed.chance == 0.75 and isclose(skewed.unigram_entropy, 0.75 * log(4 / 3) + 0.25 * log(4))


# Oracles: who knows the rule reaches the ceiling and the entropy, and no further


@pytest.mark.parametrize("task", [t for t in TASKS if isinstance(t, Markov)], ids=str)
def test_the_table_of_a_chain_reaches_its_marks(task):
    tokens, targets = task.batch(generator(), 20_000)
    odds, marks = task.transition[tokens], task.marks()
    assert (odds.argmax(-1) == targets).double().mean().item() == pytest.approx(marks.ceiling, abs=0.01)
    assert -odds.gather(-1, targets[..., None]).log().mean().item() == pytest.approx(marks.entropy, abs=0.01)
    learnt = ngram_losses(torch.cat([tokens, targets[:, -1:]], 1), torch.cat([tokens, targets[:, -1:]], 1)[:500], 2,
                         task.vocabulary)  # fmt: skip
    assert learnt.tolist() == pytest.approx([marks.unigram_entropy, marks.entropy], abs=0.02)


@pytest.mark.parametrize("task", [t for t in TASKS if isinstance(t, Dyck)], ids=str)
def test_a_reader_with_a_stack_reaches_the_marks_of_brackets(task):
    gold, kinds = task.annotated(generator(), 20_000), task.kinds
    tokens, targets, pending = (gold[name][:, :-1] for name in ("tokens", "targets", "pending"))
    height = (2 * (tokens < kinds).long() - 1).cumsum(1)
    left = task.length - 1 - torch.arange(task.length - 1)
    opens = torch.where(height == 0, 1.0, 0.5 * ((height < task.depth) & (height < left)))
    odds = (opens / kinds)[..., None].repeat(1, 1, 2 * kinds)
    odds[..., kinds:] = 0
    closer = tokens.gather(1, pending.clamp(min=0)) + kinds
    odds.scatter_(2, closer[..., None], (1 - opens)[..., None])
    marks = task.marks()
    assert (odds.argmax(-1) == targets).double().mean().item() == pytest.approx(marks.ceiling, abs=0.01)
    assert -odds.gather(-1, targets[..., None]).log().mean().item() == pytest.approx(marks.entropy, abs=0.01)


@pytest.mark.parametrize("task", [t for t in TASKS if isinstance(t, Seasonal)], ids=str)
def test_the_mean_of_earlier_seasons_reaches_the_ceiling_of_a_series(task):
    tokens, targets = task.batch(generator(), 4000)
    seen, noise = (tokens + 0.5) * 6 / task.levels - 3, task.noise**2
    forecast = torch.zeros(targets.shape)
    for t in range(task.period - 1, task.length):
        same_phase = seen[:, (t + 1) % task.period : t + 1 : task.period]
        forecast[:, t] = same_phase.sum(1) / (same_phase.shape[1] + noise)
    assert explained(forecast, targets) == pytest.approx(task.marks().ceiling, abs=0.02)


# What is held out


@pytest.mark.parametrize("task", ADDITIONS, ids=str)
def test_sums_that_a_test_asks_are_never_seen_in_training(task):
    def pairs(tokens):
        found = set()
        for row in tokens.tolist():
            plus, equals = row.index(10), row.index(11)
            a, b = (int("".join(map(str, x))) for x in (row[:plus], row[plus + 1 : equals]))
            found.add((min(a, b), max(a, b)))
        return found

    stream, sizes = generator(), range(1, 4)
    seen = set().union(*(pairs(task.of_length(stream, 2000, n, held_out=False)[0]) for n in sizes))
    batches = set().union(*(pairs(task.batch(generator(seed), 100)[0]) for seed in range(10)))
    validated = set().union(*(pairs(task.validation(100, seed)[0]) for seed in range(10)))
    assert not batches & validated
    for n in sizes:
        asked = pairs(task.of_length(stream, 500, n)[0])
        assert len(asked) > 3 and not asked & (seen | batches)
    assert len(seen) > 1000


def digits(number, width):
    return [number // 10**i % 10 for i in range(width)]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_one_pair_in_ten_is_held_out_whatever_its_order_and_its_zeros(n):
    numbers = torch.tensor([digits(x, n) for x in range(10**n)])
    a, b = numbers.repeat_interleave(10**n, 0), numbers.repeat(10**n, 1)
    out = held_out_pairs(a, b)
    assert torch.equal(out, held_out_pairs(b, a))
    assert torch.equal(out, held_out_pairs(torch.cat([a, torch.zeros(len(a), 3, dtype=torch.long)], 1), b))
    assert out.double().mean().item() == pytest.approx(0.1, abs=0.006)
    if n > 1:  # no digit of a number and no digit of the sum tells
        for column in [*a.unbind(1), *add(a, b)[:, :-1].unbind(1)]:
            assert all(0.05 < out[column == digit].double().mean() < 0.16 for digit in range(10))
