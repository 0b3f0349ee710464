"""Tables about heads of a trained model: where they look, what each is worth, how alike they are (exercise 1.2).

Maps are attention weights (b, h, q, k) of causal attention, a list with one entry a layer. Tables are long: `layer`,
`head`, `measure` and `value`, as maps.head_scores gives them.
"""

import pandas as pd
import torch

from lab.measure import maps as patterns
from lab.measure.heads import silenced


@torch.no_grad()
def weights_of(mixers, run):
    """Weights (b, h, q, k) of every module of `mixers` while run() goes on, whatever it makes of its scores.

    A mixer takes q (b, h, t, d), k and v (b, g, t, d) and keywords, and returns weighted means of the values: of unit
    vectors these are the weights. Unlike a probe this sees attention outside F.scaled_dot_product_attention too.
    """
    maps = []

    def keep(mixer, qkv, keywords, _):
        q, k, _ = qkv
        unit = torch.eye(k.shape[2], dtype=q.dtype, device=k.device).expand(*k.shape[:3], -1)
        maps.append(mixer.forward(q, k, unit.contiguous(), **keywords))

    hooks = [mixer.register_forward_hook(keep, with_kwargs=True) for mixer in mixers]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return maps


def copying(period, repeats):
    """Targets of copying heads on a block repeated: after the earlier copies, on them, and as Olsson 2022 prints it."""
    offsets = {"induction": 1, "duplicate": 0, "before the copy": -1}
    return {name: patterns.copies(period * repeats, period, offset) for name, offset in offsets.items()}


def distances(maps, queries, bins):
    """Weight by distance, mean over heads and `queries` (b, q), and that of uniform weights: layer, at, value, uniform.

    bins: edges in tokens; a row for each but the last, which closes the last bin.
    """
    flat = torch.ones_like(maps[0][:, :1]).tril()
    flat = patterns.distance_profile(flat / flat.sum(-1, keepdim=True), queries, bins)[0].tolist()
    rows = []
    for layer, m in enumerate(maps):
        found = patterns.distance_profile(m, queries, bins).mean(0).tolist()
        rows += list(zip([layer] * len(found), bins, found, flat, strict=False))
    return pd.DataFrame(rows, columns=["layer", "at", "value", "uniform"])


def key_effects(predict, tokens, maps):
    """What the last prediction loses with each key: sequence, layer, key, weight (mean over heads), effect (nats).

    predict(tokens (b, t)) gives logits (b, t, classes); give it in float64, since most effects lie below the rounding
    of float32 and would be ranked by it. Causal models whose layers call F.scaled_dot_product_attention once each.
    """
    parts = []
    for i, sequence in enumerate(tokens):
        effects = patterns.key_effects(predict, sequence, len(maps))
        for layer, (effect, m) in enumerate(zip(effects, maps, strict=True)):
            weight = m[i, :, -1].mean(0)
            columns = {"key": range(len(weight)), "weight": weight.tolist(), "effect": effect.tolist()}
            parts.append(pd.DataFrame({"sequence": i, "layer": layer} | columns))
    return pd.concat(parts, ignore_index=True)


@torch.no_grad()
def silencing_costs(losses, layers, heads):
    """What every loss of losses(), {name: number}, gains with each head silenced alone."""
    whole, rows = losses(), []
    for layer, head in [(layer, head) for layer in range(layers) for head in range(heads)]:
        with silenced([(layer, head)], layers):
            rows += [(layer, head, name, loss - whole[name]) for name, loss in losses().items()]
    return pd.DataFrame(rows, columns=["layer", "head", "measure", "value"])


def likeness(maps):
    """Divergence in bits between the heads of each layer, on the same input and with the other head on another one.

    The second is the null: what heads share there is position, not content. Layers of one head have NaN.
    """
    rows = []
    for layer, m in enumerate(maps):
        pairs = ~torch.eye(m.shape[1], dtype=torch.bool, device=m.device)
        for measure, others in (("same input", m), ("another input", m.roll(1, 0))):
            rows.append((layer, measure, patterns.between(m, others)[pairs].mean().item()))
    return pd.DataFrame(rows, columns=["layer", "measure", "value"])


def ranks(matrices, name):
    """Largest numerical rank and mean effective rank of (b, h, q, k) matrices, one entry a layer."""
    rows = []
    for layer, m in enumerate(matrices):
        numerical = torch.linalg.matrix_rank(m.double())
        rows.append((layer, f"rank of {name}", numerical.max().item()))
        rows.append((layer, f"effective rank of {name}", patterns.effective_rank(m).mean().item()))
    return pd.DataFrame(rows, columns=["layer", "measure", "value"])
