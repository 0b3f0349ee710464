"""Texts with structure: speakers in turns, the topic of a document, the referent of a pronoun."""

from dataclasses import dataclass
from math import log

import torch

from lab.tasks.task import Marks, Task, uniform


@dataclass(frozen=True)
class Dialogue(Task):
    """At the first word of a turn: the last word of the same speaker's previous turn.

    speaker  A  A  A  B  B  A  A  A  B
    word     d  a  f  c  b  e  a  a  d
    targets  .  .  .  .  .  f  .  .  b         a word
    source   .  .  .  .  .  2  .  .  4         its position

    A token encodes the word, the speaker and whether a turn begins.
    """

    words: int = 16
    shortest: int = 2  # words of a turn, all lengths equally frequent
    longest: int = 12
    length: int = 64

    def __post_init__(self):
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(
                f"1 <= shortest <= longest must hold, got {self.shortest} and {self.longest}"
            )

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
        """{tokens, targets, source, speaker, starts: (b, t)}; source: index of the answer or -1."""
        shape = (size, self.length)
        turns = torch.randint(self.shortest, self.longest + 1, shape, generator=generator).cumsum(1)
        at = torch.arange(self.length)
        turn = torch.searchsorted(turns, at.expand(shape).contiguous(), right=True)
        starts = torch.diff(turn, dim=1, prepend=torch.full((size, 1), -1)) > 0
        speaker = (turn + torch.randint(2, (size, 1), generator=generator)) % 2
        word = torch.randint(self.words, shape, generator=generator)
        # start of the previous turn, from the third turn on
        begins = turns.gather(1, (turn - 2).clamp(min=0))
        source = (begins - 1).where(starts & (turn >= 2), -1)
        return {
            "tokens": (2 * speaker + starts) * self.words + word,
            "targets": word.gather(1, source.clamp(min=0)).where(source >= 0, -100),
            "source": source,
            "speaker": speaker,
            "starts": starts,
        }


@dataclass(frozen=True)
class Document(Task):
    """At every position the word before it, and the topic announced by one token; for mask "none".

    tokens   S  d  a  f  T  b  e
    output 0 .  .  d  a  f  .  b     local: a word; no answer after S and after T
    output 1 T  T  T  T  T  T  T     global: 0..topics-1

    The topic T is one of `topics` token ids after the words; S fills the first `front` positions.
    """

    words: int = 8
    topics: int = 4
    front: int = 8
    length: int = 64

    @property
    def vocabulary(self):
        return self.words + self.topics + 1

    @property
    def d_out(self):
        return 2 * max(self.words, self.topics)

    def marks(self):
        """Marks over both outputs: a topic everywhere, a word where the previous token is one."""
        words = (self.length - 1 - self.front) * (1 - 1 / (self.length - self.front))
        share = words / (words + self.length)
        nats = share * log(self.words) + (1 - share) * log(self.topics)
        return Marks(share / self.words + (1 - share) / self.topics, 1.0, nats, 0.0)

    def batch(self, generator, size):
        word = torch.randint(self.words, (size, self.length), generator=generator)
        topic = torch.randint(self.topics, (size, 1), generator=generator)
        place = torch.randint(self.front, self.length, (size, 1), generator=generator)
        at = torch.arange(self.length)
        tokens = word.where(at != place, self.words + topic)
        tokens[:, : self.front] = self.vocabulary - 1
        targets = torch.full((size, self.length, 2), -100)
        targets[:, 1:, 0] = tokens[:, :-1].where(tokens[:, :-1] < self.words, -100)
        targets[:, :, 1] = topic
        return tokens, targets


@dataclass(frozen=True)
class Pronouns(Task):
    """The name that a final pronoun refers to: the one woman's or the one man's name in the text.

    tokens   .  Bob  .  .  Ann  .  she
    targets  .   .   .  .   .   .  Ann     the name, at the pronoun

    Token ids: 0..7 women's names, 8..15 men's names, 16 she, 17 he, then the other words.
    """

    others: int = 14
    length: int = 20

    def __post_init__(self):
        if self.others < 1 or self.length < 3:
            raise ValueError(
                f"at least one other word and three tokens are needed, got {self.others} "
                f"and {self.length}"
            )

    @property
    def vocabulary(self):
        return 18 + self.others

    def marks(self):
        """Chance over all 16 names; guessing between the two names of the text gives 1/2."""
        return uniform(16)

    def batch(self, generator, size):
        tokens = 18 + torch.randint(self.others, (size, self.length), generator=generator)
        names = torch.randint(8, (size, 2), generator=generator) + torch.tensor([0, 8])
        man = torch.randint(2, (size, 1), generator=generator)
        places = torch.rand(size, self.length - 1, generator=generator).argsort(1)[:, :2]
        tokens.scatter_(1, places, names)
        tokens[:, -1:] = 16 + man
        targets = torch.full_like(tokens, -100)
        targets[:, -1:] = names.gather(1, man)
        return tokens, targets
