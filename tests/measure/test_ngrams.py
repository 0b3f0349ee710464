"""Tables of short contexts against a dictionary that counts, and against what a run can know."""

from collections import Counter, defaultdict
from math import log

import numpy as np
import pytest

from lab.measure.ngrams import NGram, ngram_losses


def text(*shape, vocabulary=5, seed=0):
    """Tokens whose odds depend on the two before them."""
    rng = np.random.default_rng(seed)
    rule = np.random.default_rng(9).dirichlet(np.full(vocabulary, 0.3), size=(vocabulary, vocabulary))
    tokens = rng.integers(vocabulary, size=shape)
    for t in range(2, shape[1]):
        odds = rule[tokens[:, t - 2], tokens[:, t - 1]].cumsum(1)
        tokens[:, t] = (odds < rng.random((shape[0], 1))).sum(1).clip(max=vocabulary - 1)
    return tokens


def counted(read, order):
    """{context: Counter of what followed}, contexts of every length below the order, by going through the windows."""
    followers = defaultdict(Counter)
    for window in read.tolist():
        for t in range(1, len(window)):
            for n in range(min(order - 1, t) + 1):
                followers[tuple(window[t - n : t])][window[t]] += 1
    return followers


def odds(followers, context, token, vocabulary):
    shorter = odds(followers, context[1:], token, vocabulary) if context else 1 / vocabulary
    seen = followers.get(context)
    if not seen:
        return shorter
    return (seen[token] + len(seen) * shorter) / (seen.total() + len(seen))


@pytest.mark.parametrize("order", [1, 2, 3, 4, 6])
def test_losses_are_those_of_a_dictionary(order):
    read, asked = text(30, 9), text(12, 8, seed=1)
    followers, losses = counted(read, order), NGram(read, order, 5).losses(asked)
    assert losses.shape == (order, 12, 7)
    for n in range(order):
        for b, window in enumerate(asked.tolist()):
            for t in range(1, 8):
                p = odds(followers, tuple(window[max(0, t - n) : t]), window[t], 5)
                assert losses[n, b, t - 1] == pytest.approx(-log(p), rel=1e-12)


def test_odds_sum_to_one_and_are_those_of_the_losses():
    tables, contexts = NGram(text(40, 12), 4, 5), text(60, 6, seed=2)
    for width in (1, 2, 3, 5):
        p = tables.distribution(contexts[:, :width])
        assert p.shape == (4, 60, 5) and (p > 0).all()
        np.testing.assert_allclose(p.sum(-1), 1, rtol=1e-12)
        following = p[:, np.arange(60), contexts[:, width]]
        np.testing.assert_allclose(-np.log(following), tables.losses(contexts[:, : width + 1])[..., -1], rtol=1e-12)
    unread = NGram(np.zeros((1, 4), int), 3, 5).distribution(np.array([[4]]))
    assert (unread == unread[0]).all(), "a context that was never read has the odds of the shorter one"


def test_a_longer_context_is_worth_what_the_text_puts_in_it():
    nats = ngram_losses(text(2000, 65), text(200, 65, seed=1), 4, 5)
    rule = np.random.default_rng(9).dirichlet(np.full(5, 0.3), size=(5, 5))
    tokens = text(200, 65, seed=1)
    known = -np.log(rule[tokens[:, :-2], tokens[:, 1:-1], tokens[:, 2:]]).mean()
    assert list(nats.index) == [1, 2, 3, 4] and nats.index.name == "order"
    assert nats[1] > nats[2] + 0.1 and nats[2] > nats[3] + 0.1
    assert nats[3] == pytest.approx(known, abs=0.03) and nats[4] == pytest.approx(nats[3], abs=0.01)


def test_only_what_a_run_read_counts():
    read = text(20, 30)
    assert ngram_losses(read[:, :10], read, 3, 5)[3] > ngram_losses(read, read, 3, 5)[3] + 0.05
    whole, windows = (ngram_losses(x, read, 3, 5) for x in (read.reshape(1, -1), read))
    assert whole[1] != windows[1], "the first token of a window was never asked"


@pytest.mark.parametrize("read, options, message", [
    (np.zeros((2, 3)), {}, "whole numbers .* float64"),
    (np.zeros(5, int), {}, r"\(5,\)"),
    (np.full((2, 9), 7), {"vocabulary": 7}, "7..7 are not all among 0..6"),
    (np.zeros((2, 3), int), {}, "3 tokens are too short for order 4"),
    (np.zeros((2, 1), int), {"order": 1}, "too short"),
    (np.zeros((2, 9), int), {"order": 8}, "below 2.63"),
    (np.zeros((2, 9), int), {"order": 0}, "1 or more"),
])  # fmt: skip
def test_what_cannot_be_counted_is_refused(read, options, message):
    with pytest.raises(ValueError, match=message):
        NGram(read, **options)
