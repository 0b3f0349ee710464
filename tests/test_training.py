"""The training loop: determinism, recording, optimization and divergence."""

import copy
import inspect
import math
import re

import pandas as pd
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from lab.models import ModelConfig, Transformer
from lab.models.gpt import SEAMS, Mixer
from lab.tasks.sequences import Lookup
from lab.tasks.task import accuracy
from lab.training import (
    TrainConfig,
    cross_entropy,
    data_fingerprint,
    fit,
    output_fingerprint,
    steps_to_mark,
    train,
    tune,
    undecayed,
)

TASK = Lookup(offsets=(1, 2, 3, 4), vocabulary=8, length=12)


def build(seed=0, **fields):
    sizes = {"vocab_size": 8, "block_size": 12, "d_model": 32, "n_layers": 1, "d_out": TASK.d_out}
    return Transformer(ModelConfig(**(sizes | fields)), seed=seed)


def short(**fields):
    return TrainConfig(**({"steps": 12, "batch": 4, "warmup": 3} | fields))


def copies(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def decay_once(model, **fields):
    """Take one step with zero gradients and a decay factor of 0.95; return the parameters before it."""
    before = copies(model)
    config = short(weight_decay=0.5, warmup=0, learning_rate=0.1, steps=1, **fields)
    train(model, TASK.batch, config, loss=lambda model, *_: sum(p.sum() for p in model.parameters()) * 0)
    return before


def test_training_is_bitwise_deterministic_given_the_seed():
    def run(seed, noise):
        torch.manual_seed(noise)
        model = build(seed)
        history = train(model, TASK.batch, short(), seed=seed, every=1)
        return history, model.state_dict()

    (first, weights), (again, same), (other, _) = run(1, noise=1), run(1, noise=2), run(2, noise=1)
    assert first.equals(again)
    assert all(torch.equal(weights[name], same[name]) for name in weights)
    assert (first.loss != other.loss).all()


def test_batches_depend_on_seed_and_size_but_not_on_the_model():
    def batches_of(seed, model):
        batches = []

        def draw(generator, size):
            batches.append(TASK.batch(generator, size))
            return batches[-1]

        train(model, draw, short(), seed=seed)
        return torch.stack([tokens for tokens, _ in batches])

    first = batches_of(1, build())
    assert len(first) == 12 and len(first.unique(dim=0)) == 12
    assert torch.equal(batches_of(1, build(5, n_heads=2, position="learned")), first)
    assert not torch.equal(batches_of(2, build()), first)
    fingerprints = [data_fingerprint(TASK.batch, short(), seed) for seed in (1, 1, 2)]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]
    assert data_fingerprint(TASK.batch, short(batch=5), 1) != fingerprints[0]


@pytest.mark.parametrize("seed, position", [(0, "rotary"), (1, "learned")])
def test_small_model_learns_lookup(seed, position):
    model = build(seed, n_heads=4, position=position)
    tokens, targets = TASK.batch(torch.Generator().manual_seed(99), 200)
    assert accuracy(model(tokens), targets) < 0.3, "chance is 1/8"
    history = train(model, TASK.batch, TrainConfig(steps=400, learning_rate=5e-3, warmup=20), seed=seed)
    assert accuracy(model(tokens), targets) > 0.97
    assert history.loss.iloc[-1] < 0.2 < math.log(8) < history.loss.iloc[0] + 0.5
    assert not history.diverged.any()


def test_non_finite_loss_ends_the_history_as_diverged():
    exploding = train(build(norm="none"), TASK.batch, short(steps=200, learning_rate=1e30, warmup=0), every=1)
    assert exploding.diverged.tolist() == [False] * (len(exploding) - 1) + [True]
    assert exploding.step.tolist() == list(range(len(exploding))) and len(exploding) < 50
    assert not math.isfinite(exploding.loss.iloc[-1])


@pytest.mark.parametrize("at", [0, 4, 5])
def test_divergence_adds_one_row_at_its_step(at):
    calls = []

    def loss(model, inputs, targets):
        calls.append(1)
        return cross_entropy(model(inputs), targets) * (math.nan if len(calls) == at + 1 else 1)

    history = train(build(), TASK.batch, short(), loss=loss, every=4, evaluate=lambda model: {"seen": 1})
    assert history.step.tolist() == sorted({0, 4, at} & set(range(at + 1)))
    assert history.diverged.tolist() == [False] * (len(history) - 1) + [True]
    assert len(calls) == at + 1, "training went on after divergence"


