"""A text with something local and something global to know. As in sequences.py."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Document:
    """For mask "none": at every position the word before it, and the topic that one marked token announces.

    tokens   d  a  f  T  b  e        T is one of `topics` tokens after the words, anywhere but at the first place
    output 0 .  d  a  f  .  b        local: a word; where the topic's token stands before, nothing is asked
    output 1 T  T  T  T  T  T        global: 0..topics-1
    """

    words: int = 16
    topics: int = 16
    length: int = 48

    @property
    def vocabulary(self):
        return self.words + self.topics

    @property
    def d_out(self):
        return 2 * max(self.words, self.topics)

    def batch(self, generator, size):
        word = torch.randint(self.words, (size, self.length), generator=generator)
        topic = torch.randint(self.topics, (size, 1), generator=generator)
        place = torch.randint(1, self.length, (size, 1), generator=generator)
        marked = torch.arange(self.length) == place
        targets = torch.full((size, self.length, 2), -100)
        targets[:, 1:, 0] = word[:, :-1].where(~marked[:, :-1], -100)
        targets[:, :, 1] = topic
        return word.where(~marked, self.words + topic), targets
