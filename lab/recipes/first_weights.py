"""What stacks do at their first weights: stream and gradients by layer, and how far a step moves the output (§1.5)."""

import numpy as np
import pandas as pd
import torch

from lab.engine.device import device
from lab.measure.depth import perturbation
from lab.measure.gradients import gradient_norms
from lab.measure.hooks import capture, tap
from lab.models import ModelConfig, Transformer
from lab.models.initialization import scale
from lab.training import cross_entropy


def at_start(seed, placement, n, n_layers, d_model):
    """Stream, branches and gradients by layer of a mean-field stack at its initial weights.

    S is the mean square of the stream behind the layer, branch that of what its two branches return, added up.
    """
    config = ModelConfig(
        vocabulary=512, context=n, d_model=d_model, n_layers=n_layers, n_heads=1, position="none", mask="none",
        ffn={"kind": "relu", "ratio": 1}, initialization="mean-field", residual=placement,
    )  # fmt: skip
    model, sites = Transformer(config, seed=seed).to(device()), [f"blocks.{i}" for i in range(n_layers)]
    order = torch.randperm(512, generator=torch.Generator().manual_seed(seed))[:128]
    tokens, targets = order.view(2, -1, n).to(device())
    branches = [f"{site}.{part}" for site in sites for part in ("mixer", "ffn")]
    with (
        tap(model, dict.fromkeys(sites + branches, lambda x: x.square().mean())) as squares,
        tap(model, dict.fromkeys(sites, lambda g: g.norm()), gradients=True) as gradients,
        capture((block.ffn_norm for block in model.blocks), inputs=True) as streams,
    ):
        cross_entropy(model(tokens), targets).backward()
    weights = gradient_norms(model)
    second = weights[weights.parameter.str.endswith("ffn.down.weight")].norm.to_numpy()
    size = squares().set_index("site").value
    added = size[branches].to_numpy().reshape(n_layers, 2).sum(1)
    sums = [x.square().mean().item() for (x,) in streams]
    found = {"layer": np.arange(n_layers) + 1, "S": size[sites].to_numpy(), "branch": added, "sum": sums}
    found["w2_gradient"] = second
    return pd.DataFrame(found | {"stream_gradient": gradients().set_index("site").value[sites].to_numpy()})


def gradient_profile(seed, placement, norm, n_layers, d_model):
    """Norm of W2's gradient by layer at the initial weights, in double precision: it may vanish and explode.

    Without norm `plain` has skips; `none` has no skips, and a norm before every branch if there is one.
    """
    config = ModelConfig(
        vocabulary=64, context=64, d_model=d_model, n_layers=n_layers, n_heads=4, initialization="xavier",
        residual=placement, norm=norm,
    )  # fmt: skip
    model = Transformer(config, seed=seed).double().to(device())
    tokens = torch.randint(64, (8, 65), generator=torch.Generator().manual_seed(seed)).to(device())
    cross_entropy(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    table = gradient_norms(model)
    table = table[table.parameter.str.endswith("ffn.down.weight")]
    return [{"layer": int(row.layer) + 1, "w2_gradient": row.norm} for row in table.itertuples()]


def output_change(seed, placement, n, n_layers, d_model):
    """Relative change of the output for a relative change of all weights of the blocks."""
    config = ModelConfig(
        vocabulary=64, context=n, d_model=d_model, n_layers=n_layers, n_heads=1, position="none", mask="none",
        ffn={"kind": "relu", "ratio": 1}, residual=placement, norm={"kind": "layernorm", "affine": False},
        initialization="deepnorm" if placement == "deepnorm" else "mean-field",
    )  # fmt: skip
    model = Transformer(config, seed=seed).double().to(device())
    noise = torch.randn(64, d_model, generator=torch.Generator().manual_seed(seed))
    model.embedding.weight.data.copy_(noise)
    for block in model.blocks:
        scale(block.mixer.heads.query_key_weights(), 0.0)
    tokens = torch.arange(32).view(-1, n).to(device())
    return {"change": perturbation(model.blocks, lambda _: model.hidden(tokens), seed=seed)}
