"""A Markov chain: the quickest task that tells a model which has learnt something from one that knows frequencies."""

from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class Chain:
    """Next symbol of a chain whose next symbol depends on the last one alone, by one fixed table.

    tokens   c a f a    targets   a f a b    both (b, length). Losses have two exact marks: unigram_entropy, of who
    knows frequencies alone, and entropy, of who knows the table.
    """

    symbols: int = 16
    length: int = 32
    sharpness: float = 2.5  # standard deviation of the logits of the table

    @property
    def vocabulary(self):
        return self.symbols

    @cached_property
    def transitions(self):
        """(symbols, symbols), rows sum to 1."""
        logits = torch.randn(self.symbols, self.symbols, generator=torch.Generator().manual_seed(0))
        return (self.sharpness * logits.double()).softmax(-1)

    @cached_property
    def stationary(self):
        """Share of every symbol in the long run, which is also that of the first one."""
        return torch.linalg.matrix_power(self.transitions, 4096)[0]

    @property
    def unigram_entropy(self):
        """Nats a symbol of the stationary distribution."""
        return -(self.stationary * self.stationary.log()).sum().item()

    @property
    def entropy(self):
        """Nats a symbol given the one before."""
        p = self.transitions
        return -(self.stationary[:, None] * p * p.log()).sum().item()

    def batch(self, generator, size):
        symbols = [torch.multinomial(self.stationary, size, replacement=True, generator=generator)]
        for _ in range(self.length):
            symbols.append(torch.multinomial(self.transitions[symbols[-1]], 1, generator=generator)[:, 0])
        chain = torch.stack(symbols, 1)
        return chain[:, :-1], chain[:, 1:]
