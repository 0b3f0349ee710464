"""N-gram losses, compared with dictionary counts and with the entropy of the source."""

from collections import Counter, defaultdict
from math import log

import numpy as np
import pytest

from lab.measure.ngrams import ngram_losses


def text(*shape, vocabulary=5, seed=0):
    """Tokens of a second-order Markov chain."""
    rng = np.random.default_rng(seed)
    rule = np.random.default_rng(9).dirichlet(np.full(vocabulary, 0.3), size=(vocabulary, vocabulary))
    tokens = rng.integers(vocabulary, size=shape)
    for t in range(2, shape[1]):
        odds = rule[tokens[:, t - 2], tokens[:, t - 1]].cumsum(1)
        tokens[:, t] = (odds < rng.random((shape[0], 1))).sum(1).clip(max=vocabulary - 1)
    return tokens


def counted(read, order):
    """{context: Counter of next tokens} for contexts of every length below the order."""
    followers = defaultdict(Counter)
    for window in read.tolist():
        for t in range(1, len(window)):
            for n in range(min(order - 1, t) + 1):
                followers[tuple(window[t - n : t])][window[t]] += 1
    return followers


def odds(followers, context, token, vocabulary):
    backoff = odds(followers, context[1:], token, vocabulary) if context else 1 / vocabulary
    counts = followers.get(context)
    if not counts:
        return backoff
    return (counts[token] + len(counts) * backoff) / (counts.total() + len(counts))


@pytest.mark.parametrize("order", [1, 2, 3, 4, 6])
def test_ngram_losses_equal_dictionary_counts(order):
    training, evaluated = text(30, 9), text(12, 8, seed=1)
    followers, losses = counted(training, order), ngram_losses(training, evaluated, order, 5)
    for n in range(order):
        nats = [
            -log(odds(followers, tuple(window[max(0, t - n) : t]), window[t], 5))
            for window in evaluated.tolist()
            for t in range(1, 8)
        ]
        assert losses[n + 1] == pytest.approx(np.mean(nats), rel=1e-12)


def test_trigram_loss_reaches_the_entropy_of_a_second_order_chain():
    nats = ngram_losses(text(2000, 65), text(200, 65, seed=1), 4, 5)
    rule = np.random.default_rng(9).dirichlet(np.full(5, 0.3), size=(5, 5))
    tokens = text(200, 65, seed=1)
    source_loss = -np.log(rule[tokens[:, :-2], tokens[:, 1:-1], tokens[:, 2:]]).mean()
    assert list(nats.index) == [1, 2, 3, 4] and nats.index.name == "order"
    assert nats[1] > nats[2] + 0.1 and nats[2] > nats[3] + 0.1
    assert nats[3] == pytest.approx(source_loss, abs=0.03) and nats[4] == pytest.approx(nats[3], abs=0.01)


def test_only_training_windows_are_counted():
    read = text(20, 30)
    assert ngram_losses(read[:, :10], read, 3, 5)[3] > ngram_losses(read, read, 3, 5)[3] + 0.05
    one_window, windows = (ngram_losses(x, read, 3, 5) for x in (read.reshape(1, -1), read))
    assert one_window[1] != windows[1], "the first token of a window must not be a target"
