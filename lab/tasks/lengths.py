"""Tasks with sequences of variable length: copying and addition."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from lab.tasks.task import Task


class AnyLength(Task):
    """Base class of tasks that draw one length n per batch from shortest..longest.

    The length is a number of items, such as symbols or digits, not of tokens. Validation contains
    all lengths, if its size is at least their number.
    Subclasses define of_length(generator, size, n), which returns inputs and targets (size, t) for
    n items, with t at most text_length(n); n may exceed `longest`. Raises ValueError unless
    1 <= shortest <= longest.
    """

    def __post_init__(self):
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(
                f"1 <= shortest <= longest must hold, got {self.shortest}, {self.longest}"
            )

    @property
    def length(self):
        return self.text_length(self.longest)

    def text_length(self, n):
        """Number of input tokens at length n; by default n items and one question token."""
        return n + 1

    def drawn_length(self, generator):
        return torch.randint(self.shortest, self.longest + 1, (), generator=generator).item()

    def batch(self, generator, size):
        return self.of_length(generator, size, self.drawn_length(generator))

    def parts(self, generator, size, n):
        """List of batches of length n with `size` sequences in total, to be concatenated."""
        return [self.of_length(generator, size, n)]

    def validation(self, size, seed=0):
        """Inputs and targets (size, t) of equally many sequences of each length, shortest first.

        Shorter sequences are padded at the end with their last token and with targets of -100; this
        does not affect causal models.
        """
        generator = torch.Generator().manual_seed(10**6 + seed)
        lengths = self.longest - self.shortest + 1
        counts = torch.bincount(torch.arange(size) * lengths // size, minlength=lengths).tolist()
        parts = []
        for n, count in enumerate(counts, start=self.shortest):
            if count:
                parts += self.parts(generator, count, n)
        width = max(tokens.shape[1] for tokens, _ in parts)
        tokens = [torch.cat([x, x[:, -1:].expand(-1, width - x.shape[1])], 1) for x, _ in parts]
        targets = [F.pad(x, (0, width - x.shape[1]), value=-100) for _, x in parts]
        return torch.cat(tokens), torch.cat(targets)


def next_token(text, answer_from, end=None):
    """Split texts (b, t + 1) into next-token inputs and targets, (b, t) each.

    Targets before column `answer_from` of the text are -100. If `end` is a token, targets after its
    first occurrence in the answer are -100 too.
    """
    tokens = text[:, :-1]
    targets = text[:, 1:].clone()
    targets[:, : answer_from - 1] = -100
    if end is not None:
        after = (targets == end).cumsum(1) - (targets == end).long() > 0
        targets[after] = -100
    return tokens, targets


ORDERS = ("forward", "reversed", "same")


@dataclass(frozen=True)
class Copy(AnyLength):
    """Copy a sequence of symbols after a separator, then output an end token.

    `order` is forward, reversed, or same (all symbols are equal). Raises ValueError for others.

    forward    tokens   c  a  f  =  c  a  f
               targets  .  .  .  c  a  f  E
    reversed   tokens   c  a  f  =  f  a  c
               targets  .  .  .  f  a  c  E
    same       tokens   c  c  c  =  c  c  c
               targets  .  .  .  c  c  c  E
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
        """Number of input tokens for n symbols."""
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
    """Add two numbers of up to n digits, with one token per digit.

    plain      7 5 + 9 6 3 = 1 0 3 8 E        one number has n digits, the other 1..n
    reversed   7 5 + 9 6 3 = 8 3 0 1 E        ones first: the order in which carries propagate
    padded     0 7 5 + 9 6 3 = 1 0 3 8 E      both have n digits
    targets    . . . . . . . 1 0 3 8 E        (padded, not reversed)

    If padded, digits of equal place value are at a fixed distance.

    About a tenth of all pairs of numbers is held out of training (`held_out_pairs`): `batch` draws
    only the other pairs; `of_length` and `validation` draw only held-out pairs.
    """

    shortest: int = 1
    longest: int = 3
    reverse: bool = True
    padded: bool = True
    vocabulary = 13

    def text_length(self, n):
        """Number of input tokens for numbers of n digits."""
        return 3 * n + 3

    def batch(self, generator, size):
        return self.of_length(generator, size, self.drawn_length(generator), held_out=False)

    def of_length(self, generator, size, n, *, held_out=True):
        """Inputs and targets for held-out pairs or, with held_out=False, for training pairs."""
        widths = [n, n]
        if not self.padded:
            # draw the width first, then which operand has it: the order affects all later draws
            width = torch.randint(1, n + 1, (), generator=generator).item()
            widths[torch.randint(2, (), generator=generator)] = width
        # digits (b, width), ones first
        numbers = [self._number(generator, size, width) for width in widths]
        while len(other := (held_out_pairs(*numbers) != held_out).nonzero()[:, 0]):
            for number, width in zip(numbers, widths, strict=True):
                number[other] = self._number(generator, len(other), width)
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

    def parts(self, generator, size, n):
        """As in AnyLength, but unpadded sums get one batch each: a batch has one pair of widths."""
        if self.padded:
            return super().parts(generator, size, n)
        return [self.of_length(generator, 1, n) for _ in range(size)]

    def _number(self, generator, size, width):
        digits = torch.randint(10, (size, width), generator=generator)
        if not self.padded and width > 1:
            digits[:, -1] = torch.randint(1, 10, (size,), generator=generator)
        return digits


def add(a, b):
    """Digits (b, max(n, m) + 1) of the sum of a (b, n) and b (b, m), ones digits first."""
    n = max(a.shape[1], b.shape[1])
    columns = torch.zeros(len(a), n + 1, dtype=torch.long)
    columns[:, : a.shape[1]] += a
    columns[:, : b.shape[1]] += b
    for i in range(n):
        columns[:, i + 1] += columns[:, i] // 10
    return columns % 10


def held_out_pairs(a, b):
    """Whether each pair of numbers is held out of training: booleans (b,), about one in ten True.

    Digits are as in `add`. The result does not depend on the order of the two numbers or on leading
    zeros.
    """
    hashes = []
    for number in (a, b):
        value = torch.zeros(len(number), dtype=torch.long)
        for digit in number.flip(1).unbind(1):
            value = (value * 1_000_003 + digit) % (2**31 - 1)
        hashes.append(value)
    mixed = (torch.minimum(*hashes) * 48_271 + torch.maximum(*hashes) * 69_621 + 10) % (2**31 - 1)
    for _ in range(3):  # without this mixing the result would depend on the sum
        mixed = mixed * (mixed + 1_000_003) % (2**31 - 1)
    return mixed % 10 == 0
