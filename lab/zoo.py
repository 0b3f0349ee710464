"""Models trained from a configuration and a seed, and the reference model."""

import hashlib
import json
from pathlib import Path

from lab import uses
from lab.device import device
from lab.models.gpt import ModelConfig, Transformer
from lab.state import as_in_a_trial, preserve_rng, seed_all
from lab.training import fit

# made by lab.recipes.reference
REFERENCE = Path(__file__).parent / "reference" / "model.safetensors"


def model(config, task, schedule, seed=0):
    """The Transformer of a ModelConfig, trained now on a task with a TrainConfig.

    The task is a dataclass. `seed` sets weights and batches. Equal arguments, code, data and
    arithmetic give bit-identical weights. The caller gets its own copy, on the device of the trial,
    in evaluation mode. `model.run` is the `run` of training.fit.
    """
    with as_in_a_trial(), preserve_rng():
        seed_all(seed)
        found = Transformer(config, seed=seed).to(device())
        found.run, _ = fit(found, task, schedule, seed=seed)
    found.zero_grad()
    return found.eval()


def reference():
    """The lab's reference model of the next byte of code, on the CPU: 4 layers, d_model 128.

    Its `story` documents the training: config, schedule, seed, corpus, validation_loss and marks
    (nats per byte, over `windows` validation windows), curve, arithmetic, commit. Raises OSError or
    ValueError if the committed files are missing or changed.
    """
    from safetensors.torch import load

    raw = REFERENCE.read_bytes()
    story = json.loads(REFERENCE.with_suffix(".json").read_text("utf-8"))
    if hashlib.sha256(raw).hexdigest() != story["weights"]:
        raise ValueError(f"{REFERENCE} is not what was trained: check it out from git again")
    uses.reads("reference")
    model = Transformer(ModelConfig(**story["config"]))
    model.load_state_dict(load(raw))
    model.story = story
    return model.eval()


def reference_hash():
    """Short sha256 of the weights of the reference model."""
    return hashlib.sha256(REFERENCE.read_bytes()).hexdigest()[:16]
