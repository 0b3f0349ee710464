"""One thread for torch, so that numbers repeat; hypothesis without a clock; Ctrl-C ends what tests start; a project of
the tests' own; and no test reads the lessons or their results unless it says why."""

import os
import signal

import made
import pytest
import torch
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

os.environ.pop("LAB_PROJECT", None)  # tests know their project
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a job in the background would ignore
torch.set_num_threads(1)
settings.register_profile("lab", deadline=None)
settings.load_profile("lab")

LONGEST = ("test_notebooks.py", "test_run.py", "test_kills.py", "test_reference.py")  # begun first


def pytest_collection_modifyitems(items):
    order = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


class Scheduling(LoadFileScheduling):
    """A file's tests on one worker, its fixtures once; lessons wherever a worker is free."""

    def _split_scope(self, nodeid):
        return nodeid if "runs_at_smoke_size" in nodeid else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, whose groups do nothing under pytest 9.2
def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False  # files in their order
    return Scheduling(config, log)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project of two small notebooks, in which all tests of the file that asks for it work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_PROJECT", str(folder := made.write(tmp_path_factory.mktemp("project"))))
        yield folder
