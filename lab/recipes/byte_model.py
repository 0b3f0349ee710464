"""The next-byte model used in all lessons on source code, and its n-gram baselines."""

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
    """(ModelConfig, task, TrainConfig) of a next-byte model; `changes` override ModelConfig fields.

    The model has the defaults of ModelConfig, such as rotary positions and pre-norm, and small
    initial embeddings. The default learning rate suits width 64 and two layers; wider and deeper
    models need a smaller one. `context` is in bytes; `corpus` is a path as in lab.tasks.corpus.
    """
    start = {
        "vocab_size": 256,
        "block_size": context,
        "initialization": {"kind": "fan-in", "embedding": 0.3},
    }
    schedule = TrainConfig(steps=steps, batch=batch, learning_rate=learning_rate)
    return ModelConfig(**start | changes), Code(context, corpus), schedule


def trained_model(config, task, schedule, seed=0):
    """Train a Transformer on a task. Returns it in eval mode, on the device of the trial.

    `config` is a ModelConfig, `schedule` a TrainConfig. `seed` determines the initial weights and
    the batches. On the CPU the trained weights are bitwise reproducible under the conditions in
    lab/device.py. `model.run` is the dict of results from training.fit.
    """
    with as_in_a_trial(), preserve_rng():
        seed_all(seed)
        model = Transformer(config, seed=seed).to(device())
        model.run, _ = fit(model, task, schedule, seed=seed)
    model.zero_grad()
    return model.eval()


@torch.no_grad()
def validation_loss(model, task, windows=WINDOWS):
    """Loss of the model on `windows` validation windows of a task, in nats per token."""
    tokens, targets = (
        to_device(x, next(model.parameters()).device) for x in task.validation(windows)
    )
    return cross_entropy(model(tokens), targets).item()


def ngram_baselines(task, schedule, seed, windows=WINDOWS):
    """Validation losses of n-gram models: {name in TABLES: nats per byte}.

    The n-grams are counted on the batches that training reads with this schedule and seed, and
    evaluated on the windows of `validation_loss`.
    """
    generator = torch.Generator().manual_seed(seed)
    read = windows_of([task.batch(generator, schedule.batch) for _ in range(schedule.steps)])
    marks = ngram_losses(read, windows_of([task.validation(windows)]), order=len(TABLES))
    return dict(zip(TABLES, marks.tolist(), strict=True))


def windows_of(batches):
    """Concatenate batches of tokens and targets, (b, t) each, into an array (windows, t + 1)."""
    return torch.cat(
        [torch.cat([tokens, targets[:, -1:]], 1) for tokens, targets in batches]
    ).numpy()
