"""One thread for torch, so that numbers repeat; hypothesis without a clock; Ctrl-C ends what tests start."""

import signal

import torch
from hypothesis import settings

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a job in the background would ignore
torch.set_num_threads(1)
settings.register_profile("lab", deadline=None)
settings.load_profile("lab")
