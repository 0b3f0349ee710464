"""The trial of a comparison: one model learns one task; how well it does there, and at lengths it
never saw.
"""

import torch
from torch import nn

from lab.device import device
from lab.measure.lengths import accuracy_by_length
from lab.models import ModelConfig, Transformer
from lab.models.registry import Seam
from lab.recipes.standard import Problem
from lab.training import TrainConfig, digest, fit, moved, output_fingerprint

TEXTS = 256  # of a test
SIGNS = {"accuracy": ">=", "exact": ">=", "loss": "<"}


class Model(Seam):
    """Models of one's own, nn.Modules that are built from a ModelConfig: tokens (b, t) to logits
    (b, t, d_out).
    """


def problem(task):
    """The task of {"kind": name, its options}."""
    options = dict(task)
    return Problem.kinds[options.pop("kind")](**options)


def built(config, task, context, seed) -> nn.Module:
    """The model of a dict of ModelConfig's fields, for a task, with `context` positions; "model"
    names one's own.
    """
    fields = dict(config)
    kind = fields.pop("model", "")
    sizes = {"vocabulary": task.vocabulary, "context": context, "d_out": task.d_out}
    whole = ModelConfig(**fields | sizes)
    if not kind:
        return Transformer(whole, seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model.kinds[kind](whole)


def context_of(task, lengths):
    """Positions that a model needs: for the longest text of training and tests."""
    return max([task.length, *(task.text_length(n) for n in lengths)])


def schedule_of(schedule):
    """A TrainConfig from its fields as JSON holds them."""
    return TrainConfig(
        **{name: tuple(v) if isinstance(v, list) else v for name, v in schedule.items()}
    )


def leaks(predict, tokens, targets, vocabulary):
    """Whether outputs look at the answers: these stand further on in the input, and what stands
    there changes them.
    """
    if targets.ndim != 2 or targets.shape != tokens.shape:
        return 0
    asked = targets[:, :-1] != -100
    if not asked.any() or not (targets[:, :-1] == tokens[:, 1:])[asked].float().mean() > 0.5:
        return 0
    half = tokens.shape[1] // 2
    other = tokens.clone()
    other[:, half:] = (other[:, half:] + 1) % vocabulary
    return int((predict(tokens)[:, :half] - predict(other)[:, :half]).abs().max().item() > 1e-3)


def trained(seed: int, task, config, schedule, lengths, measure, pass_at, rows=8):
    """How one model does while it learns and at the end: a row for each recorded step, then one for
    each test length.

    task, config and schedule are dicts of their fields; `pass_at` is the mark that `measure` has to
    reach. Rows hold accuracy, exact and loss (nats an answer) by `length` and `step`, the
    training's count and hashes, and `leak`.
    """
    about, settings = problem(task), schedule_of(schedule)
    model = built(config, about, context_of(about, lengths), seed).to(device())
    lengths = lengths or [about.length]
    of_length = getattr(about, "of_length", None) or (
        lambda generator, size, n: about.validation(size)
    )

    def predict(tokens):
        return model(moved(tokens, device())).cpu()

    def tested(at):
        return accuracy_by_length(predict, of_length, at, size=TEXTS).rename(
            columns={"per_token": "accuracy"}
        )

    test = {
        "evaluate": lambda _: tested(lengths[:1]).iloc[0].to_dict(),
        "mark": (measure, SIGNS[measure], pass_at),
    }
    run, history = fit(
        model, about, settings, seed=seed, every=max(1, settings.steps // rows), **test
    )
    with torch.no_grad():
        tokens, targets = of_length(torch.Generator().manual_seed(1), 8, lengths[0])
        leak = leaks(predict, tokens, targets, about.vocabulary)
        after = output_fingerprint(model, about.batch(torch.Generator().manual_seed(0), 8)[0])
    del run["mark"]
    told = run | {
        "outputs": f"{run.pop('fingerprint')} {after}",
        "leak": leak,
        "steps": settings.steps,
    }
    told |= {"batch": settings.batch, "learning_rate": settings.learning_rate}
    curve = history[["step", "length", "accuracy", "exact", "loss"]].iloc[:-1].to_dict("records")
    end = tested(lengths).assign(step=settings.steps).to_dict("records")
    return [told | row for row in curve + end]


def switched(task, config, schedule, lengths):
    """Hash of a model's outputs before and after two steps of training: arms that share it are one."""
    about = problem(task)
    settings = schedule_of(schedule | {"steps": 2, "warmup": 0})
    model = built(config, about, context_of(about, lengths), 0)
    tokens, _ = about.batch(torch.Generator().manual_seed(0), 8)
    with torch.no_grad():
        before = model(tokens)
    with torch.random.fork_rng(devices=[]):
        fit(model, about, settings, seed=0)
    with torch.no_grad():
        return digest(before, model(tokens))