def test_learning_rate_has_linear_warmup_and_cosine_decay():
    config = TrainConfig(steps=110, learning_rate=1.0, warmup=10, min_lr_ratio=0.2)
    rates = [config.rate(step) for step in range(111)]
    assert rates[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates[10] == 1 and rates[60] == pytest.approx(0.6) and rates[110] == pytest.approx(0.2)
    assert rates[35] == pytest.approx(0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2)
    assert all(a > b for a, b in zip(rates[10:], rates[11:], strict=False))
    assert TrainConfig(steps=5, warmup=0, learning_rate=2.0).rate(0) == 2


@pytest.mark.parametrize("warmup, moved", [(0, 1e-3), (10, 1e-4)])
def test_first_adam_step_equals_the_scheduled_learning_rate(warmup, moved):
    model = build()
    before = [p.detach().clone() for p in model.parameters()]
    config = TrainConfig(steps=1, batch=4, learning_rate=1e-3, warmup=warmup, weight_decay=0.0)
    train(model, TASK.batch, config)
    largest = max((p - b).abs().max().item() for p, b in zip(model.parameters(), before, strict=True))
    assert largest == pytest.approx(moved, rel=0.02), "Adam's first step is the learning rate in every coordinate"


@pytest.mark.parametrize("clip, largest", [(0.5, 0.5), (math.inf, 8.0)])
def test_gradient_norm_is_clipped(clip, largest):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, 2))

    norms, model = [], Two()

    def loss(model, inputs, targets):
        norms.append(
            0.0 if model.weight.grad is None else model.weight.grad.norm().item()
        )  # the clipped gradient from the previous step
        return 4 * model.weight.sum()

    train(model, lambda generator, size: (torch.zeros(1), torch.zeros(1)), short(clip=clip), loss=loss)
    assert norms == pytest.approx([0.0] + [largest] * 11, rel=1e-4)


def test_weight_decay_applies_to_matrices_only():
    model = build(bias=True)
    before = decay_once(model)
    for name, p in model.named_parameters():
        expected = before[name] * (0.95 if p.ndim >= 2 else 1)
        torch.testing.assert_close(p.detach(), expected, msg=name)


def test_frozen_parameters_are_not_updated():
    model = build(bias=True)
    frozen = model.blocks[0].mixer.requires_grad_(False)
    before = copies(model)
    train(model, TASK.batch, short(weight_decay=0.5))
    kept = {name for name, p in model.named_parameters() if torch.equal(p, before[name])}
    assert kept == {f"blocks.0.mixer.{name}" for name, _ in frozen.named_parameters()}


def test_unused_parameters_are_not_updated():
    model = build()
    unused = model.blocks[0].ffn
    before = copies(unused)

    def loss(model, *_):
        return sum(p.sum() for name, p in model.named_parameters() if ".ffn." not in name)

    train(model, TASK.batch, short(weight_decay=0.5), loss=loss)
    assert all(torch.equal(p, before[name]) for name, p in unused.named_parameters())


@pytest.mark.parametrize("part, matrices", [(".ffn.", 2), (".mixer.", 2), (".weight", 6)])
def test_decay_on_restricts_weight_decay(part, matrices):
    model = build(bias=True)
    before = decay_once(model, decay_on=part)
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert len(moved) == matrices and all(part in name and before[name].ndim >= 2 for name in moved)


def test_decay_on_without_a_match_raises():
    with pytest.raises(ValueError, match="fnn"):
        train(build(), TASK.batch, short(decay_on=".fnn."))


