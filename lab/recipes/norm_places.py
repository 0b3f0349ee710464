"""Models of the next byte that differ in where their norms stand and in what these hold (chapter §1.5.3, §1.5.4)."""

import numpy as np
import torch
from torch import nn

from lab.engine.device import device
from lab.measure.depth import likeness, moved, rises_without
from lab.measure.hooks import capture
from lab.measure.linear_probe import probe_accuracy
from lab.models import Transformer
from lab.recipes.byte_model import byte_model, table_losses, validation_loss
from lab.training import fit

ARMS = {
    "pre": {"residual": "pre"},
    "post": {"residual": "post"},
    "sandwich": {"residual": "sandwich"},
    "norm on q and k": {"residual": "pre", "qk_norm": "layernorm"},
    "norm after FFN only": {"residual": "post"},
    "no gain": {"residual": "pre", "norm": {"kind": "layernorm", "affine": False}},
    "rmsnorm": {"residual": "pre", "norm": "rmsnorm"},
}


def model_of(arm, config, seed):
    """The model of an arm; what a configuration cannot say is done to the model."""
    model = Transformer(config, seed=seed)
    if arm == "norm after FFN only":
        for block in model.blocks:
            block.mixer_norm = nn.Identity()
    return model.to(device())


def text_model(seed, order, arm, learning_rate, n_layers, d_model, context, batch, steps, corpus, ffn="relu"):
    """A trial: validation loss of an arm while it learns, beside tables of the same bytes. `order` is that of the data.

    The last row has what the layers of plain pre and post do: see `inside`.
    """
    fields = {"n_layers": n_layers, "d_model": d_model, "ffn": ffn} | ARMS[arm]
    sizes = {"batch": batch, "context": context, "learning_rate": learning_rate, "corpus": corpus}
    config, task, schedule = byte_model(steps, **sizes, **fields)
    model, tables = model_of(arm, config, seed), table_losses(task, schedule, seed + order)
    run, history = fit(
        model, task, schedule, seed=seed + order, every=max(1, steps // 8), mark=("loss", "<", tables["trigram"]),
        evaluate=lambda m: {"loss": validation_loss(m, task)},
    )  # fmt: skip
    rows = [run | tables | row for row in history[["step", "loss"]].to_dict("records")]
    if arm in ("pre", "post"):
        rows[-1] |= inside(model, task)
    return rows


def inside(model, task):
    """What the layers of a model do on text that it was not trained on.

    Cosine of neighbouring layers, input byte found behind the last block, rise of the loss without an inner block (the
    mean over them; at least 3 blocks) and under weight noise of a tenth.
    """
    tokens = task.validation(128)[0].to(device())

    def loss():
        return validation_loss(model, task, 256)

    with torch.no_grad(), capture(model.blocks) as kept:
        model(tokens)
    streams, noisy, base = torch.stack(kept), [], loss()
    for draw in range(3):
        with moved(model, 0.1, draw):
            noisy.append(loss())
    return {
        "cosine": likeness(streams).mean().item(),
        "probe": probe_accuracy(streams[-1].flatten(0, 1).cpu(), tokens.flatten().cpu()),
        "removal": float(np.mean(rises_without(model.blocks[1:-1], loss))),
        "noise": float(np.mean(noisy)) - base,
    }


def untrained_probe(seed, n_layers, d_model, context, corpus):
    """A trial: how well a probe finds the input byte at the first block's input and behind an untrained stack."""
    config, task, _ = byte_model(1, context=context, corpus=corpus, n_layers=n_layers, d_model=d_model, ffn="relu")
    model, tokens = model_of("pre", config, seed), task.validation(128)[0].to(device())
    with (
        torch.no_grad(),
        capture(model.blocks[:1], inputs=True) as given,
        capture(model.blocks[-1:]) as returned,
    ):
        model(tokens)
    streams = {"behind": returned[0], "at_input": given[0][0]}
    bytes_read = tokens.flatten().cpu()
    return {name: probe_accuracy(x.flatten(0, 1).cpu(), bytes_read) for name, x in streams.items()}
