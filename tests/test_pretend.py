"""The stand-in for a device computes as the CPU does and refuses what a real device refuses."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pretend import device, moved
from torch import nn


def pair(*shape, seed=0):
    """The same numbers here and elsewhere."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return x, x.to(device())


def test_a_tensor_says_where_it_is_and_comes_back_as_it_was():
    here, there = pair(3, 4)
    assert there.device == device() and str(device()) == "pretend:0" and type(there) is torch.Tensor
    for back in (there.cpu(), there.to("cpu"), there.to(here.device)):
        assert back.device.type == "cpu" and torch.equal(back, here)
    assert there.tolist() == here.tolist() and there[1, 2].item() == here[1, 2].item() and float(there[0, 0])
    assert bool((there == there).all()) and there.to(torch.bfloat16).dtype == torch.bfloat16
    place = {"device": device()}
    made = [torch.zeros(2, **place), torch.tensor([1.0, 2], **place), torch.arange(3, **place), torch.eye(2, **place)]
    made += [torch.randn(2, **place), torch.full_like(there, 2), there.new_ones(2)]
    for x in made:
        assert x.device == device()
    assert there.new_ones(2, device="cpu").device.type == "cpu"
    copied = torch.empty(3, 4)
    copied.copy_(there)
    assert torch.equal(copied, here)
    made = lambda: torch.zeros(2, dtype=torch.float64, device=device())  # noqa: E731
    for wide in (there.double, made, lambda: here.double().to(device())):
        with pytest.raises(TypeError, match="has no float64"):
            wide()
    with pytest.raises(TypeError, match="convert pretend:0 device type tensor to numpy"):
        np.asarray(there)


def test_views_and_changes_in_place_share_memory():
    here, there = pair(4, 5)
    for x in (here, there):
        x[1:3, ::2].mul_(10)
        x.t()[0].zero_()
        x.view(-1)[-1] = 7
        x[x > 5] = 0
        x.masked_fill_(x < 0, 1)
    assert there.cpu().equal(here) and there.t().stride() == here.t().stride()


@pytest.mark.parametrize(
    "meet",
    [
        lambda here, there: there + here,
        lambda here, there: here @ there.T,
        lambda here, there: torch.cat([here, there]),
        lambda here, there: torch.where(there > 0, there, here),
        lambda here, there: there.masked_fill(here > 0, 0),
        lambda here, there: F.linear(there, here),
        lambda here, there: F.embedding(torch.tensor([0]), there),
        lambda here, there: F.cross_entropy(there, torch.tensor([0, 1, 2])),
        lambda here, there: there.gather(1, torch.zeros(3, 1, dtype=torch.long)),
        lambda here, there: here[torch.tensor([0], device=there.device)],
        lambda here, there: torch.stack([there[0, 0], here[0, 0]]),
        lambda here, there: F.scaled_dot_product_attention(there, there, there, attn_mask=torch.ones(3, 3).bool()),
        lambda here, there: F.scaled_dot_product_attention(there, here, there),
        lambda here, there: there.add_(here),
        lambda here, there: nn.Linear(3, 2)(there),
        lambda here, there: torch.bucketize(there, here[0]),
        lambda here, there: torch.randn(3, generator=torch.Generator(), device=there.device),
        lambda here, there: torch.randperm(3, generator=torch.Generator(), device=there.device),
        lambda here, there: there.normal_(generator=torch.Generator()),
        lambda here, there: torch.bernoulli(there.sigmoid(), generator=torch.Generator()),
        lambda here, there: there.sigmoid().multinomial(1, generator=torch.Generator()),
    ],
)
def test_where_two_devices_meet_it_raises(meet):
    with pytest.raises(RuntimeError, match="two devices|same device|device type for generator"):
        meet(*pair(3, 3))


def test_numbers_of_no_dimension_and_indices_may_come_from_the_cpu():
    here, there = pair(3, 4)
    number, at, mask = torch.tensor(2.0), torch.tensor([2, 0]), torch.tensor([True, False, True])
    for work in (
        lambda x: x * number + 1,
        lambda x: torch.where(x > 0, x, number),
        lambda x: x.masked_fill(x > 0, number),
        lambda x: x[at],
        lambda x: x[mask],
        lambda x: x.index_put((at,), number),
        lambda x: torch.lerp(x, -x, number),
        lambda x: x ** number,
    ):  # fmt: skip
        assert work(there).cpu().equal(work(here)), "as on CUDA"


def network():
    layers = [nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)]
    return nn.Sequential(*layers, nn.Linear(8, 3))


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, partial(torch.optim.AdamW, eps=1e-3)], ids=["sgd", "adamw"])
def test_a_network_trains_to_the_same_numbers(optimizer):
    """eps is large, or Adam would make steps of the rounding in a key's bias, whose gradient is 0."""
    torch.manual_seed(0)
    here = network()
    there = network()
    there.load_state_dict(here.state_dict())
    weight = there[0].weight
    moved(there)
    assert there[0].weight is weight and weight.device == device(), "a parameter stays the one that it was"
    x, y = torch.randn(5, 7, 6), torch.randint(3, (5, 7))
    for model, place in ((here, "cpu"), (there, device())):
        steps = optimizer(model.parameters(), lr=0.1)
        for _ in range(4):
            steps.zero_grad()
            loss = F.cross_entropy(model(x.to(place)).flatten(0, 1), y.to(place).flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            steps.step()
    assert all(p.grad.device == device() for p in there.parameters())
    for mine, wanted in zip(there.parameters(), here.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().cpu(), wanted.detach(), rtol=1e-4, atol=1e-5)
