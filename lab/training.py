"""The training loop, independent of task and model: draw batches, step, return a tidy history."""

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
    """Settings of the training loop: AdamW with linear warm-up and cosine decay.

    The learning rate decays to `min_lr_ratio` x learning_rate. Gradients are clipped to norm
    `clip`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    steps: int = Field(ge=0)
    batch: int = Field(32, ge=1)  # sequences per step
    learning_rate: float = Field(2e-3, gt=0, allow_inf_nan=False)
    warmup: int = Field(100, ge=0)  # steps
    min_lr_ratio: float = Field(0.1, ge=0, le=1)  # final over peak learning rate
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = Field(0.01, ge=0)
    decay_on: str = ""  # weight decay only on matrices whose name contains this, such as ".ffn."
    clip: float = Field(1.0, gt=0)  # inf: no clipping

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values):
        return names.known_fields(cls, values)

    def rate(self, step):
        """Learning rate at a step, counted from 0."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.learning_rate * (
            self.min_lr_ratio + (1 - self.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * done))
        )


def cross_entropy(logits, targets, reduction="mean"):
    """Cross-entropy in nats per target; targets of -100 are ignored.

    The last axes of logits (b, t, ...) hold one row of class scores per target.
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
    """Train the model in place and return its history, one row per recorded step.

    Columns: step, loss, learning_rate, diverged, and the keys of `evaluate`.

    draw(generator, batch) -> (inputs, targets) on the CPU; the order of the data depends on `seed`
    alone. Inputs are a tensor, or a tuple of tensors for models with several inputs.

    loss(model, inputs, targets) -> scalar; default: mean cross-entropy of model(inputs), nats per
    target.

    evaluate(model) -> dict of numbers; it is called at step 0, every `every` steps and at the end.
    These are the recorded steps.

    mark is (column, sign, number), such as ("validation", "<", 1.88) or ("accuracy", ">=", 0.95).
    It is stored in history.attrs; steps_to_mark(history) gives the first recorded step that reaches
    it.

    until ends the training at a recorded row, whose step is then not taken: at the first that reaches
    it, if it is a mark, which is also `mark` where that is None; or at the first for which
    until(row) is True.

    A loss or gradient that is not finite is a result, not an error: the history ends there with
    diverged True. The last row also has diverged True if weights, or numbers of `evaluate`, are not
    finite after the last step. A parameter without a gradient is not changed in that step. Weight
    decay acts on matrices, except those that their module lists in `undecayed`: tables that do not
    multiply activations.

    Raises ValueError for an invalid mark, for a `decay_on` that matches no matrix, and for a loss
    that is not finite because all targets of a batch are -100.
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
        raise ValueError(f"no matrix has decay_on {config.decay_on!r} in its name")
    parameters = decayed + plain
    groups = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(
        groups, config.learning_rate, config.betas, weight_decay=config.weight_decay, fused=True
    )
    history = []

    def record(step, value):
        """Append a row and return whether training ends here."""
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
            reaches_mark(row, mark)  # which refuses a wrong one
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
                f"the batch of step {step} asks for no answer: all its targets are -100"
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
    """Parameters that modules exclude from weight decay by naming them in `undecayed`."""
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
        words = f"one of {', '.join(row)}; one of {' '.join(SIGNS)}; a number"
        raise ValueError(f"a mark is ({words}), not {mark!r}") from None


def steps_to_mark(history):
    """The step of the first recorded row that reaches the history's mark, or None."""
    rows = history.to_dict("records")
    return next((row["step"] for row in rows if reaches_mark(row, history.attrs["mark"])), None)


def fit(model, task, config, *, seed, **options):
    """Run train() on task.batch and return (run, history); `run` is a dict of numbers to record.

    Its keys: fingerprint (of the outputs before training), data_hash, parameters (their number),
    training_loss (the last recorded one), diverged, diverged_at (a step or None), and with a mark
    also mark (its number) and steps_to_mark.
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
    """Short hash of the logits on `inputs`; equal for models built alike."""
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
    """Results of run(rates), with more learning rates while the best is the smallest or largest.

    run([rate, ...]) returns a table with columns learning_rate and `score`; lower is better. If the
    best rate is the smallest, half of it is run next; if it is the largest, twice it. No rate is
    added once there are `most` rates.
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


def best_rates(runs, by, score, within=0.0):
    """The best learning rate of each arm: the median of its rates within `within` of the best.

    runs: a table with learning_rate, the columns `by` that name an arm, and `score`, where lower
    is better. Of two middle rates the lower is taken. Returns a Series with index `by`.
    """
    behind = runs[score] - runs.groupby(by)[score].transform("min")
    rates = runs[behind <= within].groupby(by).learning_rate
    return rates.quantile(0.5, interpolation="lower")
