"""Linear probes find what is there, in any unit, and nothing in noise."""

import pytest
import torch
from helpers import generator

from lab.measure.linear_probe import held_out_r2, probe_accuracy


@pytest.mark.parametrize("unit", [0.01, 1, 100])
def test_a_probe_sees_no_unit(unit):
    drawn = generator()
    labels = torch.randint(4, (600,), generator=drawn)
    features = torch.randn(600, 12, generator=drawn)
    features[:, :4] += 1.2 * torch.eye(4)[labels]
    found = probe_accuracy(features, labels)
    assert 0.5 < found < 0.95
    assert probe_accuracy(unit * features, labels) == found
    assert probe_accuracy(features * torch.tensor([unit, 1.0] * 6), labels) == found
    assert probe_accuracy(torch.cat([features, torch.ones(600, 1)], 1), labels) == pytest.approx(found)


def test_held_out_r2_is_one_for_a_linear_value_and_none_for_noise():
    features = torch.randn(400, 8, generator=generator())
    assert held_out_r2(features, 3 * features[:, 2] - 1) > 0.999
    assert held_out_r2(features, torch.randn(400, generator=generator(1))) < 0.1
    assert held_out_r2(features * torch.tensor([1e3, 1, 1, 1, 1, 1, 1, 1e-3]), features[:, 7]) > 0.999
