"""Texts with known structure: brackets, a Markov chain of known entropy, masked code."""

from dataclasses import dataclass
from functools import cached_property
from math import log

import torch

from lab.tasks.task import Marks, Task


@dataclass(frozen=True)
class Dyck(Task):
    """Next token of balanced brackets of several kinds, nested at most `depth` deep.

    tokens   (  [  ]  (  )  )
    targets  [  ]  (  )  )  .
    partner  5  2  1  4  3  0      index of the other bracket of the pair
    pending  0  1  0  3  0  .      index of the innermost bracket still open, -1 for none

    Openers are 0..kinds-1; a closer is its opener + kinds. Where both are allowed, a coin decides.
    """

    kinds: int = 2
    depth: int = 4
    length: int = 64

    def __post_init__(self):
        if self.length % 2 or self.length < 2:
            raise ValueError(f"length must be even and at least 2, got {self.length}")
        if self.kinds < 1 or self.depth < 1:
            raise ValueError(
                f"kinds and depth must be at least 1, got {self.kinds} and {self.depth}"
            )

    @property
    def vocabulary(self):
        return 2 * self.kinds

    def marks(self):
        """Marks expected over nesting depths: an opener's kind is random, a closer's is known."""
        heights = {0: 1.0}  # share of texts at each height
        right = nats = 0.0
        for t in range(self.length):
            after = {}
            for height, share in heights.items():
                coin = 0 < height < min(self.depth, self.length - t)
                opens = 0.5 if coin else float(height == 0)
                if t:  # the first bracket is not asked for
                    right += share * max(opens / self.kinds, 1 - opens)
                    nats += share * (coin * log(2) + opens * log(self.kinds))
                for step, odds in ((1, opens), (-1, 1 - opens)):
                    after[height + step] = after.get(height + step, 0.0) + share * odds
            heights = {height: share for height, share in after.items() if share}
        answers = self.length - 1
        closers = (answers + 1) / 2 / answers
        apart = -sum(share * log(share) for share in (closers, 1 - closers) if share)
        return Marks(closers / self.kinds, right / answers, apart + log(self.kinds), nats / answers)

    def batch(self, generator, size):
        drawn = self.annotated(generator, size)
        return drawn["tokens"], drawn["targets"]

    def annotated(self, generator, size):
        """`batch` with gold labels: {tokens, targets, partner, pending: (b, t)}."""
        kind = torch.randint(self.kinds, (size, self.length), generator=generator)
        heads = torch.rand(size, self.length, generator=generator) < 0.5
        tokens = torch.empty_like(kind)
        partner = torch.empty_like(kind)
        pending = torch.full_like(kind, -1)
        rows = torch.arange(size)
        height = torch.zeros(size, dtype=torch.long)
        # positions of the open brackets, the innermost at [height]
        stack = torch.full((size, self.depth + 1), -1)
        for t in range(self.length):
            opens = (height == 0) | (
                heads[:, t] & (height < self.depth) & (height < self.length - t)
            )
            opener = stack[rows, height]
            tokens[:, t] = torch.where(
                opens, kind[:, t], tokens[rows, opener.clamp(min=0)] + self.kinds
            )
            closing = rows[~opens], opener[~opens]
            partner[closing] = t
            partner[closing[0], t] = closing[1]
            height = height + torch.where(opens, 1, -1)
            stack[rows[opens], height[opens]] = t
            pending[:, t] = stack[rows, height]
        targets = torch.cat([tokens[:, 1:], torch.full((size, 1), -100)], 1)
        return {"tokens": tokens, "targets": targets, "partner": partner, "pending": pending}


@dataclass(frozen=True)
class Markov(Task):
    """Next token of a first-order Markov chain, whose transitions are drawn from `seed`.

    tokens   c  a  c  b  c          row i of `transition` holds the odds after token i
    targets  a  c  b  c  a
    """

    vocabulary: int = 16
    length: int = 64
    contrast: float = 1.5  # standard deviation of the logits; 0 makes all tokens equally likely
    seed: int = 0

    @cached_property
    def transition(self):
        """Probability of each next token (column) after each token (row).

        Shape (vocabulary, vocabulary), float64.
        """
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.vocabulary, self.vocabulary)
        return (
            self.contrast * torch.randn(shape, generator=generator, dtype=torch.float64)
        ).softmax(-1)

    @cached_property
    def stationary(self):
        """Stationary distribution p = p T, float64 (vocabulary,)."""
        equations = (self.transition.T - torch.eye(self.vocabulary, dtype=torch.float64)).clone()
        equations[-1] = 1  # one balance equation follows from the others; the shares sum to 1
        return torch.linalg.solve(equations, torch.eye(self.vocabulary, dtype=torch.float64)[-1])

    def marks(self):
        likeliest = (self.stationary * self.transition.amax(1)).sum().item()
        return Marks(
            self.stationary.max().item(), likeliest, self.unigram_entropy, self.entropy_rate
        )

    @property
    def entropy_rate(self):
        """Lowest possible loss in nats per token: row entropies weighted by `stationary`."""
        return (
            -(self.stationary[:, None] * torch.special.xlogy(self.transition, self.transition))
            .sum()
            .item()
        )

    @property
    def unigram_entropy(self):
        """Entropy of a token without context, in nats."""
        return -torch.special.xlogy(self.stationary, self.stationary).sum().item()

    def batch(self, generator, size):
        odds = torch.rand(self.length + 1, size, generator=generator, dtype=torch.float64)
        last = self.vocabulary - 1  # rounding may leave the cumulative sum a little below 1
        rows = self.transition.cumsum(1)
        token = torch.searchsorted(self.stationary.cumsum(0), odds[0]).clamp(max=last)
        text = [token]
        for draw in odds[1:]:
            token = (rows[token] < draw[:, None]).sum(1).clamp(max=last)
            text.append(token)
        text = torch.stack(text, 1)
        return text[:, :-1], text[:, 1:]
