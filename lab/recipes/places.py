"""Positions and order in a model without position encoding: probes before and after training."""

from dataclasses import dataclass

import torch

from lab.device import device
from lab.measure.linear_probe import held_out_r2
from lab.models.gpt import Transformer
from lab.recipes.byte_model import WINDOWS, byte_model, ngram_baselines, validation_loss
from lab.tasks.code import Code
from lab.training import cross_entropy, fit

MARKER = 0  # a byte that no program text contains


@dataclass(frozen=True)
class Marked(Code):
    """Windows of text whose first byte is a start marker, which a head can detect."""

    def _windows(self, text, starts):
        tokens, targets = super()._windows(text, starts)
        tokens[:, 0] = MARKER
        return tokens, targets


def places(
    seed, position, n_layers, d_model, n_heads, context, batch, learning_rate, steps, corpus
):
    """Train a byte model on windows with a start marker and probe it before and after.

    Training ends below the trigram loss or after `steps`. Every row holds what `fit` returns about
    the run, the n-gram losses of the bytes that `steps` would read, and `final`, the loss of the
    trained model on the test windows. Rows by `what`:

    curve  loss on the test windows after `step` steps
    probe  by `stage` (untrained, trained) and `layer`, 0 the embeddings: r2, the held-out R² of a linear map from
           the stream to the position
    order  by `stage`: rise, increase of the loss at the last byte of a window, in nats, with shuffled context
    """
    fields = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "position": position}
    options = {"batch": batch, "learning_rate": learning_rate, "corpus": corpus}
    config, plain, schedule = byte_model(steps, context=context, **options, **fields)
    task = Marked(plain.context, plain.path)
    tables = ngram_baselines(task, schedule, seed)
    mark = {"mark": ("loss", "<", tables["trigram"]), "until_mark": True}
    test = {"evaluate": lambda m: {"loss": validation_loss(m, task)}} | mark
    model = Transformer(config, seed=seed).to(device())
    found = {"untrained": (probed(model, task), shuffling_cost(model, task))}
    run, history = fit(model, task, schedule, seed=seed, every=50, **test)
    run |= tables | {"final": history.loss.iloc[-1], "taken": history.step.iloc[-1]}
    found["trained"] = probed(model, task), shuffling_cost(model, task)
    rows = [{"what": "curve"} | row for row in history[["step", "loss"]].to_dict("records")]
    for stage, (by_layer, rise) in found.items():
        rows += [
            {"what": "probe", "stage": stage, "layer": i, "r2": r2} for i, r2 in enumerate(by_layer)
        ]
        rows += [{"what": "order", "stage": stage, "rise": rise}]
    return [run | row for row in rows]


@torch.no_grad()
def probed(model, task, windows=WINDOWS):
    """Held-out R² of a linear map from the stream to the position: embeddings, then each layer."""
    tokens = task.validation(windows)[0].to(next(model.parameters()).device)
    place = torch.arange(tokens.shape[1]).expand(tokens.shape).flatten()
    x = model.position.at_input(model.embedding(tokens))
    streams = [x]
    for block in model.blocks:
        x = block(x, causal=True)
        streams.append(x)
    return [held_out_r2(stream.flatten(0, 1), place) for stream in streams]


@torch.no_grad()
def shuffling_cost(model, task, windows=WINDOWS):
    """Increase of the loss at the last target if the bytes between first and last are shuffled.

    In nats. A one-layer model without positions shows none: its output at the last byte does not
    depend on the order of the others.
    """
    tokens, targets = (x.to(next(model.parameters()).device) for x in task.validation(windows))
    draw = torch.Generator().manual_seed(0)
    order = [torch.randperm(tokens.shape[1] - 2, generator=draw) + 1 for _ in range(windows)]
    inner = torch.stack(order).to(tokens.device)
    shuffled = tokens.clone()
    shuffled[:, 1:-1] = tokens.gather(1, inner)
    before = cross_entropy(model(tokens)[:, -1:], targets[:, -1:]).item()
    after = cross_entropy(model(shuffled)[:, -1:], targets[:, -1:]).item()
    return after - before
