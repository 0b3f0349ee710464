"""Linear probes find what is there, in any unit, and nothing in noise."""

import pytest
import torch
from helpers import generator

from lab.measure.linear_probe import probe_accuracy


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
