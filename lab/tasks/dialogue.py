"""Two speakers in turns; `annotated` returns the gold structure as well."""

from dataclasses import dataclass

import torch

from lab.tasks.task import Task, uniform


@dataclass(frozen=True)
class Dialogue(Task):
    """At the first word of a turn: what the same speaker said last, before the other's turn.

    speaker  A  A  A  B  B  A  A  A  B         a token is a word with its speaker, and whether it begins a turn
    word     d  a  f  c  b  e  a  a  d
    targets  .  .  .  .  .  f  .  .  b         a word
    source   .  .  .  .  .  2  .  .  4
    """

    words: int = 16
    shortest: int = 2  # words of a turn, each length as frequent
    longest: int = 12
    length: int = 64

    def __post_init__(self):
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(f"1 <= shortest <= longest is needed, got {self.shortest} and {self.longest}")

    @property
    def vocabulary(self):
        return 4 * self.words

    @property
    def d_out(self):
        return self.words

    def marks(self):
        return uniform(self.words)

    def batch(self, generator, size):
        drawn = self.annotated(generator, size)
        return drawn["tokens"], drawn["targets"]

    def annotated(self, generator, size):
        """{tokens, targets, source, speaker, starts: (b, t)}; source is the answer's place, -1 where none is asked."""
        shape = (size, self.length)
        turns = torch.randint(self.shortest, self.longest + 1, shape, generator=generator).cumsum(1)
        at = torch.arange(self.length)
        turn = torch.searchsorted(turns, at.expand(shape).contiguous(), right=True)
        starts = torch.diff(turn, dim=1, prepend=torch.full((size, 1), -1)) > 0
        speaker = (turn + torch.randint(2, (size, 1), generator=generator)) % 2
        word = torch.randint(self.words, shape, generator=generator)
        begins = turns.gather(1, (turn - 2).clamp(min=0))  # where the turn before this one began, from the third on
        source = (begins - 1).where(starts & (turn >= 2), -1)
        return {
            "tokens": (2 * speaker + starts) * self.words + word,
            "targets": word.gather(1, source.clamp(min=0)).where(source >= 0, -100),
            "source": source,
            "speaker": speaker,
            "starts": starts,
        }
