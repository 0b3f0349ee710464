"""Variable-length tasks, compared with answers recomputed from the tokens; measures by length, on known cases."""

import math

import numpy as np
import pytest
import torch
from helpers import generator

from lab import files, parameters
from lab.measure.lengths import (
    accuracy_by_length,
    by_bucket,
    order_in_similarity,
    similarity,
    window_losses,
)
from lab.models.positions import exact_sinusoids
from lab.tasks.lengths import END, EQUALS, PLUS, Addition, Copy, add

FORMATS = [Addition(reverse=reverse, padded=padded) for reverse in (True, False) for padded in (True, False)]
TASKS = [*(Copy(order=order) for order in ("forward", "reversed", "same")), *FORMATS]


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_every_length_is_drawn(task):
    stream = generator()
    widths = {task.batch(stream, 4)[0].shape[1] for _ in range(200)}
    possible = {task.of_length(generator(), 1, n)[0].shape[1] for n in range(task.shortest, task.longest + 1)}
    assert possible <= widths


@pytest.mark.parametrize("n", [4, 9, 40])
@pytest.mark.parametrize("task", TASKS, ids=str)
def test_tokens_and_targets_are_in_the_vocabulary_at_any_length(task, n):
    tokens, targets = task.of_length(generator(), 64, n)
    assert tokens.shape == targets.shape and tokens.dtype == targets.dtype == torch.int64
    assert tokens.min() >= 0 and tokens.max() < task.vocabulary
    answers = targets[targets != -100]
    assert answers.min() >= 0 and answers.max() < (task.d_out or task.vocabulary) and len(answers.unique()) > 1
    if hasattr(task, "text_length"):
        assert tokens.shape[1] <= task.text_length(n)


@pytest.mark.parametrize("n", [1, 2, 7, 50])
@pytest.mark.parametrize("order", ["forward", "reversed", "same"])
def test_copy_targets_follow_their_order(order, n):
    task = Copy(order=order, symbols=5)
    tokens, targets = task.of_length(generator(), 20, n)
    for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
        source, (mark, *shown) = row[:n], row[n:]
        answer = source[::-1] if order == "reversed" else source
        assert mark == 5 and shown == answer and target == [-100] * n + answer + [6]
        assert order != "same" or len(set(source)) == 1


def number(digits):
    return int("".join(map(str, digits)))


@pytest.mark.parametrize("n", [1, 2, 3, 5, 30])
@pytest.mark.parametrize("task", FORMATS, ids=str)
def test_addition_targets_are_correct_for_any_digit_count(task, n):
    tokens, targets = task.of_length(generator(n), 40, n)
    lengths = set()
    for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
        plus, equals = row.index(PLUS), row.index(EQUALS)
        a, b = row[:plus], row[plus + 1 : equals]
        answer = target[equals : target.index(END)]
        assert target[:equals] == [-100] * equals and row[equals + 1 : equals + 1 + len(answer)] == answer
        assert set(target[equals + len(answer) + 1 :]) <= {-100}, "a target follows the end token"
        lengths.add(len(answer))
        total = number(answer[::-1] if task.reverse else answer)
        assert total == number(a) + number(b)
        if task.padded:
            assert len(a) == len(b) == n and len(answer) == n + 1
        else:
            assert max(len(a), len(b)) == n and len(answer) == len(str(total))
            assert all(len(x) == 1 or x[0] > 0 for x in (a, b))
    assert lengths == {n + 1} if task.padded else max(lengths) <= n + 1


def test_validation_covers_every_digit_arrangement():
    """A single draw has only one arrangement, which would bias validation."""
    tokens, targets = Addition(shortest=3, longest=3, padded=False).validation(200)
    signs = {tuple((row == sign).nonzero()[0, 0].item() for sign in (PLUS, EQUALS)) for row in tokens}
    assert signs == {(1, 5), (2, 6), (3, 5), (3, 6), (3, 7)} and tokens.shape == targets.shape


def test_carry_propagates_through_all_digits():
    nines, one = torch.full((1, 25), 9), torch.ones(1, 1, dtype=torch.long)
    assert add(nines, one).tolist() == [[0] * 25 + [1]] == add(one, nines).tolist()


