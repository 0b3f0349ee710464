"""Measures are taken where the model is, on whatever device, and are the same numbers there.

Each function is handed a model, its tokens, and a function that moves a tensor to where they are.
"""

import pandas as pd
import pytest
import torch
from helpers import local_mass, max_weight, row_sum, sink_mass
from pretend import device, twins

from lab.measure import attention as at
from lab.measure import (
    depth,
    editing,
    functions,
    gradients,
    heads,
    hooks,
    lengths,
    linear_probe,
    maps,
    neurons,
    selectivity,
)
from lab.models import ModelConfig, Transformer
from lab.tasks.lengths import Copy
from lab.training import cross_entropy

VOCABULARY = 13


def build(**fields):
    sizes = {"vocabulary": VOCABULARY, "context": 24, "d_model": 32, "n_layers": 2, "n_heads": 4}
    return Transformer(ModelConfig(**(sizes | fields)), seed=0).eval()


def tokens_of(batch=2, length=12):
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(0))


def probed(model, tokens, there):
    measures = [at.entropy, at.distance, sink_mass, max_weight, row_sum, local_mass(2), at.offset_mass(1)]
    targets = torch.randint(-1, 12, (2, 12), generator=torch.Generator().manual_seed(1))
    real = torch.arange(12) < torch.tensor([[12], [9]])
    named = {m.__name__: m for m in measures} | {
        "index": at.mass_on(targets),
        "pattern": at.mass_on(maps.pointing(targets)),
    }
    for mask in (None, real):
        inputs = {} if mask is None else {"padding_mask": there(mask)}
        with torch.no_grad(), at.attention_probe(named, padding_mask=mask, block_bytes=400) as probe:
            model(tokens, **inputs)
        yield probe.table().drop(columns="module")


def of_maps(model, tokens, there):
    scores = [block.mixer.score for block in model.blocks]
    found = maps.weights_of(scores, lambda: model(tokens))
    index = there(torch.randint(-1, 12, (2, 12), generator=torch.Generator().manual_seed(1)).minimum(torch.arange(12)))
    targets, queries, m = maps.pointing(index), index >= 0, found[0]
    yield from (maps.mass(m, targets), maps.uniform_mass(targets), maps.relative_distance(m, queries))
    yield from (maps.relative_entropy(m, queries), maps.hits(m, index))
    yield from (maps.offset_profile(m), maps.content_share(m), maps.divergence(m))
    yield from (
        maps.best_fixed_offset(index),
        torch.from_numpy(maps.unpacked(maps.packed(m[0, 0])).copy()),
    )
    rarity = {
        name: there(torch.randn(2, 12, generator=torch.Generator().manual_seed(2)))
        for name in ("log_frequency", "shuffled")
    }
    copies = {name: there(x) for name, x in maps.copying(4, 3).items()}
    yield heads.head_scores(found, queries, {"targets": targets} | copies)
    yield from (maps.frequency_correlation(m, each) for each in rarity.values())


def of_heads(model, tokens, there):
    with torch.no_grad(), at.kept_logits() as logits:
        model(tokens)
    yield from logits
    found = maps.weights_of([block.mixer.score for block in model.blocks], lambda: model(tokens))
    yield heads.key_effects(model, tokens, found)
    loss = lambda: cross_entropy(model(tokens), tokens).item()  # noqa: E731
    yield heads.ablation_costs(lambda: {"loss": loss()}, 2, 4)
    yield heads.pruning_costs(loss, 2, 4).removal_cost
    with heads.ablate_heads([(0, 1)], 2):
        yield model(tokens)


def of_modules(model, tokens, there):
    with hooks.tap(model, {"*.ffn": [neurons.nonzero_share, neurons.firing_rates]}) as table:
        model(tokens)
    yield table()
    with hooks.tap(model, {"blocks.0": lambda gradient: gradient.square().mean()}, gradients=True) as table:
        cross_entropy(model(tokens), tokens).backward()
    yield table().value
    yield gradients.gradient_norms(model)[["norm", "rms"]]
    model.zero_grad()
    with hooks.edit(model, {"*.ffn": torch.zeros_like}):
        yield model(tokens)
    near = model.embedding(tokens).detach()[0, :5]
    yield gradients.leak(lambda x: model.blocks[0](x, causal=True), near)


