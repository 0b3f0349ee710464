"""A byte model read with windows longer than in training: how far an encoding extrapolates.

The same bytes are scored at every length, in two ways. Cut: the text is cut into consecutive
windows, so the first bytes of each have little context. Sliding: each window starts `stride` later
and only its last `stride` bytes are scored, so all have almost the full window as context.
"""

import torch

from lab.device import device
from lab.measure.lengths import by_bucket, window_losses
from lab.models.gpt import Transformer
from lab.recipes.byte_model import byte_model, ngram_baselines, validation_loss
from lab.tasks.code import Code
from lab.training import fit

TEXTS = 4  # passages of the test text
WAYS = ("as trained", "larger base")  # of reading with rotary positions


def longer_windows(
    seed,
    order,
    position,
    learning_rate,
    d_model,
    n_layers,
    n_heads,
    context,
    batch,
    steps,
    factors,
    scored,
    stride,
    corpus,
):
    """Train a byte model on windows of `context`, then read windows `factors` times as long.

    `order` is added to the seed of the data. Every row holds what `fit` returns about the run, the
    n-gram losses, and in_range, the loss on test windows of the training length. Rows by `what`:

    curve  loss on these windows, after `step` steps
    read   mean loss of the scored bytes by `way` (WAYS; only the first unless rotary), `windows` (cut, sliding) and
           `factor`; always the same bytes
    place  for the longest cut windows, mean loss by `place`, the first position of a bucket that ends at its double
    """
    fields = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "position": position}
    options = {"batch": batch, "learning_rate": learning_rate, "corpus": corpus}
    config, task, schedule = byte_model(steps, context=context, **options, **fields)
    tables = ngram_baselines(task, schedule, seed + order)
    test = {
        "evaluate": lambda m: {"loss": validation_loss(m, task)},
        "mark": ("loss", "<", tables["trigram"]),
    }
    longest = max(factors) * context
    model = Transformer(config.model_copy(update={"block_size": longest}), seed=seed).to(device())
    run, history = fit(model, task, schedule, seed=seed + order, every=max(1, steps // 8), **test)
    run |= tables | {"in_range": history.loss.iloc[-1]}
    rows = [{"what": "curve"} | row for row in history[["step", "loss"]].to_dict("records")]
    rows += read_longer(model, context, factors, held_out_texts(corpus, longest, scored), stride)
    return [run | row for row in rows]


def held_out_texts(corpus, start, scored):
    """Passages of the test text, (TEXTS, start + scored): `start` bytes of context come first."""
    return Code(context=start + scored, path=corpus).validation(TEXTS)[0]


@torch.no_grad()
def read_longer(model, context, factors, texts, stride):
    """The rows `read` and `place` of longer_windows for a trained model.

    `texts` are those of held_out_texts.
    """
    rows = []
    longest = max(factors) * context
    rotary = model.config.position == "rotary"
    for way in WAYS if rotary else ["as trained"]:
        for factor in [k for k in factors if k > 1 or way == "as trained"]:
            reader = stretched(model, way, factor)
            length = factor * context
            for windows, step in (("cut", length), ("sliding", stride)):
                losses = scored_losses(reader, texts, length, step, longest)
                row = {"what": "read", "way": way, "windows": windows, "factor": factor}
                rows.append(row | {"loss": losses.nanmean().item()})
                if way == "as trained" and windows == "cut" and length == longest:
                    edges = [0, *(2**i for i in range(20) if 2**i < longest)]
                    found = by_bucket(losses, edges).rename(columns={"position": "place"})[
                        ["place", "loss"]
                    ]
                    rows += [{"what": "place"} | each for each in found.to_dict("records")]
    return rows


def stretched(model, way, factor):
    """The same weights with rotary positions as trained, or with a base enlarged for `factor`."""
    if way == "as trained":
        return model
    config = model.config.model_copy(update={"position": {"kind": "rotary", "ntk": float(factor)}})
    other = Transformer(config).to(next(model.parameters()).device).eval()
    other.load_state_dict(model.state_dict())
    return other


def scored_losses(model, texts, length, step, start):
    """Loss of the bytes of all texts from index `start` on, (windows, step), see window_losses."""
    here = next(model.parameters()).device
    return torch.cat(
        [
            window_losses(lambda x: model(x.to(here)).cpu(), text, length, step, start=start)
            for text in texts
        ]
    )
