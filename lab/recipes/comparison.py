"""The trial of a comparison: train one model on one task, and test it, also at unseen lengths."""

import torch
from torch import nn

from lab.device import device
from lab.measure.lengths import accuracy_by_length
from lab.models import ModelConfig, Transformer
from lab.models.registry import Seam
from lab.recipes.standard import Problem
from lab.training import TrainConfig, digest, fit, output_fingerprint, to_device

TEXTS = 256  # texts per test
SIGNS = {"accuracy": ">=", "exact": ">=", "loss": "<"}


class Model(Seam):
    """The user's own models: nn.Modules built from a ModelConfig.

    They map tokens (b, t) to logits (b, t, d_out).
    """


def problem(task):
    """The task described by {"kind": name, **options}."""
    options = dict(task)
    return Problem.kinds[options.pop("kind")](**options)


def built(config, task, context, seed) -> nn.Module:
    """The model described by a dict of ModelConfig fields, for a task, with `context` positions.

    The entry "model", if present, names a user's own model.
    """
    fields = dict(config)
    kind = fields.pop("model", "")
    sizes = {"vocab_size": task.vocabulary, "block_size": context, "d_out": task.d_out}
    whole = ModelConfig(**fields | sizes)
    if not kind:
        return Transformer(whole, seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model.kinds[kind](whole)


def context_of(task, lengths):
    """Number of positions that a model needs for the longest text of training and tests."""
    return max([task.length, *(task.text_length(n) for n in lengths)])


def schedule_of(schedule):
    """A TrainConfig from a JSON dict of its fields."""
    return TrainConfig(
        **{name: tuple(v) if isinstance(v, list) else v for name, v in schedule.items()}
    )


def leaks(predict, tokens, targets, vocabulary):
    """1 if changing later tokens changes earlier outputs, else 0.

    Such a model reads its answers from the input. Only tasks whose targets mostly equal the next
    input token are tested; for others the result is 0.
    """
    if targets.ndim != 2 or targets.shape != tokens.shape:
        return 0
    has_answer = targets[:, :-1] != -100
    if (
        not has_answer.any()
        or not (targets[:, :-1] == tokens[:, 1:])[has_answer].float().mean() > 0.5
    ):
        return 0
    half = tokens.shape[1] // 2
    other = tokens.clone()
    other[:, half:] = (other[:, half:] + 1) % vocabulary
    return int((predict(tokens)[:, :half] - predict(other)[:, :half]).abs().max().item() > 1e-3)


def trained(seed: int, task, config, schedule, lengths, measure, pass_at, rows=8):
    """Train one model and test it: one row per recorded step, then one per test length.

    task, config and schedule are dicts of fields; `pass_at` is the mark that `measure` must reach.
    Rows hold accuracy, exact and loss (nats per answer) by `length` and `step`, the `run` of
    training.fit, and `leak`.
    """
    about = problem(task)
    settings = schedule_of(schedule)
    model = built(config, about, context_of(about, lengths), seed).to(device())
    lengths = lengths or [about.length]
    of_length = getattr(about, "of_length", None) or (
        lambda generator, size, n: about.validation(size)
    )

    def predict(tokens):
        return model(to_device(tokens, device())).cpu()

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
    common = run | {
        "outputs": f"{run.pop('fingerprint')} {after}",
        "leak": leak,
        "steps": settings.steps,
    }
    common |= {"batch": settings.batch, "learning_rate": settings.learning_rate}
    curve = history[["step", "length", "accuracy", "exact", "loss"]].iloc[:-1].to_dict("records")
    end = tested(lengths).assign(step=settings.steps).to_dict("records")
    return [common | row for row in curve + end]


def switched(task, config, schedule, lengths):
    """Hash of a model's outputs before and after two training steps: equal for equal arms."""
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