def of_depth(model, tokens, there):
    yield depth.perturbation(model, lambda model: model(tokens), size=0.1)
    yield from depth.rises_without(model.blocks, lambda: cross_entropy(model(tokens), tokens).item())
    yield depth.likeness(depth.outputs_of(model.blocks, lambda: model(tokens)))


def of_units(model, tokens, there):
    hidden = neurons.outputs(model, ["blocks.0.ffn.act"], tokens)["blocks.0.ffn.act"]
    yield from (hidden, neurons.firing_rates(hidden), neurons.nonzero_share(hidden))
    yield neurons.hidden(model, tokens)
    yield neurons.idle_share(hidden)
    with neurons.ablate_units(model, 0, [1]):
        yield model(tokens)
    kind = tokens.flatten() % 3
    yield linear_probe.probe_accuracy(hidden, kind)
    labels = {"even": kind.cpu() == 0}
    yield selectivity.detectors(hidden.cpu(), labels, shifts=5).auc
    yield from functions.lowest(torch.nn.functional.silu, -6, 6)
    weight, covariance = model.blocks[0].ffn.down.weight.detach(), hidden.T @ hidden / len(hidden)
    value = editing.wanted_output(model, "blocks.0.ffn", tokens, 3, steps=3)
    yield from (value, editing.rome_update(weight, hidden[0], value, covariance, ridge=0.1))


def of_lengths(model, tokens, there):
    task = Copy()
    wrap = lambda x: model(there(x % VOCABULARY)).cpu()  # noqa: E731
    yield lengths.accuracy_by_length(
        wrap, lambda *drawn: tuple(x.clamp(max=12) for x in task.of_length(*drawn)), [3], size=4
    )
    for losses in (
        lengths.window_losses(model, tokens.flatten(), 6, 3),
        lengths.window_losses(model, tokens.flatten(), 4, 4),
    ):
        yield losses
        yield lengths.by_bucket(losses, [0, 1])
    codes = model.embedding.weight.detach()
    yield linear_probe.held_out_r2(codes, codes[:, 0])


MEASURES = (probed, of_maps, of_heads, of_modules, of_depth, of_units, of_lengths)


@pytest.mark.parametrize("measures", MEASURES, ids=lambda f: f.__name__)
def test_measures_are_taken_where_the_model_is(measures):
    tokens = tokens_of()
    here, there = twins(build(ffn="relu"))
    wanted, found = (
        [plain(x) for x in measures(model, move(tokens), move)]
        for model, move in ((here, lambda x: x), (there, lambda x: x.to(device())))
    )
    assert len(found) == len(wanted) > 1
    for i, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
        assert mine == pytest.approx(theirs, rel=1e-3, abs=2e-4, nan_ok=True), f"value {i} of {measures.__name__}"


def plain(x):
    """A list of numbers, whatever x is."""
    if isinstance(x, pd.DataFrame | pd.Series):
        x = torch.tensor(
            x.select_dtypes("number").to_numpy(float) if isinstance(x, pd.DataFrame) else x.to_numpy(float)
        )
    return x.detach().cpu().double().flatten().tolist() if isinstance(x, torch.Tensor) else [float(x)]


def test_random_parts_take_no_generator_of_another_device():
    """Drawn on the CPU wherever the model is, so that equal seeds are equal draws on every device."""
    here, there = twins(build())
    before = [p.detach().cpu().clone() for p in there.parameters()]
    for model in (here, there):
        with depth.moved(model, 0.1, seed=3):
            changed = [p.detach().cpu().clone() for p in model.parameters()]
    assert all(torch.equal(p.detach().cpu(), old) for p, old in zip(there.parameters(), before, strict=True))
    with depth.moved(here, 0.1, seed=3):
        for mine, theirs in zip(changed, here.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs.detach())
