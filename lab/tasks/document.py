"""A text with something local and something global to know. As in sequences.py."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Document:
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
