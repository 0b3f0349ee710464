"""Synthetic tasks, compared with answers computed by brute force."""

import math

import pytest
import torch
from helpers import generator

from lab.models import ModelConfig, Transformer
from lab.tasks.sequences import Facts, Lookup, Markov, Pairs, Reversal, recalled
from lab.training import TrainConfig, train


@pytest.mark.parametrize("offsets", [(1,), (1, 3), (4, 2, 7), (3, 40)])
def test_lookup_targets_are_tokens_at_the_offsets(offsets):
    task = Lookup(offsets=offsets, vocabulary=7, length=12)
    tokens, targets = task.batch(generator(), 20)
    assert tokens.shape == (20, 12) and targets.shape == (20, 12, len(offsets))
    assert task.d_out == 7 * len(offsets)
    for b in range(20):
        for t in range(12):
            for i, offset in enumerate(offsets):
                assert targets[b, t, i] == (tokens[b, t - offset] if t >= offset else -100)


def test_pairs_targets_are_the_values_of_the_keys():
    task = Pairs(pairs=5, keys=7, values=3)
    tokens, targets = task.batch(generator(), 200)
    assert tokens.shape == targets.shape == (200, 10) and tokens.max() < task.vocabulary
    for row, target in zip(tokens.tolist(), targets.tolist(), strict=True):
        memory = dict(divmod(token, 3) for token in row[:5])
        assert len(memory) == 5 and target[:5] == [-100] * 5
        assert sorted(key - 21 for key in row[5:]) == sorted(memory)
        assert target[5:] == [memory[key - 21] for key in row[5:]]
    with pytest.raises(ValueError, match="pairs must be 1..7"):
        Pairs(pairs=8, keys=7)


def test_facts_have_one_answer_in_every_wording():
    task = Facts(subjects=5, relations=3, objects=4, wordings=2)
    x, y = task.batch(torch.Generator().manual_seed(0), 200)
    table = task.table()
    assert table.shape == (2, 15, 4)
    assert task.bits == 30
    assert int(x.max()) == task.vocabulary - 1
    assert torch.equal(table[0, :, 1:3], table[1, :, 1:3].flip(1))  # the other wording swaps subject and relation
    answers_of = {}
    for tokens, answer in zip(x.tolist(), y[:, -1].tolist(), strict=True):
        answers_of.setdefault(tuple(sorted(tokens[1:3])), set()).add(answer)
    assert len(answers_of) == 15
    assert all(len(answers) == 1 for answers in answers_of.values())
    assert (y[:, :-1] == -100).all()
    assert not torch.equal(task.answers, Facts(subjects=5, relations=3, objects=4, table_seed=1).answers)


def test_small_model_memorizes_a_small_fact_table():
    task = Facts(subjects=6, relations=2, objects=8)
    model = Transformer(ModelConfig(vocab_size=task.vocabulary, block_size=4, d_model=32, n_layers=1, ffn="relu"))
    assert recalled(model, task).double().mean() < 0.6
    train(model, task.batch, TrainConfig(steps=150, batch=32, learning_rate=5e-3, warmup=10))
    assert recalled(model, task).all()


@pytest.mark.parametrize("task", [Markov(), Markov(vocabulary=3, length=9, seed=4), Markov(contrast=0.0)], ids=str)
def test_markov_entropies_match_samples(task):
    tokens, targets = task.batch(generator(), 20_000)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert torch.allclose(task.stationary @ task.transition, task.stationary, atol=1e-12)
    assert task.stationary.sum().item() == pytest.approx(1) and (task.transition.sum(1) - 1).abs().max() < 1e-12
    v = task.vocabulary
    pairs = torch.bincount((tokens * v + targets).flatten(), minlength=v * v).view(v, v).double()
    assert (pairs / pairs.sum(1, keepdim=True) - task.transition).abs().max() < 0.02
    for t in (0, task.length - 1):  # the chain starts in its stationary distribution
        shares = torch.bincount(tokens[:, t], minlength=v) / len(tokens)
        assert (shares - task.stationary).abs().max() < 0.02
    joint, single = pairs / pairs.sum(), pairs.sum(1) / pairs.sum()
    entropy_of_pairs = -torch.special.xlogy(joint, joint).sum() - -torch.special.xlogy(single, single).sum()
    assert task.entropy_rate == pytest.approx(entropy_of_pairs.item(), abs=5e-3)
    nll = -task.transition[tokens, targets].log().mean().item()
    assert task.entropy_rate == pytest.approx(nll, abs=0.01)
    assert task.entropy_rate <= task.unigram_entropy + 1e-12 <= math.log(v) + 2e-12
    assert task.unigram_entropy == pytest.approx(-torch.special.xlogy(single, single).sum().item(), abs=5e-3)


def test_markov_seed_determines_the_chain():
    one, same, other = Markov(seed=1), Markov(seed=1, length=9), Markov(seed=2)
    assert torch.equal(one.transition, same.transition) and not torch.equal(one.transition, other.transition)


def test_reversal_decoder_inputs_are_shifted_targets():
    task = Reversal(symbols=5, length=4)
    (source, target_in), targets = task.batch(generator(), 100)
    assert torch.equal(targets, source.flip(1)) and torch.equal(target_in[:, 1:], targets[:, :-1])
    assert (target_in[:, 0] == task.symbols).all() and source.max() < task.symbols