@pytest.mark.parametrize("steps, every, expected", [
    (12, 5, [0, 5, 10, 12]), (10, 5, [0, 5, 10]), (4, 0, [0, 4]), (1, 1, [0, 1]),
])  # fmt: skip
def test_evaluation_runs_at_the_documented_steps(steps, every, expected):
    fingerprints = []

    def evaluate(model):
        assert not model.training and not torch.is_grad_enabled()
        fingerprints.append(output_fingerprint(model, torch.arange(8)[None]))
        return {"calls": len(fingerprints)}

    def loss(model, inputs, targets):
        assert model.training and torch.is_grad_enabled()
        return cross_entropy(model(inputs), targets)

    model = build()
    untrained = output_fingerprint(model, torch.arange(8)[None])
    history = train(model, TASK.batch, short(steps=steps), loss=loss, evaluate=evaluate, every=every)
    assert history.step.tolist() == expected
    assert history.calls.tolist() == list(range(1, len(expected) + 1))
    assert len(set(fingerprints)) == len(fingerprints), "two evaluations saw the same model"
    assert fingerprints[0] == untrained and fingerprints[-1] == output_fingerprint(model, torch.arange(8)[None])
    assert not model.training
    assert history.learning_rate.tolist() == [short(steps=steps).rate(step) for step in expected]


