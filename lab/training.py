"""A training loop for any task and model, learning-rate sweeps, and hashes of models and data."""

import hashlib
import itertools
import math
import operator
from numbers import Real

import pandas as pd
import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field, model_validator

from lab import names


class TrainConfig(BaseModel):
    """Settings of the training loop: AdamW, linear warm-up, cosine decay, gradient clipping.

    The learning rate rises to `learning_rate` and then decays to min_lr_ratio x learning_rate.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    steps: int = Field(ge=0)
    batch: int = Field(32, ge=1)  # sequences per step
    learning_rate: float = Field(2e-3, gt=0, allow_inf_nan=False)
    warmup: int = Field(100, ge=0)  # steps
    min_lr_ratio: float = Field(0.1, ge=0, le=1)  # final / peak learning rate
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = Field(0.01, ge=0)
    decay_on: str = ""  # decay only matrices whose name contains this, such as ".ffn."
    clip: float = Field(1.0, gt=0)  # largest gradient norm; inf: no clipping

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values):
        return names.known_fields(cls, values)

    def rate(self, step):
        """The learning rate at a step, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * (
            self.min_lr_ratio + (1 - self.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * done))
        )


def cross_entropy(logits, targets, reduction="mean"):
    """Cross-entropy in nats per target. Targets of -100 are ignored.

    `logits` is reshaped to (targets.numel(), classes).
    """
    classes = logits.numel() // targets.numel()
    return F.cross_entropy(
        logits.reshape(-1, classes), targets.flatten(), reduction=reduction, ignore_index=-100
    )


def train(
    model,
    draw,
    config,
    *,
    seed=0,
    loss=None,
    evaluate=None,
    every=0,
    mark=None,
    until=None,
):
    """Train the model in place. Returns its history: a DataFrame with one row per recorded step.

    The columns are step, loss, learning_rate, diverged, and the keys of `evaluate`. Recorded steps
    are step 0, every `every`-th step (none if `every` is 0) and the last step. If all steps run,
    the last row has the loss of the last batch, before the last update, and the evaluation after
    that update.

    draw(generator, batch) returns (inputs, targets) on the CPU. The inputs are a tensor, or a tuple
    of tensors for models with several inputs. `seed` seeds this generator only. Dropout draws from
    torch's global random generators, which a trial seeds and this function does not.

    loss(model, inputs, targets) returns a scalar tensor. Default: the mean cross-entropy of
    model(inputs), in nats per target.

    evaluate(model) returns a dict of numbers. It is called at every recorded step, in evaluation
    mode and without gradients.

    mark is (column, sign, number), such as ("validation", "<", 1.88) or ("accuracy", ">=", 0.95).
    It is stored in history.attrs["mark"]. steps_to_mark(history) returns the first recorded step
    that reaches it.

    until stops training early. It is a mark or a function of a row. Training stops at the first
    recorded row that reaches the mark, or for which until(row) is True, before the optimizer step.
    If `mark` is None, a mark passed as `until` is also used as `mark`.

    If a loss or a gradient norm is not finite, training stops, and the last row has diverged True
    and loss NaN. The last row also has these values if, after the last step, a weight is not finite
    or a number of `evaluate` that was finite at step 0 no longer is.

    Parameters without a gradient in a step are not updated. Weight decay applies to parameters with
    two or more axes, except those that their module lists in `undecayed`, such as tables of
    position biases.

    Raises ValueError for an invalid mark, for a `decay_on` that matches no matrix, and if a loss is
    not finite because all targets of the batch are -100.
    """
    if mark is None and not callable(until):
        mark = until
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    loss = loss or (lambda model, inputs, targets: cross_entropy(model(inputs), targets))
    decayed = []
    plain = []
    tables = undecayed(model)
    for name, p in model.named_parameters():
        if p.requires_grad:
            if p.ndim >= 2 and p not in tables and config.decay_on in name:
                decayed.append(p)
            else:
                plain.append(p)
    if config.decay_on and not decayed:
        raise ValueError(f"decay_on {config.decay_on!r} matches no matrix name")
    parameters = decayed + plain
    groups = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(
        groups, config.learning_rate, config.betas, weight_decay=config.weight_decay, fused=True
    )
    history = []

    def record(step, value):
        """Append a row and return whether training stops here."""
        row = {
            "step": step,
            "loss": value,
            "learning_rate": config.rate(step),
            "diverged": not math.isfinite(value),
        }
        if evaluate:
            training = [module for module in model.modules() if module.training]
            model.eval()
            with torch.no_grad():
                row |= evaluate(model)
            for module in training:
                module.training = True
        history.append(row)
        if mark is not None:
            reaches_mark(row, mark)  # raises ValueError for an invalid mark
        if until is None:
            return False
        return until(row) if callable(until) else reaches_mark(row, until)

    model.train()
    for step in range(config.steps):
        inputs, targets = (to_device(x, device) for x in draw(generator, config.batch))
        value = loss(model, inputs, targets)
        optimizer.zero_grad()
        value.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, config.clip)
        finite = bool(torch.isfinite(value) & torch.isfinite(norm))
        if not finite and isinstance(targets, torch.Tensor) and (targets == -100).all():
            raise ValueError(
                f"all targets in the batch of step {step} are -100 (ignored), "
                "so the loss is undefined"
            )
        due = step == 0 or (every and step % every == 0) or not finite
        ends = due and record(step, value.item() if finite else math.nan)
        if ends or not finite:
            break
        for group in optimizer.param_groups:
            group["lr"] = config.rate(step)
        optimizer.step()
    else:
        if config.steps:
            record(config.steps, value.item())
            first, last = history[0], history[-1]
            lost = any(
                not_finite(x) and not not_finite(first.get(name, x)) for name, x in last.items()
            )
            if lost or any(not_finite(p.detach().norm()) for p in parameters):
                last |= {"loss": math.nan, "diverged": True}
    model.eval()
    history = pd.DataFrame(history)
    history.attrs["mark"] = mark
    return history


