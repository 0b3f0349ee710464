"""The reference model: its weights, their story, and the script that makes both (make.py)."""

import hashlib
import json
from pathlib import Path

from lab import uses
from lab.models.gpt import ModelConfig, Transformer

WEIGHTS = Path(__file__).parent / "model.safetensors"


def reference_model():
    """The lab's reference model of the next byte of code, on the CPU: 4 layers, d_model 128.

    Its `story` documents the training: config, schedule, seed, corpus, validation_loss and marks
    (nats per byte, over `windows` validation windows), curve, torch. Raises OSError or ValueError
    if the committed files are missing or changed.
    """
    from safetensors.torch import load

    raw = WEIGHTS.read_bytes()
    story = json.loads(WEIGHTS.with_suffix(".json").read_text("utf-8"))
    if hashlib.sha256(raw).hexdigest() != story["weights"]:
        raise ValueError(f"{WEIGHTS} is not what was trained: check it out from git again")
    uses.reads("reference")
    model = Transformer(ModelConfig(**story["config"]))
    model.load_state_dict(load(raw))
    model.story = story
    return model.eval()


def reference_hash():
    """Short sha256 of the weights of the reference model."""
    return hashlib.sha256(WEIGHTS.read_bytes()).hexdigest()[:16]
