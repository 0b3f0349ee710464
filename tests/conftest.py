"""One thread for torch, so that numbers repeat; hypothesis without a clock; Ctrl-C ends what tests start."""

import os
import signal
import sys

import pytest
import torch
from hypothesis import settings

sys.modules.setdefault("rfc3987_syntax", None)  # as in `lab run`
os.environ.pop("LAB_LANGUAGE", None)  # tests read English
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a job in the background would ignore
torch.set_num_threads(1)
settings.register_profile("lab", deadline=None)
settings.load_profile("lab")

LONGEST = ("test_notebooks.py", "test_batch.py")  # minutes each: begun first, so that neither is left alone at the end
APART = ("test_notebooks.py", "test_committed_record.py")  # whose tests take minutes and share nothing between them


def pytest_configure(config):
    config.option.loadscopereorder = False  # xdist would begin with the file of most tests


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: [*LONGEST, item.path.name].index(item.path.name))
    for item in items:
        if item.path.name not in APART:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))  # a file's tests on one worker: its fixtures once
