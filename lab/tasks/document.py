"""A text with something local and something global to know."""

from dataclasses import dataclass
from math import log

import torch

from lab.tasks.task import Marks, Task


@dataclass(frozen=True)
class Document(Task):
    """For mask "none": at every position the word before it, and the topic that one marked token announces.

    tokens   S  d  a  f  T  b  e     T is one of `topics` tokens after the words; S fills the first `front` places
    output 0 .  .  d  a  f  .  b     local: a word; nothing is asked after S and after T
    output 1 T  T  T  T  T  T  T     global: 0..topics-1
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
        """Of both outputs together: a topic is asked everywhere, a word where the token before is one."""
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
