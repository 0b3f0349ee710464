"""What activations do: to byte models that differ in nothing else, to units, to gradients in a stack, to time."""

import numpy as np
import torch
from torch import nn

from lab.engine.device import device
from lab.measure.functions import gaussian_moments
from lab.measure.hooks import edit, tap
from lab.measure.neurons import firing_rates
from lab.measure.timing import seconds_a_call
from lab.models.feedforward import Gated
from lab.models.gpt import FeedForward, ModelConfig, Transformer
from lab.recipes.byte_model import byte_model, table_losses, validation_loss
from lab.training import fit

WINDOWS = 192  # of validation
RECORDS = 8  # in a training, besides the first


def next_byte(seed, ffn, learning_rate, steps, batch, context, d_model, n_layers, corpus, order=0):
    """Rows of a training of the next byte, one for each recorded step: loss and share of silent units, with the tables.

    `ffn` is a kind of feed-forward layer, with biases as the chapter writes it, or "none": plain, without activation.
    `order` changes which windows of the text are read, and nothing else. A plain unit is silent at a step where it is
    above zero on none of the validation bytes. Of all units, in percent: silent at that step; `fell`, silent at some
    recorded step; `woke`, those of them above zero at a later one; `lasting`, silent at each of the last three.
    """
    layer = {"kind": "relu" if ffn == "none" else ffn, "bias": True}
    sizes = {"d_model": d_model, "n_layers": n_layers, "ffn": layer}
    config, task, schedule = byte_model(
        steps, batch=batch, context=context, learning_rate=learning_rate, corpus=corpus, **sizes
    )
    tables = table_losses(task, schedule, seed + order, WINDOWS)
    model = Transformer(config, seed=seed).to(device())
    if ffn == "none":
        activate(model, nn.Identity())
    seen = []

    def evaluate(model):
        with tap(model, {"*.ffn.act": firing_rates}) as rates:
            loss = validation_loss(model, task, WINDOWS)
        seen.append(torch.tensor((rates().value == 0).to_numpy()))
        return {"loss": loss, "silent": 100 * seen[-1].double().mean().item()}

    test = {"evaluate": evaluate, "mark": ("loss", "<", tables["trigram"]), "every": max(1, steps // RECORDS)}
    run, history = fit(model, task, schedule, seed=seed + order, **test)
    run |= tables | deaths(torch.stack(seen)) | branches(model, task)
    if ffn == "gelu":
        exact = validation_loss(model, task, WINDOWS)
        activate(model, FeedForward.kinds["gelu-tanh"].activation())
        run["swapped"] = validation_loss(model, task, WINDOWS) - exact
    return [run | row for row in history[["step", "loss", "silent"]].to_dict("records")]


def drawn(net, seed):
    """The network with weights drawn anew, of variance 1 / inputs; vectors as if their entries were inputs."""
    generator = torch.Generator().manual_seed(seed)
    for p in net.parameters():
        p.data = torch.randn(p.shape, generator=generator) / p.shape[-1] ** 0.5
    return net


def activate(model, act):
    """Give every feed-forward layer this activation."""
    for block in model.blocks:
        block.ffn.act = act


def deaths(silent):
    """Shares of units in percent of a table (records, units) of who is silent when: fell, woke, lasting."""
    later = (~silent).flip(0).cumsum(0).flip(0) > 0  # above zero then or later
    shares = {"fell": silent.any(0), "woke": (silent & later).any(0), "lasting": silent[-3:].all(0)}
    return {name: 100 * share.double().mean().item() for name, share in shares.items()}


@torch.no_grad()
def branches(model, task):
    """Rise of a gated model's loss where a branch keeps only its mean over tokens, its size or its sign; else {}."""
    if not isinstance(model.blocks[0].ffn, Gated):
        return {}
    changes = {
        "mean": lambda x: x.mean((0, 1), keepdim=True).expand_as(x),
        "size": torch.abs,
        "sign": lambda x: x.sign() * x.abs().mean((0, 1), keepdim=True),
    }
    rises, before = {}, validation_loss(model, task, 64)
    for branch, site in (("gate", "*.ffn.act"), ("linear", "*.ffn.up")):
        for kept, change in changes.items():
            with edit(model, {site: change}):
                rises[f"{branch}_{kept}"] = validation_loss(model, task, 64) - before
    return rises


# Gradients through a stack, before training


def gradients(seed, stack, kind, gain, depth, width):
    """RMS gradient behind every layer over that behind the last, for a random direction at the end.

    `stack` is "blocks", those of a Transformer, or another name: a plain network, whose weights have the variance
    gain^2 / width.
    """
    generator = torch.Generator().manual_seed(seed)
    net, name, inputs = (blocks if stack == "blocks" else plain)(kind, gain, depth, width, generator)
    net, inputs = net.to(device()), inputs.to(device())
    sites = {name.format(i): root_mean_square for i in range(depth)}
    with tap(net, sites, gradients=True) as table:
        y = net(inputs)
        (y * torch.randn(y.shape, generator=generator).to(y)).sum().backward()
    found = table().value.to_numpy()[::-1]  # gradients arrive from the last layer on
    return [{"layer": i + 1, "relative": float(g / found[-1])} for i, g in enumerate(found)]


def root_mean_square(x):
    return x.double().square().mean().sqrt()


def plain(kind, gain, depth, width, generator):
    """(network, how its layers are named, what it is fed): matrix, activation, matrix, activation, nothing else."""
    layers = []
    for _ in range(depth):
        linear = nn.Linear(width, width, bias=False)
        linear.weight.data = torch.randn(width, width, generator=generator) * gain / width**0.5
        layers.append(nn.Sequential(linear, FeedForward.kinds[kind].activation()))
    return nn.Sequential(*layers), "{}", torch.randn(64, width, generator=generator)


def blocks(kind, gain, depth, width, generator):
    """The same of a Transformer's blocks, with a norm before and a skip around each layer; `gain` is not asked for."""
    tokens = torch.randint(256, (4, 32), generator=generator)
    config, _, _ = byte_model(1, context=32, d_model=width, n_layers=depth, ffn={"kind": kind, "bias": True})
    return Transformer(config, seed=generator.initial_seed()), "blocks.{}", tokens


def mean_field(act, gain, depth):
    """Gradient behind each layer of a wide plain network over that behind the last (Schoenholz 2017).

    q <- gain^2 E act(sqrt(q) z)^2 on the way up; the squared gradient is multiplied by gain^2 E act'(sqrt(q) z)^2 on
    its way back.
    """
    q, chi = gain**2, []
    for _ in range(depth):
        moments = gaussian_moments(act, std=q**0.5, grid=2**13)
        chi.append(gain**2 * moments["slope_square"])
        q = gain**2 * moments["square"]
    return np.sqrt(np.append(np.cumprod(chi[:0:-1])[::-1], 1.0))


# Time


def time_alone(kinds, elements, repeats):
    """Seconds of each activation on vectors of each size, forward alone and with its backward."""
    calls, place = {}, str(device())
    for n in elements:
        x = torch.randn(n, generator=torch.Generator().manual_seed(0)).to(place)
        leaf, ones = x.clone().requires_grad_(), torch.ones_like(x)
        for kind in kinds:
            act = FeedForward.kinds[kind].activation()
            calls[kind, "forward", n] = lambda act=act, x=x: act(x)
            calls[kind, "both", n] = lambda act=act, leaf=leaf, ones=ones: torch.autograd.grad(act(leaf), leaf, ones)
    return seconds_a_call(calls, ["kind", "passes", "n"], repeats, device=place)


def time_inside(kinds, widths, repeats):
    """Seconds of a whole feed-forward layer on 1024 tokens, at equal parameters."""
    calls, place = {}, str(device())
    for d in widths:
        x = torch.randn(1024, d, generator=torch.Generator().manual_seed(0)).to(place).requires_grad_()
        for kind in kinds:
            part = FeedForward.build(kind, ModelConfig(vocabulary=1, context=1, d_model=d)).to(place)
            wanted, ones = (x, *part.parameters()), torch.ones_like(x)
            calls[kind, "forward", d] = lambda part=part, x=x: part(x.detach())
            calls[kind, "both", d] = lambda p=part, x=x, w=wanted, ones=ones: torch.autograd.grad(p(x), w, ones)
    return seconds_a_call(calls, ["kind", "passes", "n"], repeats, device=place)
