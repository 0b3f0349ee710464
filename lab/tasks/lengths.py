"""Tasks at any length: copying, adding, telling an order, finding a needle.

Each task: vocabulary, shortest, longest, d_out where it is not the vocabulary (None: it is),
of_length(generator, size, n), and batch(generator, size) of one length drawn from shortest..longest.
Both return tokens (b, t) and targets (b, t); -100 marks positions without an answer.
"""

from dataclasses import dataclass

import torch


class AnyLength:
    """A batch is of one length, drawn anew each time."""

    d_out = None

    def __post_init__(self):
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(f"1 <= shortest <= longest is needed, got {self.shortest}, {self.longest}")

    def batch(self, generator, size):
        n = torch.randint(self.shortest, self.longest + 1, (), generator=generator).item()
        return self.of_length(generator, size, n)


def next_token(text, answer_from, end=None):
    """Next-token inputs and targets of texts (b, t + 1), answers from column `answer_from` on.

    Where `end` is a token, what follows the first one of the answer is no answer.
    """
    tokens, targets = text[:, :-1], text[:, 1:].clone()
    targets[:, : answer_from - 1] = -100
    if end is not None:
        after = (targets == end).cumsum(1) - (targets == end).long() > 0
        targets[after] = -100
    return tokens, targets


ORDERS = ("forward", "reversed", "same")


@dataclass(frozen=True)
class Copy(AnyLength):
    """Symbols, a mark, the symbols again, an end. `order`: forward, reversed, or one and the same symbol throughout.

    forward   tokens   c  a  f  =  c  a  f        reversed   c  a  f  =  f  a  c        same   c  c  c  =  c  c  c
              targets  .  .  .  c  a  f  E                   .  .  .  f  a  c  E               .  .  .  c  c  c  E
    """

    symbols: int = 16
    shortest: int = 1
    longest: int = 16
    order: str = "forward"

    def __post_init__(self):
        super().__post_init__()
        if self.order not in ORDERS:
            raise ValueError(f"order {self.order!r} is unknown; choose one of {', '.join(ORDERS)}")

    @property
    def vocabulary(self):
        return self.symbols + 2

    def text_length(self, n):
        """Tokens that a model is given for n symbols."""
        return 2 * n + 1

    def of_length(self, generator, size, n):
        drawn = 1 if self.order == "same" else n
        source = torch.randint(self.symbols, (size, drawn), generator=generator).expand(size, n)
        answer = source.flip(1) if self.order == "reversed" else source
        mark, end = (torch.full((size, 1), self.symbols + i) for i in (0, 1))
        return next_token(torch.cat([source, mark, answer, end], 1), n + 1)


PLUS, EQUALS, END = 10, 11, 12


@dataclass(frozen=True)
class Addition(AnyLength):
    """Two numbers and their sum, digit by digit, up to n digits each.

    plain               7 5 + 9 6 3 = 1 0 3 8 E        natural numbers: one has n digits, the other 1..n
    reversed            7 5 + 9 6 3 = 8 3 0 1 E        the answer starts with the ones, as carries run
    padded              0 7 5 + 9 6 3 = 1 0 3 8 E      zeros in front: digits of one place keep their distances
    """

    shortest: int = 1
    longest: int = 3
    reverse: bool = True
    padded: bool = True
    vocabulary = 13

    def text_length(self, n):
        """Tokens that a model is given for numbers of n digits."""
        return 3 * n + 3

    def of_length(self, generator, size, n):
        widths = [n, n]
        if not self.padded:
            widths[torch.randint(2, (), generator=generator)] = torch.randint(1, n + 1, (), generator=generator).item()
        numbers = [self._number(generator, size, width) for width in widths]  # (b, width), the ones first
        total = add(*numbers)  # (b, n + 1)
        place = torch.arange(n + 2)
        digits = torch.full((size, 1), n + 1)
        if not self.padded:
            digits = ((total != 0) * (place[:-1] + 1)).amax(1, keepdim=True).clamp(min=1)
        at = place.expand(size, -1) if self.reverse else digits - 1 - place
        answer = torch.where(place < digits, total.gather(1, at.clamp(0, n)), END)
        plus, equals = (torch.full((size, 1), token) for token in (PLUS, EQUALS))
        text = torch.cat([numbers[0].flip(1), plus, numbers[1].flip(1), equals, answer], 1)
        return next_token(text, sum(widths) + 2, end=END)

    def _number(self, generator, size, width):
        digits = torch.randint(10, (size, width), generator=generator)
        if not self.padded and width > 1:
            digits[:, -1] = torch.randint(1, 10, (size,), generator=generator)
        return digits


def add(a, b):
    """Sum of two numbers given as digits, the ones first: (b, n) and (b, m) to (b, max(n, m) + 1)."""
    n = max(a.shape[1], b.shape[1])
    columns = torch.zeros(len(a), n + 1, dtype=torch.long)
    columns[:, : a.shape[1]] += a
    columns[:, : b.shape[1]] += b
    for i in range(n):
        columns[:, i + 1] += columns[:, i] // 10
    return columns % 10


@dataclass(frozen=True)
class Order(AnyLength):
    """Which of two marked tokens came first, asked at the end; the others are noise.

    tokens   c  B  a  d  A  c  ?
    targets  .  .  .  .  .  .  1         0: A came first, 1: B did
    """

    symbols: int = 8
    shortest: int = 4
    longest: int = 16

    @property
    def vocabulary(self):
        return self.symbols + 3

    @property
    def d_out(self):
        return 2

    def __post_init__(self):
        super().__post_init__()
        if self.shortest < 2:
            raise ValueError(f"shortest must be at least 2, two tokens are marked; got {self.shortest}")

    def of_length(self, generator, size, n):
        tokens = torch.randint(self.symbols, (size, n + 1), generator=generator)
        tokens[:, -1] = self.symbols + 2
        places = torch.rand(size, n, generator=generator).argsort(1)[:, :2]  # of A, of B
        tokens.scatter_(1, places, torch.tensor([self.symbols, self.symbols + 1]).expand(size, 2))
        return tokens, answer_at_end(tokens, (places[:, 0] > places[:, 1]).long())


@dataclass(frozen=True)
class Needle(AnyLength):
    """One token among n - 1 others carries a value, asked for at the end: found by content, wherever it stands.

    tokens   c  a  5  c  b  ?
    targets  .  .  .  .  .  5         a class 0..values-1
    """

    symbols: int = 16
    values: int = 16
    shortest: int = 4
    longest: int = 32

    @property
    def vocabulary(self):
        return self.symbols + self.values + 1

    @property
    def d_out(self):
        return self.values

    def of_length(self, generator, size, n):
        tokens = torch.randint(self.symbols, (size, n + 1), generator=generator)
        tokens[:, -1] = self.symbols + self.values
        value = torch.randint(self.values, (size,), generator=generator)
        place = torch.randint(n, (size, 1), generator=generator)
        tokens.scatter_(1, place, self.symbols + value[:, None])
        return tokens, answer_at_end(tokens, value)


def answer_at_end(tokens, answer):
    """Targets (b, t) with the answer (b,) at the last position."""
    targets = torch.full_like(tokens, -100)
    targets[:, -1] = answer
    return targets
