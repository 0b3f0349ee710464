"""The lab's byte model, one recipe for all lessons about real code, and the marks that it has to
pass.
"""

import torch

from lab.measure.ngrams import ngram_losses
from lab.models.gpt import ModelConfig
from lab.tasks.code import Code
from lab.training import TrainConfig, cross_entropy, moved

WINDOWS = 512  # of validation
TABLES = ("unigram", "bigram", "trigram", "4-gram")


def byte_model(steps, *, batch=16, context=64, learning_rate=0.016, corpus="", **changes):
    """(ModelConfig, task, TrainConfig) of a model of the next byte; `changes` are further fields of
    its configuration.

    Rotary positions, norms before the branches, small embeddings. The default rate is for a width
    of 64 and two layers; wider and deeper models want a smaller one.
    """
    start = {
        "vocabulary": 256,
        "context": context,
        "initialization": {"kind": "fan-in", "embedding": 0.3},
    }
    schedule = TrainConfig(steps=steps, batch=batch, learning_rate=learning_rate)
    return ModelConfig(**start | changes), Code(context, corpus), schedule


@torch.no_grad()
def validation_loss(model, task, windows=WINDOWS):
    """Nats a byte on the first windows of a task's validation."""
    tokens, targets = (moved(x, next(model.parameters()).device) for x in task.validation(windows))
    return cross_entropy(model(tokens), targets).item()


def table_losses(task, schedule, seed, windows=WINDOWS):
    """{table: nats a byte} on the same windows, of tables of the very bytes that a training with
    this seed reads.
    """
    generator = torch.Generator().manual_seed(seed)
    read = windows_of([task.batch(generator, schedule.batch) for _ in range(schedule.steps)])
    marks = ngram_losses(read, windows_of([task.validation(windows)]), order=len(TABLES))
    return dict(zip(TABLES, marks.tolist(), strict=True))


def windows_of(batches):
    """Tokens and the last target of batches (tokens, targets), each (b, t): one array (windows, t +
    1).
    """
    return torch.cat(
        [torch.cat([tokens, targets[:, -1:]], 1) for tokens, targets in batches]
    ).numpy()
