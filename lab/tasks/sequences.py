"""Synthetic sequences with known answers: lookup, repetition, sorting, counting."""

from dataclasses import dataclass

import torch

from lab.tasks.task import Task, certain, uniform


@dataclass(frozen=True)
class Lookup(Task):
    """At every position, the tokens at several fixed offsets back, one output per offset.

    offsets 1 and 3     tokens   c  a  f  b  e
                        output 0 .  c  a  f  b      the token 1 back
                        output 1 .  .  .  c  a      the token 3 back
    """

    offsets: tuple = (1, 3, 6, 10)
    vocabulary: int = 16
    length: int = 32

    @property
    def outputs(self):
        return len(self.offsets)

    @property
    def d_out(self):
        """Width of an LM head with one score per class and output."""
        return self.outputs * self.vocabulary

    def marks(self):
        return uniform(self.vocabulary)

    def batch(self, generator, size):
        tokens = torch.randint(self.vocabulary, (size, self.length), generator=generator)
        targets = torch.full((size, self.length, self.outputs), -100)
        for i, offset in enumerate(self.offsets):
            targets[:, offset:, i] = tokens[:, :-offset]
        return tokens, targets


@dataclass(frozen=True)
class Repeats(Task):
    """Next token of a repeated random block, with a period drawn per sequence from low..high.

    tokens   c  a  f  c  a  f  c  a      period 3; a target where the input token is a repetition
    targets  .  .  .  a  f  c  a  f
    source   .  .  .  1  2  3  4  5      position of the answer: one after the earlier occurrence
    """

    low: int = 8
    high: int = 24
    vocabulary: int = 32
    length: int = 64

    def __post_init__(self):
        if not 1 <= self.low <= self.high < self.length:
            raise ValueError(
                f"1 <= low <= high < length must hold, got {self.low}, {self.high}, {self.length}"
            )

    def marks(self):
        """The ceiling is a bound: the period is unknown, and blocks repeat tokens by chance."""
        return uniform(self.vocabulary)

    def batch(self, generator, size):
        drawn = self.annotated(generator, size)
        return drawn["tokens"], drawn["targets"]

    def annotated(self, generator, size):
        """The batch with gold labels: {tokens, targets, source: (b, t), period: (b,)}.

        source is -1 where there is no target.
        """
        period = torch.randint(self.low, self.high + 1, (size, 1), generator=generator)
        block = torch.randint(self.vocabulary, (size, self.high), generator=generator)
        t = torch.arange(self.length + 1)
        text = block.gather(1, t % period)  # (b, t + 1)
        repeated = t[:-1] >= period
        return {
            "tokens": text[:, :-1],
            "targets": text[:, 1:].where(repeated, -100),
            "source": (t[:-1] - period + 1).where(repeated, -1),
            "period": period[:, 0],
        }


@dataclass(frozen=True)
class Blocks(Task):
    """Next token of a block of distinct random tokens, repeated `repeats` times. Olsson 2022.

    tokens   c  a  f  c  a  f        period 3, 2 repeats
    targets  .  .  .  a  f  c        from the second block on

    A token is unique in its block, so its successor is certain.
    """

    vocabulary: int
    period: int = 25
    repeats: int = 4

    def __post_init__(self):
        if not 1 <= self.period <= self.vocabulary or self.repeats < 2:
            raise ValueError(
                f"1 <= period <= vocabulary and repeats >= 2 must hold, got {self.period}, "
                f"{self.vocabulary}, "
                f"{self.repeats}"
            )

    @property
    def length(self):
        return self.period * self.repeats

    def marks(self):
        return uniform(self.vocabulary)

    def batch(self, generator, size):
        block = torch.rand(size, self.vocabulary, generator=generator).argsort(1)[:, : self.period]
        tokens = block.repeat(1, self.repeats)
        return tokens, tokens.roll(-1, 1).where(torch.arange(self.length) >= self.period, -100)


@dataclass(frozen=True)
class Sort(Task):
    """Digits, then the same digits in ascending order; answers on the sorted part only.

    tokens   2  0  1  0  0  0  1         digits 2 0 1 0
    targets  .  .  .  0  0  1  2
    """

    values: int = 3
    digits: int = 6

    @property
    def vocabulary(self):
        return self.values

    @property
    def length(self):
        return 2 * self.digits - 1

    def marks(self):
        return uniform(self.values)

    def batch(self, generator, size):
        digits = torch.randint(self.values, (size, self.digits), generator=generator)
        text = torch.cat([digits, digits.sort(1).values], 1)
        targets = text[:, 1:].clone()
        targets[:, : self.digits - 1] = -100
        return text[:, :-1], targets


@dataclass(frozen=True)
class Count(Task):
    """How often the symbol of the final query occurred; counts 0..items are equally frequent.

    tokens   b  a  c  a  a  b  a?        a query is a token of its own, symbols + the symbol
    targets  .  .  .  .  .  .  3         a class 0..items
    """

    symbols: int = 8
    items: int = 15

    def __post_init__(self):
        if self.symbols < 2:
            raise ValueError(f"symbols must be at least 2, got {self.symbols}")

    @property
    def vocabulary(self):
        return 2 * self.symbols

    @property
    def d_out(self):
        return self.items + 1

    @property
    def length(self):
        return self.items + 1

    def marks(self):
        return uniform(self.items + 1)

    def batch(self, generator, size):
        marked = torch.randint(self.symbols, (size, 1), generator=generator)
        count = torch.randint(self.items + 1, (size, 1), generator=generator)
        others = marked + torch.randint(1, self.symbols, (size, self.items), generator=generator)
        # a random order of 0..items-1
        rank = torch.rand(size, self.items, generator=generator).argsort(1)
        items = marked.where(rank < count, others % self.symbols)
        tokens = torch.cat([items, self.symbols + marked], 1)
        targets = torch.full_like(tokens, -100)
        targets[:, -1:] = count
        return tokens, targets


@dataclass(frozen=True)
class Maximum(Task):
    """The largest of the numbers, as the target at the last one.

    Numbers stay below a bound drawn per sequence, which makes small answers frequent.

    tokens   4  9  0  7
    targets  .  .  .  9
    """

    vocabulary: int = 32  # numbers 0..vocabulary-1
    length: int = 16

    def marks(self):
        ceilings = torch.arange(1, self.vocabulary + 1.0).double()
        below = (torch.arange(self.vocabulary + 1.0)[:, None] / ceilings).clamp(max=1)
        below = below**self.length  # probability that all numbers are smaller
        return certain(below.mean(1).diff().tolist())

    def batch(self, generator, size):
        ceiling = torch.randint(1, self.vocabulary + 1, (size, 1), generator=generator)
        tokens = (torch.rand(size, self.length, generator=generator) * ceiling).long()
        targets = torch.full_like(tokens, -100)
        targets[:, -1] = tokens.amax(1)
        return tokens, targets


@dataclass(frozen=True)
class Reversal(Task):
    """For an encoder-decoder: the source in reverse order. Inputs are (source, target_in).

    source     c  a  f  b
    target_in  S  b  f  a        S, the last id of the vocabulary, starts the answer
    targets    b  f  a  c
    """

    symbols: int = 16
    length: int = 12

    @property
    def vocabulary(self):
        return self.symbols + 1

    def marks(self):
        return uniform(self.symbols)

    def batch(self, generator, size):
        source = torch.randint(self.symbols, (size, self.length), generator=generator)
        targets = source.flip(1)
        target_in = torch.cat([torch.full((size, 1), self.symbols), targets[:, :-1]], 1)
        return (source, target_in), targets
