"""Train the reference model: `python -m lab.reference.make`. This takes minutes."""

import hashlib
import json
import time

import torch

from lab import arithmetic
from lab.models.gpt import Transformer
from lab.recipes.byte_model import WINDOWS, byte_model, ngram_baselines, validation_loss
from lab.reference import WEIGHTS
from lab.training import train

SIZES = {
    "steps": 3000,
    "batch": 16,
    "context": 64,
    "learning_rate": 0.004,
    "d_model": 128,
    "n_layers": 4,
}


def make(path=WEIGHTS, seed=0, sizes=SIZES):
    """Train the reference model on one thread. Write its weights and, next to them, a JSON record.

    The marks in the JSON file are n-gram baselines. The n-grams are counted on the windows that
    training reads and evaluated on the same validation windows as the model.
    """
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    config, task, schedule = byte_model(**sizes)
    model = Transformer(config, seed=seed)
    began = time.time()
    with arithmetic.fast():
        history = train(
            model,
            task.batch,
            schedule,
            seed=seed,
            every=500,
            evaluate=lambda model: {"validation": validation_loss(model, task)},
        )
        seconds = time.time() - began
        loss = validation_loss(model, task)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: x.contiguous() for name, x in model.state_dict().items()}, path)
    story = {
        "config": config.model_dump(exclude_unset=True),
        "schedule": schedule.model_dump(),
        "seed": seed,
        "corpus": task.hash,
        "parameters": sum(p.numel() for p in model.parameters()),
        "windows": WINDOWS,
        "validation_loss": loss,
        "marks": ngram_baselines(task, schedule, seed),
        "curve": {name: history[name].tolist() for name in ("step", "loss", "validation")},
        "seconds": round(seconds, 1),
        "threads": 1,
        "torch": torch.__version__,
        "weights": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    path.with_suffix(".json").write_text(json.dumps(story, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    make()
