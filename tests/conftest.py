"""One thread for torch, so that numbers repeat; hypothesis without a clock; Ctrl-C ends what tests start."""

import signal
import sys

import torch
from hypothesis import settings

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a job in the background would ignore
torch.set_num_threads(1)
settings.register_profile("lab", deadline=None)
settings.load_profile("lab")


def pytest_collection_finish(session):
    """Torch counts devices when it first goes backward: the pretended one must be there before any test does."""
    if "pretend" in sys.modules:
        sys.modules["pretend"].device()
