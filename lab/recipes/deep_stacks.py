"""Trainability of deep stacks: steps until a stack learns a small task (chapter §1.5)."""

import torch

from lab.device import device
from lab.models import ModelConfig, Transformer
from lab.tasks.sequences import Markov
from lab.training import TrainConfig, cross_entropy, fit


def configured(placement, scheme):
    """ModelConfig fields for a norm placement and an initialization scheme, both given by name."""
    placements = {
        "deepnorm": {"residual": "deepnorm"},
        "no norm": {"residual": "plain", "norm": "none"},
        "neither": {"residual": "none", "norm": "none"},  # neither norm nor skip connection
    }
    without, scaled = placements["no norm"], {"residual": "scaled", "norm": "none"}
    schemes = {
        "normal .02": {"initialization": "normal"},
        "depth-scaled": {"initialization": {"kind": "depth-scaled", "base": "xavier"}},
        "learned scales": {
            "initialization": "xavier",
            "residual": {"kind": "scaled", "scale": 0.0},
        },
        "fixup": scaled | {"initialization": "fixup"},
        "fixup, branches not 0": scaled
        | {"initialization": {"kind": "fixup", "zero_branches": False}},
        "fixup, readout not 0": scaled
        | {"initialization": {"kind": "fixup", "zero_lm_head": False}},
        "fixup, not rescaled": scaled | {"initialization": {"kind": "fixup", "rescale": False}},
        "fixup, no scalars": without | {"initialization": "fixup"},
    }
    fields = placements.get(placement, {"residual": placement})
    return fields | schemes.get(scheme, {"initialization": scheme})


def stack(seed, placement, scheme, n_layers, d_model):
    """(Markov task, Transformer with ReLU and without positions) on the device of the trial."""
    task = Markov(length=16, contrast=2.5)
    sizes = {
        "vocab_size": task.vocabulary,
        "block_size": 16,
        "d_model": d_model,
        "n_layers": n_layers,
        "n_heads": 2,
    }
    config = ModelConfig(position="none", ffn="relu", **sizes, **configured(placement, scheme))
    return task, Transformer(config, seed=seed).to(device())


def learning(
    seed,
    placement,
    scheme,
    n_layers,
    learning_rate,
    steps,
    d_model,
    warmup=0,
    beta2=0.98,
    clip=1.0,
    clamp=0.0,
    every=10,
):
    """Trial: train a stack until it has learnt the task, for at most `steps` steps.

    A stack has learnt the task if its validation loss is over a quarter of the way from the unigram
    entropy to the entropy rate; the loss is evaluated every `every` steps. `clip` is the maximum
    gradient norm; `clamp` is the maximum activation in the feed-forward layer (0: no maximum).
    Returns the `run` of training.fit and loss (nats per token, last evaluation), learnt and
    steps_taken.
    """
    task, model = stack(seed, placement, scheme, n_layers, d_model)
    mark = task.unigram_entropy - (task.unigram_entropy - task.entropy_rate) / 4
    tokens, targets = (x.to(device()) for x in task.batch(torch.Generator().manual_seed(10**6), 32))
    if clamp:
        for block in model.blocks:
            block.ffn.act.register_forward_hook(lambda _module, _inputs, out: out.clamp(max=clamp))
    settings = TrainConfig(
        steps=steps,
        batch=16,
        learning_rate=learning_rate,
        warmup=warmup,
        min_lr_ratio=1.0,
        betas=(0.9, beta2),
        clip=clip,
    )
    run, history = fit(
        model,
        task,
        settings,
        seed=seed,
        every=every,
        until=("validation", "<", mark),
        evaluate=lambda m: {"validation": cross_entropy(m(tokens), targets).item()},
    )
    last = history.iloc[-1]
    learnt = run["steps_to_mark"] is not None
    return run | {"loss": last.validation, "learnt": learnt, "steps_taken": int(last.step)}
