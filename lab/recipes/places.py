"""Does a model without position encoding know where a token stands, and what came before what?
Probes, before and after training.
"""

from dataclasses import dataclass

import torch

from lab.device import device
from lab.measure.linear_probe import held_out_r2
from lab.models.gpt import Transformer
from lab.recipes.byte_model import WINDOWS, byte_model, table_losses, validation_loss
from lab.tasks.code import Code
from lab.training import cross_entropy, fit

MARKER = 0  # a byte that no program text holds


@dataclass(frozen=True)
class Marked(Code):
    """Windows of text whose first byte is a start marker: what theory wants, so that a head can
    find the beginning.
    """

    def _windows(self, text, starts):
        tokens, targets = super()._windows(text, starts)
        tokens[:, 0] = MARKER
        return tokens, targets


def places(
    seed, position, n_layers, d_model, n_heads, context, batch, learning_rate, steps, corpus
):
    """Train a model of the next byte on windows with a start marker, until it is below the trigram
    table or `steps` are over; probe it before and after.

    Every row holds what `fit` keeps, the losses of the tables of the bytes that `steps` would read,
    and `final`, the loss of the trained model on the test windows. Rows by `what`:

    curve  loss on the test windows after `step` steps probe  by `stage` (untrained, trained) and
    `layer`, 0 the embeddings: r2, the share of the variance of the position
           that a linear map of the stream explains, on windows that it was not fitted on
    order  by `stage`: rise, nats that the last byte of a window costs more when those before it are
    shuffled
    """
    fields = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "position": position}
    options = {"batch": batch, "learning_rate": learning_rate, "corpus": corpus}
    config, plain, schedule = byte_model(steps, context=context, **options, **fields)
    task = Marked(plain.context, plain.path)
    tables = table_losses(task, schedule, seed)
    mark = {"mark": ("loss", "<", tables["trigram"]), "until_mark": True}
    test = {"evaluate": lambda m: {"loss": validation_loss(m, task)}} | mark
    model = Transformer(config, seed=seed).to(device())
    found = {"untrained": (probed(model, task), rise_without_order(model, task))}
    run, history = fit(model, task, schedule, seed=seed, every=50, **test)
    run |= tables | {"final": history.loss.iloc[-1], "taken": history.step.iloc[-1]}
    found["trained"] = probed(model, task), rise_without_order(model, task)
    rows = [{"what": "curve"} | row for row in history[["step", "loss"]].to_dict("records")]
    for stage, (by_layer, rise) in found.items():
        rows += [
            {"what": "probe", "stage": stage, "layer": i, "r2": r2} for i, r2 in enumerate(by_layer)
        ]
        rows += [{"what": "order", "stage": stage, "rise": rise}]
    return [run | row for row in rows]


@torch.no_grad()
def probed(model, task, windows=WINDOWS):
    """Held-out R2 of a linear map from the stream to the position: of the embeddings, and after
    each layer.
    """
    tokens = task.validation(windows)[0].to(next(model.parameters()).device)
    place = torch.arange(tokens.shape[1]).expand(tokens.shape).flatten()
    streams = [x := model.position.at_input(model.embedding(tokens))]
    streams += [x := block(x, causal=True) for block in model.blocks]
    return [held_out_r2(stream.flatten(0, 1), place) for stream in streams]


@torch.no_grad()
def rise_without_order(model, task, windows=WINDOWS):
    """Nats that the last target costs more when all bytes between the first and the last of a
    window are shuffled.

    A model of one layer without positions cannot tell: what it makes of the last byte holds the
    others in no order.
    """
    tokens, targets = (x.to(next(model.parameters()).device) for x in task.validation(windows))
    draw = torch.Generator().manual_seed(0)
    order = [torch.randperm(tokens.shape[1] - 2, generator=draw) + 1 for _ in range(windows)]
    inner = torch.stack(order).to(tokens.device)
    shuffled = tokens.clone()
    shuffled[:, 1:-1] = tokens.gather(1, inner)
    before, after = (
        cross_entropy(model(x)[:, -1:], targets[:, -1:]).item() for x in (tokens, shuffled)
    )
    return after - before
