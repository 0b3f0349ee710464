"""Gradient norms against autograd's own tensors."""

import pandas as pd
import pytest
import torch
from torch import nn

from lab.measure.gradients import gradient_norms


def model():
    torch.manual_seed(0)
    blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)) for _ in range(2)])
    return nn.ModuleDict({"blocks": blocks, "head": nn.Linear(4, 1), "unused": nn.Linear(4, 1)})


def test_norm_rms_and_layer_of_every_parameter():
    m = model()
    x = torch.randn(8, 4)
    for block in m["blocks"]:
        x = x + block(x)
    m["head"](x).square().mean().backward()
    table = gradient_norms(m).set_index("parameter")
    assert list(table.index) == [name for name, _ in m.named_parameters()]
    # The block's number comes first; the place inside the Sequential is not a layer.
    assert table.loc["blocks.1.2.weight", "layer"] == 1 and table.loc["head.weight", "layer"] is pd.NA
    weight = m["blocks"][1][2].weight.grad
    assert table.loc["blocks.1.2.weight", "norm"] == pytest.approx(weight.norm().item())
    assert table.loc["blocks.1.2.weight", "rms"] == pytest.approx(weight.square().mean().sqrt().item())
    assert table.loc["unused.weight", ["norm", "rms"]].isna().all() and table["norm"].notna().sum() == 10


def test_a_zero_gradient_is_not_a_missing_one():
    m = nn.Linear(2, 1)
    (0 * m(torch.ones(1, 2))).sum().backward()
    assert gradient_norms(m)["norm"].tolist() == [0, 0]


def test_without_backward_it_says_so():
    with pytest.raises(RuntimeError, match="backward"):
        gradient_norms(model())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(dtype):
    m = nn.Linear(3, 2).to(dtype)
    m(torch.ones(1, 3, dtype=dtype)).sum().backward()
    assert gradient_norms(m)["norm"].tolist() == pytest.approx([6**0.5, 2**0.5])
