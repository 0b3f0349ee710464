"""The device of a trial."""

import pytest
import torch

from lab import device


def test_auto_selects_the_best_available_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert device.available("auto") == device.available("cpu") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device.available("auto") == "cuda" and device.available("cpu") == "cpu"


def test_unavailable_device_raises(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device 'cuda' is not available on .*: choose auto, .*cpu"):
        device.available("cuda")


def test_device_in_a_trial_is_the_device_of_the_trial():
    token = device.current.set("cpu")
    try:
        assert device.device() == torch.device("cpu")
    finally:
        device.current.reset(token)