@pytest.mark.parametrize("wrong, message", [
    (lambda: Copy(order="sideways"), "sideways.*forward, reversed, same"),
    (lambda: Copy(shortest=5, longest=4), "got 5, 4"),
    (lambda: Addition(shortest=0), "got 0, 3"),
])  # fmt: skip
def test_invalid_task_options_raise(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


# Measures


def oracle(tokens):
    """A predictor that solves forward copying at any length."""
    n = tokens.shape[1] // 2
    answer = torch.cat([tokens, torch.full((len(tokens), 1), 17)], 1)[:, 1:].clone()
    answer[:, n:-1], answer[:, -1] = tokens[:, :n], 17
    return torch.nn.functional.one_hot(answer, 18) * 50.0


def oracle_wrong_at_the_end(tokens):
    logits = oracle(tokens)
    logits[:, -1] = logits[:, -1].flip(-1)
    return logits


def test_accuracy_by_length_per_token_and_exact_match():
    task, lengths = Copy(), [1, 4, 19]
    perfect = accuracy_by_length(oracle, task.of_length, lengths, size=32)
    assert (perfect.per_token == 1).all() and (perfect.exact == 1).all() and (perfect.loss < 1e-6).all()
    flawed = accuracy_by_length(oracle_wrong_at_the_end, task.of_length, lengths, size=32)
    assert (flawed.exact == 0).all() and flawed.per_token.tolist() == [n / (n + 1) for n in lengths]
    assert flawed.loss.tolist() == pytest.approx([50 / (n + 1) for n in lengths])
    again = accuracy_by_length(oracle_wrong_at_the_end, task.of_length, lengths[1:], size=32)
    assert again.loss.tolist() == flawed.loss.tolist()[1:], "samples of a length depend on the other lengths"


def counting(tokens):
    """A model whose loss depends only on the position in the window."""
    position = torch.arange(1.0, tokens.shape[1] + 1)
    logits = torch.zeros(*tokens.shape, 2)
    logits[..., 1] = position
    return logits


@pytest.mark.parametrize("length, stride", [(4, 4), (4, 1), (4, 2), (8, 3), (1, 1)])
def test_window_losses_score_each_target_once_at_its_position(length, stride):
    text = torch.zeros(40, dtype=torch.long)
    losses = window_losses(counting, text, length, stride)
    places = torch.arange(length - stride + 1, length + 1.0)
    assert losses.shape == (-(-(40 - (length - stride + 1)) // stride), stride)
    scored = losses.isnan().logical_not()
    torch.testing.assert_close(losses[scored], (1 + places.exp()).log().expand_as(losses)[scored])


@pytest.mark.parametrize("length, stride, n", [(4, 4, 10), (4, 3, 11), (8, 5, 40), (3, 2, 6)])
def test_last_window_scores_the_remaining_targets(length, stride, n):
    text = torch.arange(n)
    losses = window_losses(lambda x: torch.zeros(*x.shape, n), text, length, stride)
    first_target = length - stride + 1
    assert (~losses.isnan()).sum() == n - first_target
    for target in range(first_target, n):
        target_losses = window_losses(
            lambda x, at=target: torch.eye(n)[at].expand(*x.shape, n) * 9, text, length, stride
        )
        assert (target_losses < 1).sum() == 1, "a target is not scored exactly once"
    position_losses = window_losses(counting, torch.zeros(n, dtype=torch.long), length, stride)
    rows, columns = (~position_losses.isnan()).nonzero().T
    torch.testing.assert_close(position_losses[rows, columns], (1 + (columns + first_target).exp()).log())
    assert by_bucket(losses, [0, 1]).targets.sum() == n - first_target
    assert not by_bucket(losses, [0, 1]).loss.isna().any()


def test_nan_logits_give_nan_accuracy():
    def nan_model(tokens):
        return torch.full((*tokens.shape, 18), torch.nan)

    (row,) = accuracy_by_length(nan_model, Copy().of_length, [3], size=4).to_dict("records")
    assert all(math.isnan(row[name]) for name in ("per_token", "exact", "loss"))


def test_sequences_without_targets_raise():
    with pytest.raises(ValueError, match="length 3 have no answer"):
        accuracy_by_length(oracle, lambda g, size, n: (torch.zeros(2, n).long(), torch.full((2, n), -100)), [3])


def successor(tokens):
    """A predictor that is certain of the last token plus one, modulo 64."""
    return torch.nn.functional.one_hot((tokens + 1) % 64, 64) * 30.0


def test_window_losses_begin_at_start():
    text = torch.arange(64)
    assert window_losses(successor, text, 8, 2, start=8).max() < 1e-6, "targets are misaligned with their inputs"
    for length, stride in ((8, 8), (8, 1), (16, 4)):
        losses = window_losses(lambda tokens: torch.zeros(*tokens.shape, 64) + 30 * (torch.arange(64) == 20),
                               text[:60], length, stride, start=20)  # fmt: skip
        assert losses.flatten().argmin() == 0 and losses.shape[0] == (60 - 20) // stride
    batched = window_losses(successor, text, 8, 2, start=8, batch_tokens=8)
    assert torch.equal(batched, window_losses(successor, text, 8, 2, start=8))


@pytest.mark.parametrize("arguments, message", [
    ((4, 5), "5, 4"), ((4, 0), "0, 4"), ((64, 64), "the text has 40 tokens"), ((4, 1, 2), "start >= 4"),
])  # fmt: skip
def test_invalid_windows_raise(arguments, message):
    length, stride, *start = arguments
    with pytest.raises(ValueError, match=message):
        window_losses(counting, torch.zeros(40, dtype=torch.long), length, stride, start=start[0] if start else None)


def test_by_bucket_averages_positions():
    losses = torch.arange(6.0).expand(3, 6)
    table = by_bucket(losses, [0, 1, 4])
    assert table.values.tolist() == [[0, 0, 0, 3], [1, 3, 2, 9], [4, 5, 4.5, 6]]
    for edges in ([0, 0], [1, 0], [0, 6], [-1, 2]):
        with pytest.raises(ValueError, match="edges"):
            by_bucket(losses, edges)


def test_order_in_similarity_separates_ordered_from_shuffled_codes():
    circle = np.exp(1j * np.pi * np.arange(20) / 20)
    half_turn = similarity(np.stack([circle.real, circle.imag], 1))
    np.testing.assert_allclose(np.diag(half_turn), 1)
    assert order_in_similarity(half_turn) > 0.9
    codes = exact_sinusoids(32, 64)
    assert order_in_similarity(similarity(codes)) > 0.5
    shuffled = codes[np.random.default_rng(0).permutation(32)]
    assert abs(order_in_similarity(similarity(shuffled))) < 0.2
    line = np.stack([np.arange(20), np.ones(20)], 1)
    assert similarity(line).min() == pytest.approx(-1)


# Parameters of the notebooks


@pytest.mark.parametrize("exercise, values, message", [
    ("1.8", {"lengths": [64, 128]}, "lengths: 512 is missing, which is judged"),
    ("1.7", {"mark": 1.5}, "mark.*1.5"),
])  # fmt: skip
def test_invalid_lesson_parameters_are_refused(exercise, values, message):
    with pytest.raises(parameters.Refused, match=message):
        parameters.validate(files.notebook_of(exercise), ("file", values))
