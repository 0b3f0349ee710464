"""Admin initialization: skip weights set from branch variances stabilize a deep post-norm stack at initialization."""

from functools import partial

import pytest
import torch

from lab.models import ModelConfig, Transformer


def build(seed=0, **fields):
    sizes = {"vocab_size": 13, "block_size": 16, "d_model": 32, "n_layers": 12, "ffn": "relu", "position": "none"}
    return Transformer(ModelConfig(**(sizes | fields)), seed=seed).eval()


def omegas(model):
    return [block.omega[name].detach() for block in model.blocks for name in ("mixer", "ffn")]


@torch.no_grad()
def test_omega_squared_is_the_accumulated_branch_variance():
    model = build(residual="admin", initialization="admin")
    initial = [omega.clone() for omega in omegas(model)]
    for omega in omegas(model):
        omega.fill_(1)
    tokens = torch.randint(13, (64, 16), generator=torch.Generator().manual_seed(0))  # not the profiling batch
    x = model.position.at_input(model.embedding(tokens))
    total, expected = x.var(), []
    for block in model.blocks:
        sublayers = {"mixer": partial(block.mixer, causal=True), "ffn": block.ffn}
        for name, f in sublayers.items():
            expected.append(total.item())
            total = total + f(x).var()
            x = block.around(x, f, name)
    assert [omega[0].item() ** 2 for omega in initial] == pytest.approx(expected, rel=0.1)
    assert all((omega == omega[0]).all() for omega in initial) and sorted(expected) == expected


@torch.no_grad()
def test_admin_output_is_less_sensitive_to_weight_perturbation():
    """Liu 2020: the output change from a weight perturbation grows with depth in post-norm, not with Admin."""
    moved = {}
    for name, fields in {"admin": {"residual": "admin", "initialization": "admin"},
                         "post": {"residual": "post", "initialization": "xavier"}}.items():  # fmt: skip
        model = build(n_layers=24, **fields)
        x = torch.randint(13, (8, 16), generator=torch.Generator().manual_seed(1))
        before, generator = model.hidden(x), torch.Generator().manual_seed(2)
        for block in model.blocks:
            for weight in block.parameters():
                weight += 0.01 * weight.std() * torch.randn(weight.shape, generator=generator) if weight.ndim > 1 else 0
        moved[name] = (model.hidden(x) - before).square().mean().item()
    assert moved["admin"] < 0.5 * moved["post"], moved


def test_admin_handles_shared_layers_and_equals_xavier_for_other_residuals():
    shared = build(n_layers=4, unique_layers=2, residual="admin", initialization="admin")
    assert shared.blocks[1].omega["ffn"][0] > shared.blocks[0].omega["mixer"][0] > 0
    plain, xavier = (build(initialization=kind).state_dict() for kind in ("admin", "xavier"))
    assert all(torch.equal(plain[name], xavier[name]) for name in xavier)
