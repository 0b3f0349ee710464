"""Lengths beyond those of training: an encoding learns to copy or to add up to a mark, then texts get longer.

    tokens   c  a  f  =  c  a  f       copying: for the answer "a" the right source is the "a" of the text

Every arm is trained until it reaches the same mark in range, at a constant rate after the warm-up, or as long as its
steps last: so steps to the mark are a result, and no arm's accuracy hangs on where a schedule ends.
"""

import numpy as np
import pandas as pd
import torch

from lab.engine.device import device
from lab.measure.attention import attention_probe, mass_on
from lab.measure.lengths import accuracy_by_length, order_in_similarity, similarity
from lab.models import ModelConfig, Transformer
from lab.recipes.comparison import problem
from lab.tasks.lengths import Copy
from lab.training import TrainConfig, fit, moved

STRETCHED = {"interpolated": "interpolation", "larger base": "ntk"}  # ways to fit rotary positions to longer texts
LOOKED_AT = 16  # texts of a length in which attention is looked at
LEAST = 0.01  # lighter weights are left out of maps


def beyond(
    seed, task, position, model, steps, batch, learning_rate, lengths, mark, texts=128, every=25, until_mark=True
):
    """One training, then tests at `lengths`: rows of accuracy, of attention, and at seed 0 of a map and of a table.

    task, model: dicts of a task's kind and options, of ModelConfig's fields. The mark is a share of right answers at
    the task's longest length, held-out texts; it is looked for every `every` steps. Rows have `what`:

    curve      length (the longest), step, accuracy, exact, loss: while it learned, step 0 first
    accuracy   length, accuracy (share of right answers), exact (of texts with all right), loss (nats an answer); `way`
               as trained, or, for rotary and beyond training, interpolated or with a larger base to fit that length
    attention  length, value: copying only, weight on the right source of the head with most of it in range
    map        i, j, value: copying only, that head's weights above LEAST, query i and key j, at 1.5 times the longest
    cosine     i, j, value: of a learned table's rows without their mean, over the trained positions

    Every row also has fingerprint, data_hash, parameters, diverged, steps_to_mark (a hole where it was not reached),
    steps_taken, in_range and loss_in_range (the last of the curve), and of a learned table order_before, order_after:
    how well its cosines follow nearness.
    """
    about = problem(task)
    context = about.text_length(max(lengths))
    config = ModelConfig(vocabulary=about.vocabulary, context=context, position=position, **model)
    whole = Transformer(config, seed=seed).to(device())
    before = _order(whole, about)
    schedule = TrainConfig(steps=steps, batch=batch, learning_rate=learning_rate, min_lr_ratio=1.0)
    options = {"mark": ("accuracy", ">=", mark), "until_mark": until_mark, "every": every}
    options["evaluate"] = lambda learner: _tested(learner, about, [about.longest], texts)[0]
    run, history = fit(whole, about, schedule, seed=seed, **options)
    told = {name: run[name] for name in ("fingerprint", "data_hash", "parameters", "diverged", "steps_to_mark")}
    last = history.iloc[-1]
    told |= {"steps_taken": int(last.step), "in_range": float(last.accuracy), "loss_in_range": float(last.loss)}
    told |= {"order_before": before, "order_after": _order(whole, about)}
    curve = history[["step", "length", "accuracy", "exact", "loss"]].assign(what="curve").to_dict("records")
    rows = [row | {"what": "accuracy", "way": "as trained"} for row in _tested(whole, about, lengths, texts)]
    rows += _stretched(whole, about, lengths, texts) + _watched(whole, about, lengths, seed == 0)
    if seed == 0 and (table := _table(whole, about)) is not None:
        rows += _entries("cosine", similarity(table))
    return [told | row for row in curve + rows]


def swept_rates(run, rates, most=7):
    """Rows of run(rates), one a rate: first of these, then of half or twice the best while it is an end, `most` in all.

    run gives a table with learning_rate and loss_in_range, as trials of `beyond` do.
    """
    rates, found = list(rates), pd.DataFrame()
    while rates:
        found = pd.concat([found, run(rates).drop_duplicates("learning_rate")])
        known, best = found.learning_rate, float(found.set_index("learning_rate").loss_in_range.idxmin())
        outward = [best / 2] * bool(best == known.min()) + [best * 2] * bool(best == known.max())
        rates = outward if len(known) < most else []
    return found


def usual_rates(found, by, within=0.05):
    """The rate of each arm, indexed by the columns `by`: of those within so many nats of its best the lower middle."""
    behind = found.loss_in_range - found.groupby(by).loss_in_range.transform("min")
    return found[behind <= within].groupby(by).learning_rate.quantile(0.5, interpolation="lower")


def source_key(order, n):
    """For each query of a copy of n symbols, the key whose symbol is the answer, or -1: (1, 2n + 1)."""
    q = torch.arange(2 * n + 1)
    key = 2 * n - 1 - q if order == "reversed" else q - n
    return key.where((q >= n) & (q < 2 * n), -1)[None]


def _tested(model, task, lengths, texts):
    """accuracy_by_length of a model as dicts."""
    with torch.no_grad():
        table = accuracy_by_length(lambda x: model(moved(x, device())).cpu(), task.of_length, lengths, size=texts)
    return table.rename(columns={"per_token": "accuracy"}).to_dict("records")


def _table(model, task):
    """The rows of a learned table for the trained positions; None of other encodings."""
    weight = getattr(getattr(model.position, "embedding", None), "weight", None)
    return None if weight is None else weight.detach().cpu()[: task.length]


def _order(model, task):
    table = _table(model, task)
    return None if table is None else order_in_similarity(similarity(table))


def _stretched(model, task, lengths, texts):
    """Rows of a rotary model whose angles are made to fit each longer text; nothing is trained."""
    rows = []
    if model.config.position != "rotary":
        return rows
    for way, option in STRETCHED.items():
        for n in (n for n in lengths if n > task.longest):
            changed = {"kind": "rotary", option: task.text_length(n) / task.length}
            other = Transformer(model.config.model_copy(update={"position": changed})).to(device()).eval()
            other.load_state_dict(model.state_dict())
            rows += [row | {"what": "accuracy", "way": way} for row in _tested(other, task, [n], texts)]
    return rows


def _watched(model, task, lengths, with_map):
    """What the copying head looks at: of all heads the one with most weight on the right source in range."""
    rows, chosen = [], None
    for n in (n for n in sorted({task.longest, *lengths}) if n >= task.longest) if isinstance(task, Copy) else ():
        tokens, _ = task.of_length(torch.Generator().manual_seed(n), LOOKED_AT, n)
        keep = with_map and n == 3 * task.longest // 2
        with torch.no_grad(), attention_probe([mass_on(source_key(task.order, n))], keep_maps=keep) as probe:
            model(moved(tokens, device()))
        table = probe.table().set_index(["call", "head"]).value
        chosen = chosen or table.idxmax()
        rows.append({"what": "attention", "length": n, "value": table[chosen]})
        if keep:
            seen = _entries("map", probe.maps[chosen[0]][:, chosen[1]].mean(0).cpu())
            rows += [row for row in seen if row["value"] >= LEAST]
    return rows


def _entries(what, matrix):
    """A row for each entry of a matrix, to three digits."""
    entries = np.ndenumerate(np.asarray(matrix))
    return [{"what": what, "i": i, "j": j, "value": round(float(value), 3)} for (i, j), value in entries]
