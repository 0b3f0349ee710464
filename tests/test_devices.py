"""Models, tasks, training and measures on a device that is not the CPU: no two devices meet, and numbers stay.

Batches are drawn on the CPU and moved, weights are drawn there too, so that a run starts alike everywhere.
"""

import dataclasses
import importlib
import math
import pkgutil
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers import kinds_of_models
from pretend import device, twins

import lab.tasks
from lab.models import ModelConfig, Transformer
from lab.models.config import SEAMS
from lab.models.encoder_decoder import EncoderDecoder
from lab.tasks.recall import Facts, recalled
from lab.tasks.sequences import Sort
from lab.tasks.series import explained, squared_error
from lab.tasks.task import accuracy
from lab.training import TrainConfig, cross_entropy, fit, train

VOCABULARY, CONTEXT = 13, 24
NEEDED = {  # options without a default
    "window": {"size": 5}, "band": {"size": 5}, "dilated": {"dilation": 2}, "strided": {"stride": 3},
    "periodic": {"period": 3}, "random": {"links": 2}, "longformer": {"size": 2}, "bigbird": {"size": 2, "tokens": 2},
    "by-head": {"masks": ["causal", {"kind": "window", "size": 2}]}, "local": {"size": 4}, "linformer": {"rank": 4},
    "offset-gate": {"reach": 4},
}  # fmt: skip

FAULTS = {
    "gru": {"raises": NotImplementedError, "reason": "torch's GRU has a cell for devices that the CPU has not"},
}
UNLIKE = {
    "linformer": {"mask": "none", "position": "learned"},  # has no causal form and takes no bias
    "convolution": {"position": "none"}, "gru": {"position": "none"},  # have no queries to turn
}  # fmt: skip


def build(**fields):
    sizes = {"vocabulary": VOCABULARY, "context": CONTEXT, "d_model": 32, "n_layers": 2, "n_heads": 4}
    return Transformer(ModelConfig(**(sizes | fields)), seed=0).eval()


def tokens_of(batch=2, length=12):
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(0))


def close(there, here):
    torch.testing.assert_close(there.detach().cpu(), here.detach(), rtol=1e-3, atol=1e-4)


def each_kind():
    for field, seam in SEAMS.items():
        for kind in kinds_of_models(seam):
            choice = {"kind": kind, **NEEDED[kind]} if kind in NEEDED else kind
            marks = pytest.mark.xfail(strict=True, **FAULTS[kind]) if kind in FAULTS else ()
            yield pytest.param({field: choice} | UNLIKE.get(kind, {}), id=f"{field}-{kind}", marks=marks)


@pytest.mark.parametrize("fields", each_kind())
def test_every_kind_of_every_seam_runs_forward_and_backward(fields):
    here, there = twins(build(**fields))
    tokens, real = tokens_of(), torch.ones(2, 12, dtype=torch.bool)
    real[0, 9:] = False
    for inputs in ({}, {"padding_mask": real}):
        if inputs and fields.get("mask") == "none":
            continue
        close(there(tokens.to(device()), **{k: x.to(device()) for k, x in inputs.items()}), here(tokens, **inputs))
    for model, place in ((here, "cpu"), (there, device())):
        torch.manual_seed(0)  # for what is drawn in training
        cross_entropy(model.train()(tokens.to(place)), tokens.to(place)).backward()
    for mine, wanted in zip(there.parameters(), here.parameters(), strict=True):
        assert (mine.grad is None) == (wanted.grad is None)
        if mine.grad is not None:
            assert mine.grad.device == device()
            close(mine.grad, wanted.grad)


@pytest.mark.parametrize("fields", each_kind())
def test_every_kind_that_is_causal_generates(fields):
    here, there = twins(build(**fields))
    try:
        wanted = here.generate(tokens_of(length=5), 4, temperature=0)
    except (ValueError, NotImplementedError):
        pytest.skip("generates nowhere")
    assert there.generate(tokens_of(length=5).to(device()), 4, temperature=0).tolist() == wanted.tolist()


def test_an_encoder_and_decoder_run():
    sizes = {"vocabulary": VOCABULARY, "context": CONTEXT, "d_model": 32, "n_layers": 2, "n_heads": 4}
    here, there = twins(EncoderDecoder(ModelConfig(**sizes)).eval())
    source, target = tokens_of(2, 7), tokens_of(2, 9)
    close(there((source.to(device()), target.to(device()))), here((source, target)))


# Tasks and training

OPTIONS = {  # those without a default, and a text that is read soon
    "Blocks": {"vocabulary": 32}, "Few": {"task": Sort(), "samples": 8},
    "Pieces": {"vocabulary": 256, "path": str(Path(lab.tasks.__file__).parent)},
}  # fmt: skip


def each_task():
    for found in pkgutil.iter_modules(lab.tasks.__path__):
        module = importlib.import_module(f"lab.tasks.{found.name}")
        for name, task in vars(module).items():
            if dataclasses.is_dataclass(task) and hasattr(task, "batch") and task.__module__ == module.__name__:
                yield pytest.param(partial(task, **OPTIONS.get(name, {})), id=name)


@pytest.mark.parametrize("task", each_task())
def test_every_task_trains_there_on_batches_drawn_on_the_cpu(task):
    task = task()
    inputs, targets = task.batch(torch.Generator().manual_seed(0), 2)
    first = inputs[0] if isinstance(inputs, tuple) else inputs
    assert first.device.type == targets.device.type == "cpu"
    asks = getattr(task, "task", task)  # of a task made of another
    sizes = {"vocabulary": asks.vocabulary, "context": 2 * first.shape[1], "d_model": 16, "n_layers": 1, "n_heads": 2}
    kind = EncoderDecoder if isinstance(inputs, tuple) else Transformer
    here, there = twins(kind(ModelConfig(**sizes, d_out=getattr(asks, "d_out", None)), seed=0))
    config = TrainConfig(steps=3, batch=2, warmup=2)
    loss = squared_error if targets.is_floating_point() else None
    runs = [fit(model, task, config, seed=0, loss=loss, every=1) for model in (here, there)]
    assert runs[0][0]["data_hash"] == runs[1][0]["data_hash"] and not runs[1][0]["diverged"]
    assert runs[1][1].loss.tolist() == pytest.approx(runs[0][1].loss.tolist(), rel=1e-3, abs=1e-4)


def test_what_is_asked_of_a_trained_model_runs_there():
    """The measures that stand beside their tasks."""
    task = Facts()
    sizes = {"vocabulary": task.vocabulary, "context": 4, "d_model": 16, "n_layers": 1, "n_heads": 2}
    here, there = twins(Transformer(ModelConfig(**sizes), seed=0))
    assert recalled(there, task).equal(recalled(here, task))
    logits, targets = torch.randn(2, 5, 3), torch.randint(3, (2, 5))
    assert accuracy(logits.to(device()), targets.to(device())) == accuracy(logits, targets)
    forecast, wanted = torch.randn(2, 2, 5)
    assert explained(forecast.to(device()), wanted.to(device())) == pytest.approx(explained(forecast, wanted))


def test_a_training_that_diverges_ends_there_too():
    task = Sort()
    sizes = {"vocabulary": task.vocabulary, "context": 16, "d_model": 16, "n_layers": 1, "n_heads": 2}
    _, there = twins(Transformer(ModelConfig(**sizes), seed=0))
    history = train(
        there, task.batch, TrainConfig(steps=5, batch=2), loss=lambda model, x, y: model(x).sum() * math.nan
    )
    assert history.diverged.tolist() == [True]
