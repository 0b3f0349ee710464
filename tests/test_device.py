"""Where a trial computes."""

import pytest
import torch

from lab import device


def test_auto_is_the_best_device_that_is_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert device.available("auto") == device.available("cpu") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device.available("auto") == "cuda" and device.available("cpu") == "cpu"


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device 'cuda' is not available on .*: choose auto, .*cpu"):
        device.available("cuda")


def test_the_device_of_a_running_trial_is_the_one_it_was_given():
    token = device.current.set("cpu")
    try:
        assert device.device() == torch.device("cpu")
    finally:
        device.current.reset(token)
