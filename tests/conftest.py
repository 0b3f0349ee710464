"""Test setup: one torch thread for reproducible numbers, no hypothesis deadline, Ctrl-C for child processes, and a
small test project."""

import os
import signal

import made
import pytest
import torch
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

os.environ.pop("LAB_PROJECT", None)  # tests set it themselves
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs, and their child processes, ignore SIGINT
torch.set_num_threads(1)
settings.register_profile("lab", deadline=None)
settings.load_profile("lab")

LONGEST = ("test_notebooks.py", "test_run.py", "test_kills.py", "test_reference.py")  # start first


def pytest_collection_modifyitems(items):
    order = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


class Scheduling(LoadFileScheduling):
    """Run all tests of a file on one worker, so that its fixtures run once; distribute lessons over all workers."""

    def _split_scope(self, nodeid):
        return nodeid if "runs_at_smoke_size" in nodeid else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)  # a hook of pytest-xdist, whose xdist_group mark has no effect under pytest 9.2
def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False  # keep the order of files
    return Scheduling(config, log)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The folder of a project with two small notebooks, shared by all tests of a file; sets LAB_PROJECT."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_PROJECT", str(folder := made.write(tmp_path_factory.mktemp("project"))))
        yield folder
