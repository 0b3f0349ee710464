"""Trained models by configuration and seed, trained once and measured many times; and the lab's
reference model.
"""

import hashlib
import json
from pathlib import Path

from lab import trace
from lab.device import device
from lab.models.gpt import ModelConfig, Transformer
from lab.training import fit
from lab.trials import models
from lab.trials.files import file_hash

REFERENCE = (
    Path(__file__).parent / "reference" / "model.safetensors"
)  # lab.recipes.reference makes it


def model(config, task, schedule, seed=0):
    """The Transformer of a ModelConfig, trained on a task (a dataclass) by a TrainConfig: kept
    here, or trained now.

    `seed` is that of weights and batches. Equal arguments, code, data and arithmetic give the same
    weights to the last bit, whoever asks; the model is one's own, on the device of the trial, in
    evaluation mode. `model.run` holds what training.fit keeps of the training. `lab verify` trains
    it again.
    """
    weights, run = models.kept(_trained, seed, config=config, task=task, schedule=schedule)
    found = Transformer(config, seed=seed)
    found.load_state_dict(weights)
    found.run = run
    return found.to(device()).eval()


def _trained(seed, config, task, schedule):
    trained = Transformer(config, seed=seed).to(device())
    run, _ = fit(trained, task, schedule, seed=seed)
    return trained.state_dict(), run


def reference():
    """The lab's model of the next byte of real code, on the CPU: 4 layers, 128 wide.

    Its `story` tells how it was made.

    story: config, schedule, seed, corpus, validation_loss and marks (nats a byte, of as many
    validation `windows`), curve, arithmetic, commit. OSError or ValueError where the committed
    files are not there or were changed.
    """
    from safetensors.torch import load

    with trace.apart():
        raw, story = (
            REFERENCE.read_bytes(),
            json.loads(REFERENCE.with_suffix(".json").read_text("utf-8")),
        )
    if hashlib.sha256(raw).hexdigest() != story["weights"]:
        raise ValueError(f"{REFERENCE} is not what was trained: check it out again")
    trace.reads("reference", reference_hash())
    model = Transformer(ModelConfig(**story["config"]))
    model.load_state_dict(load(raw))
    model.story = story
    return model.eval()


def reference_hash(_=""):
    """Identifies the reference model: short sha256 of its weights."""
    with trace.apart():
        return file_hash(REFERENCE)
