"""One thread for torch, so that numbers repeat; hypothesis without a clock; Ctrl-C ends what tests start."""

import signal
import sys

import torch
from hypothesis import settings

sys.modules.setdefault("rfc3987_syntax", None)  # as in `lab run`
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a job in the background would ignore
torch.set_num_threads(1)
settings.register_profile("lab", deadline=None)
settings.load_profile("lab")

LONGEST = ("test_notebooks.py", "test_batch.py")  # minutes each: begun first, so that neither is left alone at the end


def pytest_configure(config):
    config.option.loadscopereorder = False  # xdist would begin with the file of most tests


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: [*LONGEST, item.path.name].index(item.path.name))
