"""Who is meant: two names in a text, then a pronoun."""

from dataclasses import dataclass

import torch

from lab.tasks.task import Task, uniform


@dataclass(frozen=True)
class Pronouns(Task):
    """The name of a woman and that of a man among other words, in either order, at last a pronoun: whose is it?

    tokens   .  Bob  .  .  Ann  .  she     names 0..7 are women's, 8..15 men's, then she, he, and other words
    targets  .   .   .  .   .   .  Ann     the name, asked at the pronoun
    """

    others: int = 14
    length: int = 20

    def __post_init__(self):
        if self.others < 1 or self.length < 3:
            raise ValueError(f"at least one other word and three tokens, got {self.others} and {self.length}")

    @property
    def vocabulary(self):
        return 18 + self.others

    def marks(self):
        """Of who guesses; who takes either name of the text is right half of the time."""
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