class Falling(nn.Module):
    """A single weight that decreases by the learning rate in each step: 0, -1, -2, ..."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.weight.expand(len(x), 2)


def falling(mark=None, *, steps=12, every=1, **options):
    """(run, history) of a training run in which `below` equals the step, and the loss its negative."""

    class Task:
        @staticmethod
        def batch(generator, size):
            return torch.zeros(size, 1), torch.zeros(size, dtype=torch.long)

    config = TrainConfig(steps=steps, learning_rate=1.0, warmup=0, min_lr_ratio=1.0, weight_decay=0.0, betas=(0.0, 0.0))
    options = {"loss": lambda model, *_: model.weight.sum()} | options
    return fit(Falling(), Task, config, seed=0, every=every, mark=mark, **options,
               evaluate=lambda model: {"below": round(-model.weight.item())})  # fmt: skip


@pytest.mark.parametrize("mark, every, reached", [
    (("below", ">=", 6), 1, 6), (("below", ">", 6), 1, 7), (("below", ">=", 6), 4, 8), (("below", ">", 11), 5, 12),
    (("loss", "<", -2.5), 1, 3), (("loss", "<=", 0.5), 1, 0), (["below", ">", 12], 1, None),
], ids=str)  # fmt: skip
def test_steps_to_mark_is_the_first_recorded_step_at_the_mark(mark, every, reached):
    run, history = falling(mark, every=every)
    assert history.attrs["mark"] == mark and run["mark"] == mark[2]
    assert run["steps_to_mark"] == steps_to_mark(history) == reached
    assert history.step.iloc[-1] == 12 and (history.below == history.step).all(), "a mark must not stop training"
    stopped, short_history = falling(every=every, until=mark)
    assert stopped["steps_to_mark"] == reached and short_history.step.iloc[-1] == (12 if reached is None else reached)
    assert short_history.equals(history[: len(short_history)])


def test_run_without_a_mark_has_no_mark_fields():
    run, history = falling()
    assert not {"mark", "steps_to_mark"} & run.keys() and history.attrs["mark"] is None
    assert (run["diverged"], run["diverged_at"], run["training_loss"]) == (False, None, -11)


def test_until_accepts_a_function_of_the_row():
    run, history = falling(("below", ">", 4), until=lambda row: row["step"] == 7)
    assert history.step.iloc[-1] == 7 and run["steps_to_mark"] == 5
    assert "mark" not in falling(until=lambda row: row["step"] == 7)[0]


def test_batch_without_targets_raises():
    def draw(generator, batch):
        tokens, targets = TASK.batch(generator, batch)
        return tokens, targets if draws.pop() else torch.full_like(targets, -100)

    draws = [True, False, True, True]  # popped from the end
    with pytest.raises(ValueError, match="^all targets in the batch of step 2 are -100"):
        train(build(), draw, short())


def test_unknown_train_config_field_suggests_the_correct_name():
    with pytest.raises(
        ValidationError, match="'learning_rat' is unknown; did you mean 'learning_rate'[?] Valid names: batch"
    ):
        TrainConfig(steps=3, learning_rat=1)
    with pytest.raises(ValidationError, match="'xyzzy' is unknown. Valid names: batch,"):
        TrainConfig(steps=3, xyzzy=1)


@pytest.mark.parametrize("at", [0, 5])
def test_diverged_run_reports_its_step_and_no_mark(at):
    def loss(model, *_):
        return model.weight.sum() * (math.nan if round(-model.weight.item()) == at else 1)

    run, history = falling(("below", ">", 7), loss=loss)
    assert run["diverged"] and run["diverged_at"] == at == history.step.iloc[-1]
    assert run["steps_to_mark"] is None and math.isnan(run["training_loss"])


@pytest.mark.parametrize("wrong", [("depth", "<", 1), ("below", "=", 1), ("below", "<"), 1.88, ("below", "<", "low")])
def test_invalid_mark_raises_before_the_first_update(wrong):
    calls = []
    with pytest.raises(ValueError, match=r"a mark must be .* column in \(step, loss, .*below"):
        falling(wrong, loss=lambda model, *_: calls.append(1) or model.weight.sum())
    assert len(calls) == 1


def test_evaluation_does_not_change_training():
    plain, watched = build(), build()
    train(plain, TASK.batch, short(), seed=1)
    train(
        watched, TASK.batch, short(), seed=1, every=2, evaluate=lambda model: {"x": model(torch.arange(8)[None]).sum()}
    )
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), watched.parameters(), strict=True))


def test_output_fingerprints_differ_between_arms():
    tokens, _ = TASK.batch(torch.Generator().manual_seed(0), 4)
    arms = [
        {},
        {"seed": 1},
        {"n_heads": 2},
        {"kv_heads": 1},
        {"ffn": "relu"},
        {"position": "alibi"},
        {"norm": "rmsnorm"},
    ]
    fingerprints = [output_fingerprint(build(**arm), tokens) for arm in arms]
    assert len(set(fingerprints)) == len(arms)
    assert output_fingerprint(build(), tokens) == fingerprints[0]
    assert output_fingerprint(build(), tokens + 1 - (tokens == 7).long()) != fingerprints[0]


def test_cross_entropy_averages_over_targets():
    logits, targets = torch.randn(2, 3, 10, generator=torch.Generator().manual_seed(0)), torch.full((2, 3, 2), -100)
    targets[0, 0, 0], targets[1, 2, 1] = 4, 1
    expected = -(logits[0, 0, :5].log_softmax(-1)[4] + logits[1, 2, 5:].log_softmax(-1)[1])
    assert cross_entropy(logits, targets, "sum").item() == pytest.approx(expected.item())
    assert cross_entropy(logits, targets).item() == pytest.approx(expected.item() / 2)


@pytest.mark.parametrize("wrong", [
    {"steps": -1}, {"batch": 0}, {"learning_rate": 0.0}, {"learning_rate": math.nan}, {"learning_rate": math.inf},
    {"warmup": -1}, {"final": 2.0}, {"clip": 0.0}, {"steps": True}, {"steps": 3.0}, {"weight_decay": -0.1}, {"lr": 0.1},
], ids=str)  # fmt: skip
def test_invalid_train_configs_raise(wrong):
    (name,) = wrong
    with pytest.raises(ValidationError, match=name):
        short(**wrong)


@pytest.mark.parametrize("field, seam", SEAMS.items(), ids=SEAMS)
def test_weight_decay_exemptions_for_every_variant(field, seam):
    """Exempt from weight decay are tables added to scores, offset gates and convolution kernels."""
    for kind, variant in seam.kinds.items():
        options = {"reach": 6} if kind == "offset-gate" else {}
        if any(p.default is p.empty and p.name not in options and p.kind is p.KEYWORD_ONLY
               for p in inspect.signature(variant.__init__).parameters.values()):  # fmt: skip
            continue
        defaults = {"position": "none"} if seam is Mixer else {"d_out": 8}
        model = build(**({field: {"kind": kind, **options}} | defaults))
        exempt = undecayed(model)
        for module in model.modules():
            for name, p in module.named_parameters(recurse=False):
                matrix = isinstance(module, nn.Linear | nn.Conv1d | nn.Embedding | nn.GRU) and "bias" not in name
                assert (p.ndim >= 2 and p not in exempt) == (matrix and p not in exempt), (kind, name)
        tables = [name for name, p in model.named_parameters() if p in exempt and p.ndim >= 2]
        exempt_names = {re.sub(r"^blocks.\d+.", "", name) for name in tables}
        expected = {"offset-gate": {"mixer.score.logit"}, "primer": {"mixer.heads.conv_weight"},
                  "convolution": {"mixer.conv_weight"},
                  "t5": {"position.table.weight"}}  # fmt: skip
        assert exempt_names == expected.get(kind, set()), kind


@pytest.mark.parametrize("fields, spared", [
    ({"score": {"kind": "offset-gate", "reach": 4}}, "score.logit"),
    ({"projection": "primer"}, "heads.conv_weight"),
    ({"mixer": "convolution", "position": "none"}, "mixer.conv_weight"),
], ids=str)  # fmt: skip
def test_exempt_parameters_do_not_decay_in_a_copied_model(fields, spared):
    model = copy.deepcopy(build(**fields))
    before = decay_once(model)
    kept = {name for name, p in model.named_parameters() if p.ndim >= 2 and torch.equal(p, before[name])}
    assert kept and all(name.endswith(spared) for name in kept)


@pytest.mark.parametrize("learning_rate", [1e5, 1e25, 1e38])
def test_divergence_in_the_last_step_is_detected(learning_rate):
    def evaluate(model):
        return {"validation": cross_entropy(model(tokens), targets).item(), "undefined": math.nan, "name": "x"}

    tokens, targets = TASK.batch(torch.Generator().manual_seed(0), 4)
    settings = short(steps=3, learning_rate=learning_rate, warmup=0)
    for watched in ({}, {"evaluate": evaluate}):
        run, history = fit(
            build(norm="none", ffn="relu2"), TASK, settings.model_copy(update={"steps": 1}), seed=0, **watched
        )
        evaluation_diverged = watched and not math.isfinite(history.validation.iloc[-1])
        assert run["diverged"] or (learning_rate == 1e5 and not evaluation_diverged)
        if run["diverged"]:
            assert run["diverged_at"] == 1 and math.isnan(run["training_loss"]) and not history.diverged.iloc[0]
    normal, history = fit(build(), TASK, short(), seed=0, evaluate=evaluate)
    assert not normal["diverged"], "an evaluation that is NaN from the start is not divergence"


# Learning-rate selection


def loss_minimal_at(best):
    """run(rates) with a loss that is minimal at the rate `best`."""
    return lambda rates: pd.DataFrame({"learning_rate": r, "loss": abs(r / best - 1)} for r in [*rates, *rates])


def test_tune_extends_rates_until_the_best_is_bracketed():
    assert sorted(tune(loss_minimal_at(2.0), [1, 2, 4], "loss").learning_rate) == [1, 2, 4]
    assert sorted(tune(loss_minimal_at(0.5), [1, 2], "loss").learning_rate) == [0.25, 0.5, 1, 2]
    assert sorted(tune(loss_minimal_at(8.0), [1, 2], "loss").learning_rate) == [1, 2, 4, 8, 16]
    assert len(tune(loss_minimal_at(1e9), [1, 2], "loss", most=4)) == 4


def test_bfloat16_model_trains_and_has_a_fingerprint():
    config = ModelConfig(vocab_size=8, block_size=12, d_model=16, n_layers=1, d_out=8)
    task = Lookup(offsets=(1,), vocabulary=8, length=12)
    model = Transformer(config).to(torch.bfloat16)
    run, _ = fit(model, task, TrainConfig(steps=2, batch=4), seed=0)
    assert len(run["fingerprint"]) == 12 and math.isfinite(run["training_loss"])


def test_evaluation_restores_the_mode_of_every_module():
    model = nn.Sequential(nn.Embedding(8, 8), nn.Dropout(0.5))
    modes = []

    def evaluate(model):
        modes.append(model[1].training)
        return {}

    def loss(model, inputs, targets):
        modes.append(model[1].training)
        model[1].eval()
        return model(inputs).sum()

    draw = Lookup(offsets=(1,), vocabulary=8, length=12).batch
    train(model, draw, TrainConfig(steps=2, batch=4), loss=loss, evaluate=evaluate, every=1)
    assert modes == [True, False, False, False, False]
