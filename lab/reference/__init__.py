"""The reference model: its weights and training record, and make.py, which creates both."""

import hashlib
import json
from pathlib import Path

from lab import uses
from lab.models.gpt import ModelConfig, Transformer

WEIGHTS = Path(__file__).parent / "model.safetensors"


def reference_model():
    """Load the trained reference model, on the CPU. It predicts the next byte of source code.

    It has 4 layers and d_model 128. Its attribute `story` is a dict that records the training:
    config, schedule, seed, corpus (a hash), validation_loss, marks (the n-gram baselines),
    curve (losses by step), torch (version) and more. validation_loss and marks are in nats per
    byte, over story["windows"] validation windows. Raises OSError if a file is missing, and
    ValueError if the weights do not match their recorded hash.
    """
    from safetensors.torch import load

    raw = WEIGHTS.read_bytes()
    story = json.loads(WEIGHTS.with_suffix(".json").read_text("utf-8"))
    if hashlib.sha256(raw).hexdigest() != story["weights"]:
        raise ValueError(f"{WEIGHTS} does not match its recorded hash: restore it from git")
    uses.reads("reference")
    model = Transformer(ModelConfig(**story["config"]))
    model.load_state_dict(load(raw))
    model.story = story
    return model.eval()


def reference_hash():
    """The first 16 hex digits of the sha256 of the weights file."""
    return hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()[:16]
