"""A table of facts to be learned by heart: what a subject and a relation have for an object."""

from dataclasses import dataclass
from functools import cached_property
from math import log2

import torch

from lab.tasks.task import Task, certain


@dataclass(frozen=True)
class Facts(Task):
    """The object of every (subject, relation), drawn at random once, asked in several wordings.

    wording 0   tokens  w0 s r ?     targets  . . . o      even wordings name the subject first,
    wording 1           w1 r s ?              . . . o      odd ones the relation

    Tokens: subjects, then relations, objects, one for each wording, and the question mark.
    """

    subjects: int = 16
    relations: int = 4
    objects: int = 16
    wordings: int = 2
    table_seed: int = 0
    length = 4

    @property
    def vocabulary(self):
        return self.subjects + self.relations + self.objects + self.wordings + 1

    @property
    def facts(self):
        return self.subjects * self.relations

    @property
    def bits(self):
        """Information in the table: log2(objects) a fact."""
        return self.facts * log2(self.objects)

    @cached_property
    def answers(self):
        """The object's token of every fact, (facts,); fact f has subject f // relations, relation f % relations."""
        drawn = torch.randint(self.objects, (self.facts,), generator=torch.Generator().manual_seed(self.table_seed))
        return self.subjects + self.relations + drawn

    def questions(self, fact, wording):
        """Tokens (b, 4) of facts (b,) in wordings (b,)."""
        subject, relation = fact // self.relations, self.subjects + fact % self.relations
        swapped = wording % 2 == 1
        first, second = torch.where(swapped, relation, subject), torch.where(swapped, subject, relation)
        word = self.subjects + self.relations + self.objects + wording
        return torch.stack([word, first, second, torch.full_like(fact, self.vocabulary - 1)], 1)

    def marks(self):
        return certain(self.answers.bincount().tolist())

    def batch(self, generator, size):
        fact = torch.randint(self.facts, (size,), generator=generator)
        tokens = self.questions(fact, torch.randint(self.wordings, (size,), generator=generator))
        targets = torch.full_like(tokens, -100)
        targets[:, -1] = self.answers[fact]
        return tokens, targets

    def table(self):
        """Every fact in every wording: tokens (wordings, facts, 4); the answers are `answers`, the same in each."""
        fact = torch.arange(self.facts)
        return torch.stack([self.questions(fact, torch.full_like(fact, w)) for w in range(self.wordings)])


@torch.no_grad()
def recalled(model, task):
    """Whether the model's likeliest token is the object: booleans (wordings, facts)."""
    device = next(model.parameters()).device
    table = task.table()
    found = model(table.flatten(0, 1).to(device))[:, -1].argmax(-1).cpu()
    return found.view(table.shape[:2]) == task.answers
