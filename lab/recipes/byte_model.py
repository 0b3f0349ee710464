"""The recipe of the byte model used in all lessons about real code, and its reference losses."""

import torch

from lab.device import device
from lab.measure.ngrams import ngram_losses
from lab.models.gpt import ModelConfig, Transformer
from lab.state import as_in_a_trial, preserve_rng, seed_all
from lab.tasks.code import Code
from lab.training import TrainConfig, cross_entropy, fit, to_device

WINDOWS = 512  # validation windows
TABLES = ("unigram", "bigram", "trigram", "4-gram")


def byte_model(steps, *, batch=16, context=64, learning_rate=0.016, corpus="", **changes):
    """(ModelConfig, task, TrainConfig) of a next-byte model; `changes` override config fields.

    Rotary positions, pre-norm, small embeddings. The default learning rate is for width 64 and two
    layers; wider and deeper models need a smaller one.
    """
    start = {
        "vocab_size": 256,
        "block_size": context,
        "initialization": {"kind": "fan-in", "embedding": 0.3},
    }
    schedule = TrainConfig(steps=steps, batch=batch, learning_rate=learning_rate)
    return ModelConfig(**start | changes), Code(context, corpus), schedule


def trained_model(config, task, schedule, seed=0):
    """The Transformer of a ModelConfig, trained now on a task with a TrainConfig.

    `seed` sets weights and batches. Equal arguments, code, data and arithmetic give bit-identical
    weights. The model is on the device of the trial, in evaluation mode. `model.run` is the `run`
    of training.fit.
    """
    with as_in_a_trial(), preserve_rng():
        seed_all(seed)
        model = Transformer(config, seed=seed).to(device())
        model.run, _ = fit(model, task, schedule, seed=seed)
    model.zero_grad()
    return model.eval()


@torch.no_grad()
def validation_loss(model, task, windows=WINDOWS):
    """Loss in nats per byte on the first validation windows of a task."""
    tokens, targets = (
        to_device(x, next(model.parameters()).device) for x in task.validation(windows)
    )
    return cross_entropy(model(tokens), targets).item()


def ngram_baselines(task, schedule, seed, windows=WINDOWS):
    """{table: nats per byte} of n-grams counted on the bytes that training with this seed reads.

    They are evaluated on the first validation windows.
    """
    generator = torch.Generator().manual_seed(seed)
    read = windows_of([task.batch(generator, schedule.batch) for _ in range(schedule.steps)])
    marks = ngram_losses(read, windows_of([task.validation(windows)]), order=len(TABLES))
    return dict(zip(TABLES, marks.tolist(), strict=True))


def windows_of(batches):
    """Tokens and last target of batches (tokens, targets), each (b, t): array (windows, t + 1)."""
    return torch.cat(
        [torch.cat([tokens, targets[:, -1:]], 1) for tokens, targets in batches]
    ).numpy()