def undecayed(model):
    """The parameters that their modules list in `undecayed`; they get no weight decay."""
    return {m.get_parameter(name) for m in model.modules() for name in getattr(m, "undecayed", ())}


def not_finite(x):
    """Whether x is a number or a scalar tensor that is not finite."""
    return isinstance(x, Real | torch.Tensor) and not math.isfinite(x)


SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def reaches_mark(row, mark):
    """Whether a row of a history reaches the mark (column, sign, number).

    Raises ValueError for an invalid mark or an unknown column.
    """
    try:
        column, sign, number = mark
        return bool(SIGNS[sign](row[column], number))
    except (KeyError, TypeError, ValueError):
        words = f"column in ({', '.join(row)}), sign in ({' '.join(SIGNS)})"
        raise ValueError(
            f"a mark must be (column, sign, number), with {words}, got {mark!r}"
        ) from None


def steps_to_mark(history):
    """The step of the first recorded row that reaches the history's mark, or None."""
    rows = history.to_dict("records")
    return next((row["step"] for row in rows if reaches_mark(row, history.attrs["mark"])), None)


def fit(model, task, config, *, seed, **options):
    """Call train() with task.batch. Returns (run, history); `run` is a dict of results.

    The keys of `run` are fingerprint (a hash of the outputs before training), data_hash (of the
    first batches), parameters (their number), training_loss (the last recorded loss), diverged,
    diverged_at (a step or None), and, with a mark, mark (its number) and steps_to_mark. `options`
    are those of train(). `seed` does not seed torch's global random generators, from which dropout
    draws; a trial seeds them.
    """
    tokens, _ = task.batch(torch.Generator().manual_seed(0), 8)
    run = {
        "fingerprint": output_fingerprint(model, tokens),
        "data_hash": data_fingerprint(task.batch, config, seed),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    history = train(model, task.batch, config, seed=seed, **options)
    last = history.iloc[-1] if len(history) else {"loss": math.nan, "diverged": False}
    diverged = bool(last["diverged"])
    run |= {
        "training_loss": last["loss"],
        "diverged": diverged,
        "diverged_at": int(last["step"]) if diverged else None,
    }
    if mark := history.attrs["mark"]:
        run |= {"mark": mark[-1], "steps_to_mark": steps_to_mark(history)}
    return run, history


@torch.no_grad()
def output_fingerprint(model, inputs):
    """Short hash of the outputs for `inputs`, to check whether two models are equal."""
    device = next(model.parameters()).device
    return digest(model(to_device(inputs, device)))


def to_device(inputs, device):
    """Move a tensor, or each tensor of a tuple, to the device."""
    return tuple(x.to(device) for x in inputs) if isinstance(inputs, tuple) else inputs.to(device)


def data_fingerprint(draw, config, seed, batches=3):
    """Short hash of the first batches that train() draws with this seed."""
    generator = torch.Generator().manual_seed(seed)
    return digest(*(x for _ in range(batches) for x in draw(generator, config.batch)))


def digest(*tensors):
    """Short hash of tensors and tuples of tensors, in order."""
    sha = hashlib.sha256()
    for x in itertools.chain.from_iterable(x if isinstance(x, tuple) else (x,) for x in tensors):
        plain = x.detach().cpu().contiguous().flatten()
        sha.update(plain.view(torch.uint8).numpy().tobytes())  # numpy has no bfloat16
    return sha.hexdigest()[:12]


def tune(run, rates, score, most=7):
    """Sweep learning rates, and extend the sweep while the best rate is the smallest or largest.

    run([rate, ...]) returns a table with the columns learning_rate and `score`; lower is better.
    If the smallest rate is the best, half of it is run next; if the largest is, twice it. The
    sweep is not extended once it has `most` rates. Returns the table of all runs.
    """
    found = pd.DataFrame()
    pending = list(rates)
    while pending:
        found = pd.concat([found, run(pending).drop_duplicates("learning_rate")])
        rates_run = found.learning_rate
        best = float(found.set_index("learning_rate")[score].idxmin())
        pending = []
        if len(rates_run) < most and best == rates_run.min():
            pending.append(best / 2)
        if len(rates_run) < most and best == rates_run.max():
            pending.append(best * 2)
    return found
